//! Standard input for `shoal exec`: read completely before the program starts, because it is part
//! of the request.

use std::time::Duration;

use client::ExecRequest;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::failure::Failure;
use crate::output::Output;
use crate::run::streams::read_input;

/// The most input: what a server accepts, less what base64 adds.
const INPUT_BYTES_MAX: u64 = 16 << 20;
/// After this time a note says what the command waits for.
const SAY_AFTER: Duration = Duration::from_secs(2);

/// Adds our standard input to a request, if it is wanted.
pub(super) async fn give(
    request: ExecRequest,
    wanted: bool,
    output: &Output,
) -> Result<ExecRequest, Failure> {
    if !wanted {
        return Ok(request);
    }
    let (done, mut read) = oneshot::channel();
    // In a thread, because a read blocks. The thread ends with this process.
    std::thread::spawn(move || done.send(read_input(INPUT_BYTES_MAX)));
    let soon = timeout(SAY_AFTER, &mut read).await;
    let outcome = if let Ok(outcome) = soon {
        outcome
    } else {
        output.note("waiting for the end of standard input; --stdin=no passes none");
        read.await
    };
    let failed = |cause: String| {
        Failure::new("cannot read input", cause).remedy("use `shoal cp` for what is large")
    };
    let bytes = outcome
        .map_err(|error| failed(error.to_string()))?
        .map_err(|error| failed(error.to_string()))?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) if text.is_empty() => request,
        Ok(text) => ExecRequest { stdin: Some(text), ..request },
        Err(error) => {
            ExecRequest { stdin_base64: Some(wire::to_base64(error.as_bytes())), ..request }
        }
    })
}
