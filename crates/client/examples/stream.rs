//! Runs a program and prints its output as it comes, while another task watches what happens to
//! the sandbox. Start a server first: `shoal serve`.
#![expect(clippy::print_stdout, reason = "an example shows what it gets")]

use client::{Client, ClientError, ExecEvent, ExecRequest};

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let client = Client::discover()?;
    let lease = client.checkout(client::template("default")?).await?;

    let mut events = lease.events(Some(0));
    let watching = tokio::spawn(async move {
        while let Ok(seen) = events.next().await {
            println!("event: {seen:?}");
        }
    });

    let line = "for i in 1 2 3; do echo step $i; sleep 0.2; done";
    let mut running = lease.exec_stream(ExecRequest::shell(line)).await?;
    while let Some(event) = running.next().await? {
        match event {
            ExecEvent::Stdout(output) | ExecEvent::Stderr(output) => {
                println!("output: {:?}", output.data);
            }
            ExecEvent::Exit(exit) => println!("exit code {}", exit.exit_code),
            ExecEvent::Started | ExecEvent::Error { .. } => {}
        }
    }
    watching.abort();
    lease.give_back().await
}
