//! The output of a process, for a client that waited for its end.

use engine::{LogQuery, OutputSelection, ProcessRef};
use web::process_wait::Waiting;
use web::refused::Refused;
use wire::{ExecRequest, ProcessOutput};

use crate::view;

/// The end of both outputs, of each at most so much.
pub(super) async fn output(of: &Waiting<'_>, bytes_max: u64) -> Result<ProcessOutput, Refused> {
    let stdout = tail(of, OutputSelection::Stdout, bytes_max).await?;
    let stderr = tail(of, OutputSelection::Stderr, bytes_max).await?;
    Ok(ProcessOutput::new(stdout, stderr, view::log_extent(&of.now().await?)))
}

async fn tail(
    of: &Waiting<'_>,
    wanted: OutputSelection,
    bytes_max: u64,
) -> Result<Vec<u8>, Refused> {
    let max_bytes = bytes_max.min(ExecRequest::OUTPUT_BYTES_MAX);
    let query = LogQuery { wanted, offset: None, max_bytes };
    let process = ProcessRef::Id(of.process);
    let page = of.app.engine.process_log(of.caller, of.sandbox, &process, query).await?;
    Ok(page.pieces.iter().flat_map(|piece| piece.bytes.iter().copied()).collect())
}
