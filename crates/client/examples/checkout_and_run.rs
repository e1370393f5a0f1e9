//! Checks a sandbox out, writes a file into it, runs a program on it, and gives the sandbox back.
//! Start a server first: `shoal serve`.
#![expect(clippy::print_stdout, reason = "an example shows what it gets")]

use client::{Client, ClientError, ExecRequest};

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let client = Client::discover()?;
    let lease = client.checkout(client::template("default")?).await?;
    println!("sandbox {} ({:?})", lease.id(), lease.path());

    lease.write_file("/workspace/numbers", "3\n1\n2\n", None).await?;
    let sorted = lease.exec(ExecRequest::argv(["sort", "/workspace/numbers"])).await?;
    println!("exit code {}, output {:?}", sorted.exit_code, sorted.stdout);

    // Dropping it would do, too; this way a failure is heard of.
    lease.give_back().await
}
