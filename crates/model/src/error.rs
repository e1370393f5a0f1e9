//! Errors callers can act on. The code is for branching and never changes its meaning; status,
//! remedy and retry follow from it in one table, so that they are the same everywhere.

use std::borrow::Cow;

use serde::Serialize;

use crate::reason::{EndCause, TerminatedReason};

/// Whether trying again helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// The same request will fail again.
    Never,
    /// The same request may work, after a pause.
    Later,
}

/// Makes an enum of error codes from one table: what each is called on the wire, and what else is
/// said of it, column by column. What stands above a row is its meaning, in a sentence or more.
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

            /// The word used on the wire, in logs and in metrics.
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
            /// What is said of one code.
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
    /// No template of that name is served.
    TemplateUnknown, "template_unknown", 404, Retry::Never, "list the templates, or create this one";
    /// The template could never work.
    TemplateInvalid, "template_invalid", 422, Retry::Never, "correct the named field";
    /// Sandboxes or sessions of the template still exist.
    TemplateInUse, "template_in_use", 409, Retry::Never, "end them first, or ask with force";
    /// No image of that name or id is in the store.
    ImageUnknown, "image_unknown", 404, Retry::Never, "list the images, or import this one";
    /// The archive is no image that could be used.
    ImageInvalid, "image_invalid", 422, Retry::Never, "see the cause; make the archive again without what it names";
    /// A template or a sandbox uses the image.
    ImageInUse, "image_in_use", 409, Retry::Never, "change or remove the named template first";
    /// No sandbox of that id is known.
    SandboxUnknown, "sandbox_unknown", 404, Retry::Never, "check the id";
    /// No lease of that id is known.
    LeaseUnknown, "lease_unknown", 404, Retry::Never, "check the id";
    /// No session of that id is known.
    SessionUnknown, "session_unknown", 404, Retry::Never, "check the id";
    /// No process of that id is known in the sandbox.
    ProcessUnknown, "process_unknown", 404, Retry::Never, "list the sandbox's processes";
    /// A process of that name runs in the sandbox already.
    ProcessNameTaken, "process_name_taken", 409, Retry::Never, "choose another name, or stop the one that runs";
    /// The process is over.
    ProcessOver, "process_over", 409, Retry::Never, "start it again";
    /// The input of the process cannot be written: it has none, or it was closed.
    StdinClosed, "stdin_closed", 409, Retry::Never, "start the process with an open input";
    /// Something else listens on the port already.
    PortTaken, "port_taken", 409, Retry::Never, "use another port, or stop what listens there";
    /// Nothing listens on the port, or what does is no server of the kind that was asked for.
    PortClosed, "port_closed", 502, Retry::Later, "start what is to listen there, or wait for the port";
    /// The id is already used for something else.
    IdConflict, "id_conflict", 409, Retry::Never, "use a new id";
    /// A field of the request cannot be right.
    InvalidArgument, "invalid_argument", 422, Retry::Never, "correct the named field";
    /// Nothing is free and nothing may be evicted.
    CapacityExhausted, "capacity_exhausted", 503, Retry::Later, "retry later, wait with a deadline, or raise the limits";
    /// The checkout's deadline passed while it waited.
    CheckoutTimeout, "checkout_timeout", 503, Retry::Later, "retry, wait longer, or raise pool_size or max_overflow";
    /// Too many callers wait for this pool already.
    QueueFull, "queue_full", 503, Retry::Later, "retry later, or raise max_waiters";
    /// No idle sandbox, and the caller wanted only an idle one.
    PoolEmpty, "pool_empty", 503, Retry::Later, "retry later, or allow the checkout to wait";
    /// The pool hands out nothing at the moment.
    PoolClosed, "pool_closed", 503, Retry::Later, "resume the pool, or use another template";
    /// The sandbox could not be started.
    LaunchFailed, "launch_failed", 502, Retry::Later, "see the cause; `shoal doctor` tells what this machine can do";
    /// The sandbox was started but was not ready in time.
    ReadyTimeout, "ready_timeout", 504, Retry::Later, "check the harness, or raise ready_timeout";
    /// The sandbox is gone.
    SandboxGone, "sandbox_gone", 410, Retry::Never, "see the reason; check out another one";
    /// The lease is gone.
    LeaseLost, "lease_lost", 410, Retry::Never, "check out another sandbox";
    /// The sandbox died while it was used.
    SandboxCrashed, "sandbox_crashed", 502, Retry::Later, "retry: the next use gets another sandbox";
    /// The sandbox ran out of memory while it was used.
    Oom, "oom", 502, Retry::Never, "use less memory, or raise limits.memory_mb";
    /// The sandbox was ended because it wrote too much to its workspace.
    DiskLimit, "disk_limit", 502, Retry::Never, "write less, or raise limits.workspace_mb";
    /// The disk that holds the workspaces is nearly full.
    DiskFull, "disk_full", 503, Retry::Later, "retry later; free disk space, or lower node.workspace_free_floor_mb";
    /// The sandbox belongs to nobody, so nobody may use it.
    NotLeased, "not_leased", 409, Retry::Never, "check out a sandbox first";
    /// Something is going on in the sandbox, or keeps it awake.
    SandboxBusy, "sandbox_busy", 409, Retry::Later, "retry when it is quiet";
    /// No turn of that id is known.
    TurnUnknown, "turn_unknown", 404, Retry::Never, "check the id; old turns are forgotten";
    /// The harness of the template could not be started, or does not keep to its protocol.
    HarnessFailed, "harness_failed", 502, Retry::Later, "see the cause and the session's logs; check the template's harness";
    /// Somebody speaks with the harness already: a turn, or whoever holds it.
    HarnessBusy, "harness_busy", 409, Retry::Later, "wait until it is let go, or abort the turn";
    /// The template's harness is the shell, which is no program to speak with.
    NoHarness, "no_harness", 409, Retry::Never, "use exec, or give the template a jsonl or ash_bridge harness";
    /// The session is over.
    SessionEnded, "session_ended", 410, Retry::Never, "create another session";
    /// The session was stopped by its user.
    SessionStopped, "session_stopped", 409, Retry::Never, "resume it first";
    /// Another operation on the session is in progress.
    SessionBusy, "session_busy", 409, Retry::Later, "retry when it is over";
    /// A turn is in progress.
    TurnInProgress, "turn_in_progress", 409, Retry::Later, "wait for it, abort it, or ask to queue";
    /// Too many turns are queued already.
    TurnQueueFull, "turn_queue_full", 429, Retry::Later, "retry when some are over";
    /// The request was called off by an abort, a stop or an end.
    Aborted, "aborted", 409, Retry::Never, "send it again if it is still wanted";
    /// The workspace could not be made durable, so nothing was ended.
    PersistFailed, "persist_failed", 500, Retry::Later, "see the cause; free disk space or check the store";
    /// The runtime cannot do this.
    Unsupported, "unsupported", 422, Retry::Never, "see `shoal doctor`";
    /// The confirmation did not come in time; the work goes on.
    DeadlineExceeded, "deadline_exceeded", 504, Retry::Later, "look at the state again later";
    /// The client went away.
    ClientGone, "client_gone", 499, Retry::Never, "nothing to do";
    /// No file, program or port of that name in the sandbox.
    PathNotFound, "path_not_found", 404, Retry::Never, "check the path";
    /// There is something of that name already.
    PathExists, "path_exists", 409, Retry::Never, "choose another path, or ask to overwrite";
    /// The user inside the sandbox may not.
    PathDenied, "path_denied", 403, Retry::Never, "use a path that the sandbox's user may use, such as one beneath /workspace";
    /// It is a directory where a file should be, or the other way round.
    PathWrongKind, "path_wrong_kind", 409, Retry::Never, "check what is there";
    /// A limit of the sandbox is reached: space, processes, memory, descriptors.
    LimitReached, "limit_reached", 422, Retry::Never, "free some of it, or raise the limits of the template";
    /// The request could not be read: its syntax, or a field that is missing, unknown or of the wrong type.
    BadRequest, "bad_request", 400, Retry::Never, "correct the request as the cause says";
    /// No key was given, or it is not known, expired or revoked.
    Unauthorized, "unauthorized", 401, Retry::Never, "send `Authorization: Bearer KEY`; `shoal key create` makes keys";
    /// The role of the key does not allow this.
    Forbidden, "forbidden", 403, Retry::Never, "use a key with a higher role";
    /// No such route, or no such thing.
    NotFound, "not_found", 404, Retry::Never, "check the address; /v1/openapi.json lists every route";
    /// The route exists, but not with this method.
    MethodNotAllowed, "method_not_allowed", 405, Retry::Never, "use one of the methods in the Allow header";
    /// The body of the request did not arrive in time.
    RequestTimeout, "request_timeout", 408, Retry::Later, "send the body without long pauses";
    /// The part of the file that was asked for does not exist.
    RangeNotSatisfiable, "range_not_satisfiable", 416, Retry::Never, "ask for a part within the size of the file";
    /// The body or an argument is larger than allowed.
    TooLarge, "too_large", 413, Retry::Never, "send or ask for less, or as a stream";
    /// The body is of a type that is not understood here.
    UnsupportedMediaType, "unsupported_media_type", 415, Retry::Never, "send application/json, or what the route's documentation names";
    /// The route speaks something else than HTTP, which was not asked for.
    UpgradeRequired, "upgrade_required", 426, Retry::Never, "open a WebSocket, or send the Upgrade header that the route's documentation names";
    /// The Host header names a host that this server does not serve.
    HostRefused, "host_refused", 421, Retry::Never, "use the address the server listens on, or add the name to server.hosts";
    /// Too many requests in a short time.
    RateLimited, "rate_limited", 429, Retry::Later, "slow down; the Retry-After header says for how long";
    /// The idempotency key was used before with another request.
    IdempotencyConflict, "idempotency_conflict", 422, Retry::Never, "use a new key for a new request";
    /// The journal cannot be written at the moment, so nothing is promised.
    StoreUnavailable, "store_unavailable", 503, Retry::Later, "see the cause; free disk space, then retry: nothing is lost";
    /// The server is doing as much as it can.
    Overloaded, "overloaded", 503, Retry::Later, "retry after a pause";
    /// A mistake of the server.
    Internal, "internal", 500, Retry::Later, "report it with the request id";
    /// The server is stopping.
    ShuttingDown, "shutting_down", 503, Retry::Later, "retry when it is back";
}

/// A request that was not done: the code, the cause in words, and when to try again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {cause}")]
pub struct Refusal {
    /// What to branch on.
    pub code: ErrorCode,
    /// What happened, for people.
    pub cause: Cow<'static, str>,
    /// When trying again is likely to help.
    pub retry_after_ms: Option<u64>,
    /// Why what was asked for is gone, where that is what is wrong: a refusal that says so always
    /// has it.
    pub reason: Option<TerminatedReason>,
}

impl Refusal {
    /// A refusal with its cause.
    pub fn new(code: ErrorCode, cause: impl Into<Cow<'static, str>>) -> Self {
        Self { code, cause: cause.into(), retry_after_ms: None, reason: None }
    }

    /// Whoever asks for a sandbox that is gone is told why.
    pub fn sandbox_gone(cause: EndCause) -> Self {
        let reason = cause.reason();
        let text = format!("the sandbox is gone: {} ({})", reason.as_str(), cause.as_str());
        Self::new(ErrorCode::SandboxGone, text).because(reason)
    }

    /// The same refusal with why what was asked for is gone.
    #[must_use]
    pub fn because(mut self, reason: TerminatedReason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// The same refusal with a hint when to come back.
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
    fn every_code_has_a_status_that_fits_its_retry() {
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
