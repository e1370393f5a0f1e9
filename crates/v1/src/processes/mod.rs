//! Processes: programs that outlive the request that started them. A path names one by its id, its
//! process id inside or its name. Reading stored data thaws nothing.

mod logs;
mod operations;
mod output;
mod start;
mod start_request;

use model::ErrorCode;
use wire::ProcessRequest;

use crate::checkouts::ONCE;
use crate::events::{AFTER_MAX, RESUME};
use crate::exec::USING;
use crate::use_routes::SANDBOX_REFUSES;
use web::front::Needs;
use web::operation::{Content, Kind, Operation, Param, Route, Takes, Verb, json};
use web::stream::{NDJSON, SSE};

const ALL: &str = "/v1/sandboxes/{id}/processes";
const ONE: &str = "/v1/sandboxes/{id}/processes/{process}";
const OBSERVE: &str =
    "Only look: without this, a read counts as a use of the sandbox while a process runs in it";
const BYTES: &str = "application/octet-stream";
const TEXT: &str = "text/plain; charset=utf-8";

/// Error codes of reading.
const READING: &[ErrorCode] = &[
    ErrorCode::SandboxUnknown,
    ErrorCode::SandboxGone,
    ErrorCode::ProcessUnknown,
    ErrorCode::Unsupported,
    ErrorCode::StoreUnavailable,
    ErrorCode::ShuttingDown,
];

/// Error codes that only running processes have.
const CHANGING: &[ErrorCode] = &[ErrorCode::ProcessOver, ErrorCode::StdinClosed];

const STARTING: &[ErrorCode] =
    &[ErrorCode::ProcessNameTaken, ErrorCode::PortTaken, ErrorCode::IdempotencyConflict];

pub(super) fn routes() -> Vec<Route> {
    [start_and_read(), end(), input(), output()].into_iter().flatten().collect()
}

fn the_process(id: &'static str, about: &'static str) -> Operation {
    Operation::new(id, about).answers(200, "The process", [json("Process")])
}

fn using(operation: Operation) -> Operation {
    operation.refuses(USING).refuses(SANDBOX_REFUSES)
}

/// Starting and reading processes.
fn start_and_read() -> Vec<Route> {
    let new = Operation::new(
        "start_process",
        "Start a program that outlives this request; the answer may wait for its end or its ports",
    )
    .answers(201, "The process; still `running` if the wait ended first", [json("Process")]);
    let list =
        Operation::new("list_processes", "List the processes of a sandbox, running or ended")
            .answers(200, "A page of processes, the latest first", [json("ProcessList")]);
    let get = the_process("get_process", "Get a process");
    vec![
        Route::new(
            Verb::Post,
            ALL,
            Needs::Use,
            start::start,
            using(new.takes(Takes::Json("ProcessRequest")).headers([ONCE])).refuses(STARTING),
        ),
        Route::new(
            Verb::Get,
            ALL,
            Needs::Read,
            operations::list,
            list.query([
                Param::new(
                    "before",
                    Kind::Number(0, AFTER_MAX),
                    "Only processes with a lower number: `next` of the previous page",
                ),
                Param::new(
                    "limit",
                    Kind::Number(1, operations::PAGE_MAX),
                    "The most processes in a page; 100 if not given",
                ),
                Param::new("running", Kind::Flag, "Only running processes"),
                Param::new("observe", Kind::Flag, OBSERVE),
            ])
            .refuses(READING),
        ),
        Route::new(
            Verb::Get,
            ONE,
            Needs::Read,
            operations::read,
            get.query([Param::new("observe", Kind::Flag, OBSERVE)]).refuses(READING),
        ),
    ]
}

