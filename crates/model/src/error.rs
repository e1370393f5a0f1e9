//! Errors that callers can act on. A code never changes its meaning, so callers branch on it;
//! status, remedy and retry come from one table here, so that every interface gives the same ones.

use std::borrow::Cow;

use serde::Serialize;

use crate::reason::{EndCause, TerminatedReason};
use crate::why::Ended;

/// Whether trying again helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// A client must not repeat the request by itself: the request would fail again, or it was
    /// cancelled on purpose.
    Never,
    /// The same request may work, after a pause.
    Later,
}

/// Makes an enum of error codes from one table: the name of each on the wire, then the further
/// columns. The comment above a row is the meaning of its code, in one sentence or more.
///
/// ```
/// model::error_codes! {
///     /// Why it did not rain.
///     pub enum Dry {
///         /// Whether waiting helps.
///         retry: model::Retry,
///     }
///     /// There are no clouds.
///     NoClouds, "no_clouds", model::Retry::Later;
///     /// It is a desert.
///     Desert, "desert", model::Retry::Never;
/// }
/// assert_eq!(Dry::NoClouds.to_string(), "no_clouds");
/// assert_eq!(Dry::Desert.meaning(), "It is a desert.");
/// assert_eq!(Dry::Desert.retry(), model::Retry::Never);
/// ```
#[macro_export]
macro_rules! error_codes {
    (
        $(#[$about:meta])*
        pub enum $name:ident {
            $($(#[$of_column:meta])* $column:ident: $type:ty,)*
        }
        $($(#[doc = $meaning:literal])+ $code:ident, $word:literal $(, $value:expr)*;)+
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[doc = $meaning])+ $code,)+
        }

        impl $name {
            /// All codes.
            pub const ALL: &'static [Self] = &[$(Self::$code,)+];

            /// The code as text: on the wire, in logs and in metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$code => $word,)+
                }
            }

            /// What it means, in a sentence.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$code => concat!($($meaning),+).trim_ascii(),)+
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        $crate::error_codes! { @columns $name ($($(#[$of_column])* $column: $type,)*) ($($code ($($value,)*);)+) }
    };
    (@columns $name:ident () $rows:tt) => {};
    (
        @columns $name:ident ($($(#[$of_column:meta])* $column:ident: $type:ty,)+)
        ($($code:ident ($($value:expr,)+);)+)
    ) => {
        const _: () = {
            /// The columns of one code.
            #[derive(Clone, Copy)]
            struct Row {
                $($column: $type,)+
            }

            impl Row {
                const fn new($($column: $type,)+) -> Self {
                    Self { $($column,)+ }
                }
            }

            impl $name {
                const fn row(self) -> Row {
                    match self {
                        $(Self::$code => Row::new($($value,)+),)+
                    }
                }

                $(
                    $(#[$of_column])*
                    pub const fn $column(self) -> $type {
                        self.row().$column
                    }
                )+
            }
        };
    };
}

error_codes! {
    /// A stable code, the same in every interface.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ErrorCode {
        /// The HTTP status it is sent with.
        status: u16,
        /// Whether trying again helps.
        retry: Retry,
        /// What the caller can do about it.
        remedy: &'static str,
    }
    /// No template with this name exists.
    TemplateUnknown, "template_unknown", 404, Retry::Never, "list the templates, or create this one";
    /// The template is not valid: no sandbox could be made from it.
    TemplateInvalid, "template_invalid", 422, Retry::Never, "correct the named field";
    /// Sandboxes or sessions of this template still exist.
    TemplateInUse, "template_in_use", 409, Retry::Never, "end these sandboxes and sessions first, or repeat the request with `force`";
    /// The image store has no image with this name or id.
    ImageUnknown, "image_unknown", 404, Retry::Never, "list the images, or import this one";
    /// The archive is not a valid image.
    ImageInvalid, "image_invalid", 422, Retry::Never, "correct what the cause names, and build the archive again";
    /// A template or a sandbox uses the image.
    ImageInUse, "image_in_use", 409, Retry::Never, "change or remove the named template first";
    /// No sandbox with this id is known.
    SandboxUnknown, "sandbox_unknown", 404, Retry::Never, "check the id";
    /// No lease with this id is known.
    LeaseUnknown, "lease_unknown", 404, Retry::Never, "check the id";
    /// No session with this id is known.
    SessionUnknown, "session_unknown", 404, Retry::Never, "check the id";
    /// The sandbox has no process with this id or name.
    ProcessUnknown, "process_unknown", 404, Retry::Never, "list the sandbox's processes";
    /// A process with this name already runs in the sandbox.
    ProcessNameTaken, "process_name_taken", 409, Retry::Never, "choose another name, or stop the running process";
    /// The process has ended.
    ProcessOver, "process_over", 409, Retry::Never, "start the process again";
    /// The process has no standard input, or its standard input is closed.
    StdinClosed, "stdin_closed", 409, Retry::Never, "start the process with an open standard input";
    /// Another program in the sandbox already listens on the port.
    PortTaken, "port_taken", 409, Retry::Never, "use another port, or stop the program that listens on it";
    /// No program in the sandbox listens on the port, or that program does not speak the requested protocol.
    PortClosed, "port_closed", 502, Retry::Later, "start the program that listens, or wait for the port";
    /// The id already belongs to something else.
    IdConflict, "id_conflict", 409, Retry::Never, "use a new id";
    /// A field of the request has a value that is not allowed.
    InvalidArgument, "invalid_argument", 422, Retry::Never, "correct the named field";
    /// The node has no room for another live sandbox, and no sandbox may be evicted.
    CapacityExhausted, "capacity_exhausted", 503, Retry::Later, "retry later, wait with a deadline, or raise the limit that `detail` names";
    /// No sandbox became free before the checkout's deadline.
    CheckoutTimeout, "checkout_timeout", 503, Retry::Later, "retry, wait longer, or raise the limit that `detail` names";
    /// Too many callers already wait for this pool.
    QueueFull, "queue_full", 503, Retry::Later, "retry later, or raise max_waiters";
    /// The pool has no idle sandbox, and the caller did not want to wait.
    PoolEmpty, "pool_empty", 503, Retry::Later, "retry later, or allow the checkout to wait";
    /// The pool is paused, draining or destroyed and hands out no sandboxes.
    PoolClosed, "pool_closed", 503, Retry::Later, "resume the pool, or use another template";
    /// The sandbox could not be started.
    LaunchFailed, "launch_failed", 502, Retry::Later, "correct what the cause names; `shoal doctor` shows what this machine supports";
    /// The sandbox started but was not ready before its deadline.
    ReadyTimeout, "ready_timeout", 504, Retry::Later, "check the harness, or raise ready_timeout";
    /// The sandbox has ended.
    SandboxGone, "sandbox_gone", 410, Retry::Never, "check out another sandbox; `reason` says why this one ended";
    /// The lease has expired, was returned, or its sandbox has ended.
    LeaseLost, "lease_lost", 410, Retry::Never, "check out another sandbox";
    /// The sandbox crashed during the request.
    SandboxCrashed, "sandbox_crashed", 502, Retry::Later, "retry: the next use gets another sandbox";
    /// The sandbox ran out of memory during the request.
    Oom, "oom", 502, Retry::Never, "use less memory, or raise limits.memory_mb";
    /// The sandbox was ended because its workspace exceeded its limit.
    DiskLimit, "disk_limit", 502, Retry::Never, "write less, or raise limits.workspace_mb";
    /// The disk that holds the workspaces is nearly full.
    DiskFull, "disk_full", 503, Retry::Later, "retry later; free disk space, or lower node.workspace_free_floor_mb";
    /// The sandbox is idle in its pool: without a lease it cannot be used.
    NotLeased, "not_leased", 409, Retry::Never, "check out a sandbox first";
    /// The sandbox is in use, or something keeps it alive.
    SandboxBusy, "sandbox_busy", 409, Retry::Later, "retry when the sandbox is idle";
    /// No turn with this id is known.
    TurnUnknown, "turn_unknown", 404, Retry::Never, "check the id; old turns are deleted";
    /// The harness could not be started, or violated its protocol.
    HarnessFailed, "harness_failed", 502, Retry::Later, "read the session's logs, and check the template's harness";
    /// The harness is in use by a turn or by another connection.
    HarnessBusy, "harness_busy", 409, Retry::Later, "wait until the other connection closes, or abort the turn";
    /// The template has no harness program: its harness is the shell.
    NoHarness, "no_harness", 409, Retry::Never, "use exec, or give the template a jsonl or ash_bridge harness";
    /// The session has ended.
    SessionEnded, "session_ended", 410, Retry::Never, "create another session";
    /// The session is stopped.
    SessionStopped, "session_stopped", 409, Retry::Never, "resume the session first";
    /// Another operation on the session is in progress.
    SessionBusy, "session_busy", 409, Retry::Later, "retry when the other operation has ended";
    /// The session already has a turn in progress.
    TurnInProgress, "turn_in_progress", 409, Retry::Later, "wait for the turn, abort it, or send the message with `queue`";
    /// The session's queue of turns is full.
    TurnQueueFull, "turn_queue_full", 429, Retry::Later, "retry when some turns have ended";
    /// A caller aborted the turn, or stopped or ended the session, so the request was cancelled.
    Aborted, "aborted", 409, Retry::Never, "if you still need the answer, send the message again; a stopped session must be resumed first";
    /// The workspace could not be saved, so nothing was ended.
    PersistFailed, "persist_failed", 500, Retry::Later, "correct what the cause names, such as a full disk, and retry";
    /// The runtime does not support this operation.
    Unsupported, "unsupported", 422, Retry::Never, "leave out what the cause names, or use another runtime; `shoal doctor` shows what this machine supports";
    /// The policy of the template does not allow what the claim or change wants to reach.
    NetworkRefused, "network_refused", 422, Retry::Never, "ask for less, or allow it in the template's `network`";
    /// As many keys as the node allows have sandboxes with boundary secrets.
    BoundaryFull, "boundary_full", 503, Retry::Later, "retry when another key has ended its sandboxes with boundary secrets, or raise egress.max_boundary_keys";
    /// The egress process cannot serve the sandbox now.
    EgressUnavailable, "egress_unavailable", 503, Retry::Later, "retry: a process that has ended is started again, and one that does not answer is replaced after a minute; the log of the server says what happened";
    /// The operation was not confirmed before its deadline; the server continues it.
    DeadlineExceeded, "deadline_exceeded", 504, Retry::Later, "read the state again later";
    /// The client closed the connection before the answer.
    ClientGone, "client_gone", 499, Retry::Never, "nothing to do";
    /// The sandbox has no file, program or port with this name.
    PathNotFound, "path_not_found", 404, Retry::Never, "check the name; list the directory to see what exists";
    /// The path already exists.
    PathExists, "path_exists", 409, Retry::Never, "choose another path, or allow overwriting";
    /// The user of the sandbox may not access the path.
    PathDenied, "path_denied", 403, Retry::Never, "use a path that the sandbox user may access, such as one beneath /workspace";
    /// The path is a directory where a file is needed, or the reverse.
    PathWrongKind, "path_wrong_kind", 409, Retry::Never, "check whether the path is a file or a directory";
    /// The sandbox reached a limit: disk space, processes, memory or file descriptors.
    LimitReached, "limit_reached", 422, Retry::Never, "free some of the resource, or raise the template's limits";
    /// The request is malformed: its syntax is wrong, or a field is missing, unknown or of the wrong type.
    BadRequest, "bad_request", 400, Retry::Never, "correct the request as the cause says";
    /// The request has no key, or the key is unknown, expired or revoked.
    Unauthorized, "unauthorized", 401, Retry::Never, "send `Authorization: Bearer KEY`; `shoal key create` makes keys";
    /// The role of the key does not allow the request.
    Forbidden, "forbidden", 403, Retry::Never, "use a key with a higher role";
    /// The route or the object does not exist.
    NotFound, "not_found", 404, Retry::Never, "check the name and the address: lists show what exists, and /v1/openapi.json has every route";
    /// The route exists, but not with this method.
    MethodNotAllowed, "method_not_allowed", 405, Retry::Never, "use one of the methods in the Allow header";
    /// The body of the request did not arrive in time.
    RequestTimeout, "request_timeout", 408, Retry::Later, "send the body without long pauses";
    /// The requested range lies outside the file.
    RangeNotSatisfiable, "range_not_satisfiable", 416, Retry::Never, "request a range within the size of the file";
    /// The body, an argument or the answer is larger than allowed.
    TooLarge, "too_large", 413, Retry::Never, "send or request less, or use a stream";
    /// The route does not accept a body of this media type.
    UnsupportedMediaType, "unsupported_media_type", 415, Retry::Never, "send application/json, or a type that the route's documentation names";
    /// This route requires a protocol upgrade, such as WebSocket.
    UpgradeRequired, "upgrade_required", 426, Retry::Never, "open a WebSocket, or send the Upgrade header that the route's documentation names";
    /// The Host header names a host that this server does not serve.
    HostRefused, "host_refused", 421, Retry::Never, "use the address the server listens on, or add the name to server.hosts";
    /// The request would exceed a limit of its key.
    QuotaExceeded, "quota_exceeded", 429, Retry::Later, "free some of what `detail` names, or have the limit raised if it is one of the configuration";
    /// The template or the claim names a secret that is not stored.
    SecretMissing, "secret_missing", 422, Retry::Never, "store it: `shoal secret put NAME`";
    /// The idempotency key was already used with a different request.
    IdempotencyConflict, "idempotency_conflict", 422, Retry::Never, "use a new idempotency key for a new request";
    /// The server cannot write its journal, so it accepts no changes.
    StoreUnavailable, "store_unavailable", 503, Retry::Later, "correct what the cause names, such as a full disk, and retry; nothing is lost";
    /// The server is at its limit of requests, connections or operations of this kind.
    Overloaded, "overloaded", 503, Retry::Later, "retry after a pause";
    /// The server has an internal error.
    Internal, "internal", 500, Retry::Later, "report the error with the request id";
    /// The server is stopping.
    ShuttingDown, "shutting_down", 503, Retry::Later, "retry when the server is back";
}

/// Why a request was refused: the code, the cause in words, and when to try again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {cause}")]
pub struct Refusal {
    /// What to branch on.
    pub code: ErrorCode,
    /// What happened, for people.
    pub cause: Cow<'static, str>,
    /// When trying again is likely to help.
    pub retry_after_ms: Option<u64>,
    /// Why the sandbox ended, where that is the cause of the refusal.
    pub reason: Option<TerminatedReason>,
}

impl Refusal {
    /// A refusal with its cause.
    pub fn new(code: ErrorCode, cause: impl Into<Cow<'static, str>>) -> Self {
        Self { code, cause: cause.into(), retry_after_ms: None, reason: None }
    }

    /// A refusal because the sandbox has ended, with the reason.
    pub fn sandbox_gone(cause: EndCause) -> Self {
        let text = format!("the sandbox is gone: {}", cause.in_words());
        Self::new(ErrorCode::SandboxGone, text).because(cause.reason())
    }

    /// The same with the detail of the end, if the runtime reported one.
    pub fn sandbox_ended(ended: &Ended) -> Self {
        let mut refusal = Self::sandbox_gone(ended.cause);
        if let Some(detail) = &ended.detail {
            refusal.cause = format!("{} ({detail})", refusal.cause).into();
        }
        refusal
    }

    /// The same refusal with the reason why the sandbox ended.
    #[must_use]
    pub fn because(mut self, reason: TerminatedReason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Whether the same request may succeed later. A limit of a key that the request alone exceeds
    /// stays exceeded: such a refusal has no time after which to retry.
    pub fn is_retryable(&self) -> bool {
        let never = self.code == ErrorCode::QuotaExceeded && self.retry_after_ms.is_none();
        self.code.retry() == Retry::Later && !never
    }

    /// The same refusal with a hint when to retry.
    #[must_use]
    pub fn retry_after(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_code_has_a_status_that_fits_its_retry() {
        for &code in ErrorCode::ALL {
            assert!((400..=599).contains(&code.status()), "{code}");
            assert!(!code.remedy().is_empty(), "{code}");
            assert!(code.meaning().ends_with('.'), "{code}: a sentence");
            assert!(!code.meaning().starts_with(' '), "{code}");
            assert_eq!(serde_json::to_string(&code).unwrap(), format!("\"{code}\""));
            if code.status() == 503 {
                assert_eq!(code.retry(), Retry::Later, "{code}: 503 invites a retry");
            }
            if matches!(code.status(), 404 | 410 | 422) {
                assert_eq!(code.retry(), Retry::Never, "{code}: the same request fails again");
            }
        }
    }
}
