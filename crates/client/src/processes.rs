//! Processes of a sandbox, which run on after the request that started them, and what keeps their
//! sandbox awake. A process is named by its id, by its process id inside, or by its name.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use wire::{
    Process, ProcessList, ProcessLog, ProcessRequest, SignalRequest, StatusReport, StopRequest,
    TerminalSize,
};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::files::Download;
use crate::process_log::LogStream;
use crate::query::Target;
use crate::sandbox::Handle;

const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");
const GRACE_MS: u64 = 10_000;

/// Which processes to list.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessFilter {
    /// With a lower number: `next` of the page before.
    pub before: Option<u64>,
    /// At most this many.
    pub limit: Option<u32>,
    /// Only running processes.
    pub running: bool,
    /// Only look: the sandbox may be frozen although a process runs in it.
    pub observe: bool,
}

/// Which part of a log.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogPart {
    /// `stdout` or `stderr`; both if not given.
    pub stream: Option<&'static str>,
    /// From this offset on.
    pub offset: Option<u64>,
    /// At most this many bytes.
    pub max_bytes: Option<u64>,
}

impl LogPart {
    fn of(self, target: Target) -> Target {
        target
            .maybe("stream", self.stream)
            .maybe("offset", self.offset)
            .maybe("max_bytes", self.max_bytes)
    }
}

fn waits(timeout: Option<Duration>) -> (Duration, Option<u128>) {
    let default = Duration::from_millis(ProcessRequest::WAIT_MS);
    (timeout.unwrap_or(default), timeout.map(|time| time.as_millis().max(1)))
}

impl Handle {
    fn of_process(&self, process: &str) -> Target {
        self.at().part("processes").part(process)
    }

    /// Starts a process. The request has an idempotency key, so it is started only once.
    #[boxed]
    pub async fn start_process(&self, request: &ProcessRequest) -> Result<Process, ClientError> {
        let waits = request.wait || !request.wait_for_ports.is_empty();
        let wait_ms = request.wait_timeout_ms.unwrap_or(ProcessRequest::WAIT_MS);
        let may_take = Duration::from_millis(if waits { wait_ms } else { 0 });
        let call = Call::post(self.at().part("processes")).json(request)?.once();
        self.client.json(call.may_take(may_take)).await
    }

    /// One page of its processes, the newest first.
    #[boxed]
    pub async fn processes(&self, filter: ProcessFilter) -> Result<ProcessList, ClientError> {
        let target = self
            .at()
            .part("processes")
            .maybe("before", filter.before)
            .maybe("limit", filter.limit)
            .maybe("running", filter.running.then_some(true))
            .maybe("observe", filter.observe.then_some(true));
        self.client.json(Call::get(target)).await
    }

    /// One process.
    #[boxed]
    pub async fn process(&self, process: &str) -> Result<Process, ClientError> {
        self.client.json(Call::get(self.of_process(process))).await
    }

    /// Asks a process to end, and kills it after the grace period. Answered when it has ended.
    #[boxed]
    pub async fn stop_process(
        &self,
        process: &str,
        grace: Option<Duration>,
    ) -> Result<Process, ClientError> {
        let grace_ms = grace.map(|time| time.as_millis());
        let may_take = grace.unwrap_or(Duration::from_millis(GRACE_MS));
        let target = self.of_process(process).maybe("grace_ms", grace_ms);
        self.client.json(Call::delete(target).may_take(may_take)).await
    }

    /// Kills a process. Answered when it has ended.
    #[boxed]
    pub async fn kill_process(&self, process: &str) -> Result<Process, ClientError> {
        self.client.json(Call::post(self.of_process(process).part("kill"))).await
    }

    /// Sends a signal to a process, and with `tree` to all its descendants.
    #[boxed]
    pub async fn signal_process(
        &self,
        process: &str,
        signal: &str,
        tree: bool,
    ) -> Result<Process, ClientError> {
        let request = SignalRequest { signal: signal.to_owned(), tree };
        self.client.json(Call::post(self.of_process(process).part("signal")).json(&request)?).await
    }

    /// Waits until a process ends, or until the timeout; ten minutes if not given.
    #[boxed]
    pub async fn wait_process(
        &self,
        process: &str,
        timeout: Option<Duration>,
    ) -> Result<Process, ClientError> {
        let (may_take, timeout_ms) = waits(timeout);
        let target = self.of_process(process).part("wait").maybe("timeout_ms", timeout_ms);
        self.client.json(Call::get(target).may_take(may_take)).await
    }

    /// Writes to the input of a process. It is not sent again if the connection breaks.
    pub async fn write_stdin(
        &self,
        process: &str,
        bytes: impl Into<Bytes>,
    ) -> Result<(), ClientError> {
        let call = Call::post(self.of_process(process).part("stdin")).bytes(bytes);
        self.client.done(call.header(CONTENT_TYPE, BYTES)).await
    }

    /// Closes the input of a process.
    #[boxed]
    pub async fn close_stdin(&self, process: &str) -> Result<(), ClientError> {
        self.client.done(Call::delete(self.of_process(process).part("stdin"))).await
    }

    /// Changes the size of the terminal of a process.
    #[boxed]
    pub async fn resize_process(
        &self,
        process: &str,
        size: TerminalSize,
    ) -> Result<(), ClientError> {
        self.client.done(Call::post(self.of_process(process).part("resize")).json(&size)?).await
    }

    /// A part of the output of a process; without an offset its last part.
    #[boxed]
    pub async fn process_log(
        &self,
        process: &str,
        part: LogPart,
    ) -> Result<ProcessLog, ClientError> {
        let target = part.of(self.of_process(process).part("logs"));
        self.client.json(Call::get(target)).await
    }

    /// All stored output of a process, as bytes.
    #[boxed]
    pub async fn download_log(
        &self,
        process: &str,
        part: LogPart,
    ) -> Result<Download, ClientError> {
        let target = part.of(self.of_process(process).part("logs"));
        let call = Call::get(target).header(hyper::header::ACCEPT, BYTES);
        self.download(call).await
    }

    /// Follows the output of a process until it ends. Resumes if the connection breaks.
    pub fn follow_log(&self, process: &str, part: LogPart) -> LogStream {
        let at = self.of_process(process).part("logs").maybe("stream", part.stream);
        LogStream::new(self.client.clone(), at, part.offset.unwrap_or(0))
    }

    /// What keeps it awake, and when it will be frozen. This does not count as activity.
    #[boxed]
    pub async fn status(&self) -> Result<StatusReport, ClientError> {
        self.client.json(Call::get(self.at().part("status"))).await
    }

    /// Stops its processes from keeping it awake, at once or after a delay. It kills nothing.
    #[boxed]
    pub async fn stop_keeping_awake(
        &self,
        after_s: Option<u64>,
    ) -> Result<StatusReport, ClientError> {
        let call = Call::post(self.at().part("stop")).json(&StopRequest { after_s })?;
        self.client.json(call).await
    }
}