/// Ending, signalling and waiting for processes.
fn end() -> Vec<Route> {
    let stop = the_process(
        "stop_process",
        "Ask a process and all its descendants to end, and kill them after a grace time",
    );
    let kill = the_process("kill_process", "Kill a process and all its descendants");
    let signal = the_process("signal_process", "Send a signal to a process");
    let wait = the_process("wait_process", "Wait until a process has ended, or until a timeout");
    vec![
        Route::new(
            Verb::Delete,
            ONE,
            Needs::Use,
            operations::stop,
            using(stop.query([Param::new(
                "grace_ms",
                Kind::Number(0, operations::GRACE_MS_MAX),
                "The grace time before the kill; ten seconds if not given",
            )]))
            .refuses(CHANGING),
        ),
        Route::new(
            Verb::Post,
            "/v1/sandboxes/{id}/processes/{process}/kill",
            Needs::Use,
            operations::kill,
            using(kill).refuses(CHANGING),
        ),
        Route::new(
            Verb::Post,
            "/v1/sandboxes/{id}/processes/{process}/signal",
            Needs::Use,
            operations::signal,
            using(signal.takes(Takes::Json("SignalRequest"))).refuses(CHANGING),
        ),
        Route::new(
            Verb::Get,
            "/v1/sandboxes/{id}/processes/{process}/wait",
            Needs::Read,
            operations::wait,
            using(wait.query([Param::new(
                "timeout_ms",
                Kind::Number(1, ProcessRequest::WAIT_MS_MAX),
                "How long to wait; ten minutes if not given",
            )])),
        ),
    ]
}

/// Input of processes.
fn input() -> Vec<Route> {
    let write = Operation::new("write_stdin", "Write to the standard input of a process").answers(
        204,
        "All bytes were written",
        [],
    );
    let close = Operation::new("close_stdin", "Close the standard input of a process").answers(
        204,
        "The standard input is closed",
        [],
    );
    let resize = Operation::new("resize_process", "Resize the terminal of a process").answers(
        204,
        "The terminal was resized",
        [],
    );
    let stdin = "/v1/sandboxes/{id}/processes/{process}/stdin";
    let changing = |operation: Operation| using(operation).refuses(CHANGING);
    vec![
        Route::new(
            Verb::Post,
            stdin,
            Needs::Use,
            operations::write_stdin,
            changing(write.takes(Takes::Bytes(&[BYTES]))),
        ),
        Route::new(Verb::Delete, stdin, Needs::Use, operations::close_stdin, changing(close)),
        Route::new(
            Verb::Post,
            "/v1/sandboxes/{id}/processes/{process}/resize",
            Needs::Use,
            operations::resize,
            changing(resize.takes(Takes::Json("TerminalSize"))),
        ),
    ]
}

/// Output of processes.
fn output() -> Vec<Route> {
    let logs = Operation::new(
        "process_logs",
        "Read the output of a process: a page as JSON, all of it as bytes, or a stream that follows it",
    )
    .answers(
        200,
        "A page; or everything from `offset` on as bytes; or a stream of `ProcessEvent`s that ends with \
         `exit`, in which `id` is the offset to resume at",
        [
            json("ProcessLog"),
            Content(SSE, Some("ProcessEvent")),
            Content(NDJSON, Some("ProcessEvent")),
            Content(BYTES, None),
            Content(TEXT, None),
        ],
    );
    vec![Route::new(
        Verb::Get,
        "/v1/sandboxes/{id}/processes/{process}/logs",
        Needs::Read,
        logs::logs,
        logs.query([
            Param::new(
                "stream",
                Kind::OneOf(&["stdout", "stderr", "both"]),
                "Which stream; both if not given",
            ),
            Param::new(
                "offset",
                Kind::Number(0, AFTER_MAX),
                "The first byte. Not given: JSON has the end of the log, other formats all of it",
            ),
            Param::new(
                "max_bytes",
                Kind::Number(1, logs::PAGE_BYTES_MAX),
                "The most bytes; not given: 1 MiB as JSON, everything as bytes",
            ),
            Param::new("follow", Kind::Flag, "As bytes: follow until the process has ended"),
            Param::new("observe", Kind::Flag, OBSERVE),
        ])
        .headers([RESUME])
        .refuses(READING)
        .refuses(USING)
        .refuses(SANDBOX_REFUSES),
    )]
}
