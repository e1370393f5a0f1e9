//! What is used: a sandbox by its own id, or whatever sandbox a session has. Programs, files and
//! archives are the same for both; only where their routes are and how a use begins is told here.

use engine::{Caller, Use, UseKind};
use model::why::Why;
use model::{ErrorCode, SandboxId, SessionId};

use crate::app::App;
use crate::path::Name;
use crate::refused::{Elsewhere, Refused};

/// Something that can be used, named by the path of a request.
pub(crate) trait Used: Name + Copy + Send + Sync + 'static {
    /// Where its routes are.
    const AT: At;
    /// What only this kind refuses.
    const REFUSES: &'static [ErrorCode];

    /// What belongs to another key does not exist.
    fn check(self, app: &App, caller: Caller) -> Result<(), Refused>;

    /// Begins to use it.
    fn begin(
        self,
        app: &App,
        caller: Caller,
        kind: UseKind,
    ) -> impl Future<Output = Result<Use, Refused>> + Send;
}

/// A path, and how what is done there is called in clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    pub(super) path: &'static str,
    pub(super) id: &'static str,
}

/// All routes of a use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(super) exec: Spot,
    pub(super) read: Spot,
    pub(super) write: Spot,
    pub(super) remove: Spot,
    pub(super) list: Spot,
    pub(super) stat: Spot,
    pub(super) rename: Spot,
    pub(super) mkdir: Spot,
    pub(super) download: Spot,
    pub(super) upload: Spot,
    pub(super) change: Spot,
    pub(super) link: Spot,
    pub(super) tree: Spot,
    pub(super) find: Spot,
    pub(super) search: Spot,
    pub(super) watch: Spot,
    pub(super) multipart: Spot,
    pub(super) ports: Spot,
    pub(super) proxy: Spot,
    /// The same without anything after the port.
    pub(super) proxy_root: &'static [&'static str],
    pub(super) forward: Spot,
}

macro_rules! at {
    ($base:literal, $of:literal) => {
        At {
            exec: Spot { path: concat!($base, "/exec"), id: concat!("exec", $of) },
            read: Spot { path: concat!($base, "/files"), id: concat!("read_file", $of) },
            write: Spot { path: concat!($base, "/files"), id: concat!("write_file", $of) },
            remove: Spot { path: concat!($base, "/files"), id: concat!("delete_file", $of) },
            list: Spot { path: concat!($base, "/files/list"), id: concat!("list_files", $of) },
            stat: Spot { path: concat!($base, "/files/stat"), id: concat!("stat_file", $of) },
            rename: Spot { path: concat!($base, "/files/move"), id: concat!("move_file", $of) },
            mkdir: Spot {
                path: concat!($base, "/files/directory"),
                id: concat!("make_directory", $of),
            },
            download: Spot {
                path: concat!($base, "/archive"),
                id: concat!("download_archive", $of),
            },
            upload: Spot { path: concat!($base, "/archive"), id: concat!("upload_archive", $of) },
            change: Spot { path: concat!($base, "/files"), id: concat!("change_file", $of) },
            link: Spot { path: concat!($base, "/files/link"), id: concat!("make_link", $of) },
            tree: Spot { path: concat!($base, "/files/tree"), id: concat!("file_tree", $of) },
            find: Spot { path: concat!($base, "/files/find"), id: concat!("find_files", $of) },
            search: Spot {
                path: concat!($base, "/files/search"),
                id: concat!("search_files", $of),
            },
            watch: Spot { path: concat!($base, "/files/watch"), id: concat!("watch_files", $of) },
            multipart: Spot {
                path: concat!($base, "/files/multipart"),
                id: concat!("upload_files", $of),
            },
            ports: Spot { path: concat!($base, "/ports"), id: concat!("list_ports", $of) },
            proxy: Spot {
                path: concat!($base, "/ports/{port}/{*path}"),
                id: concat!("reach_port", $of),
            },
            proxy_root: &[concat!($base, "/ports/{port}"), concat!($base, "/ports/{port}/")],
            forward: Spot {
                path: concat!($base, "/forward/{port}"),
                id: concat!("forward_port", $of),
            },
        }
    };
}

/// What the use of a session may be refused for.
const OF_SESSION: &[ErrorCode] = &[
    ErrorCode::SessionUnknown,
    ErrorCode::SessionEnded,
    ErrorCode::SessionStopped,
    ErrorCode::SessionBusy,
    ErrorCode::TemplateUnknown,
    ErrorCode::LaunchFailed,
    ErrorCode::ReadyTimeout,
    ErrorCode::HarnessFailed,
    ErrorCode::PoolClosed,
    ErrorCode::QueueFull,
    ErrorCode::DiskFull,
    ErrorCode::Aborted,
    ErrorCode::CheckoutTimeout,
    ErrorCode::PersistFailed,
];

/// That of a sandbox, which may be a session's.
const OF_SANDBOX: &[ErrorCode] = &[
    ErrorCode::SandboxUnknown,
    ErrorCode::NotLeased,
    ErrorCode::SessionEnded,
    ErrorCode::SessionStopped,
    ErrorCode::SessionBusy,
    ErrorCode::TemplateUnknown,
    ErrorCode::LaunchFailed,
    ErrorCode::ReadyTimeout,
    ErrorCode::HarnessFailed,
    ErrorCode::PoolClosed,
    ErrorCode::QueueFull,
    ErrorCode::DiskFull,
    ErrorCode::Aborted,
    ErrorCode::CheckoutTimeout,
    ErrorCode::PersistFailed,
];

impl Used for SandboxId {
    const AT: At = at!("/v1/sandboxes/{id}", "");
    const REFUSES: &'static [ErrorCode] = OF_SANDBOX;

    fn check(self, app: &App, caller: Caller) -> Result<(), Refused> {
        Ok(app.engine.check_sandbox(caller, self)?)
    }

    async fn begin(self, app: &App, caller: Caller, kind: UseKind) -> Result<Use, Refused> {
        match app.engine.use_sandbox(caller, self, kind).await {
            Ok(used) => Ok(used),
            Err(refusal) => Err(told_of_now(app, caller, self, refusal.into()).await),
        }
    }
}

impl Used for SessionId {
    const AT: At = at!("/v1/sessions/{id}", "_of_session");
    const REFUSES: &'static [ErrorCode] = OF_SESSION;

    fn check(self, app: &App, caller: Caller) -> Result<(), Refused> {
        Ok(app.engine.check_session(caller, self)?)
    }

    async fn begin(self, app: &App, caller: Caller, kind: UseKind) -> Result<Use, Refused> {
        Ok(app.engine.use_session(caller, self, kind).await?)
    }
}

/// Whoever has the id of a sandbox that is gone learns why, and if it was a session's, which one
/// the session has now.
pub(super) async fn told_of_now(
    app: &App,
    caller: Caller,
    id: SandboxId,
    refused: Refused,
) -> Refused {
    if refused.refusal.code != ErrorCode::SandboxGone {
        return refused;
    }
    let Ok(Why::Ended(ended)) = app.engine.why(caller, id).await else { return refused };
    let session = ended.session;
    let now = session.and_then(|session| app.engine.session(caller, session).ok());
    let elsewhere = Box::new(Elsewhere {
        reason: ended.cause.reason(),
        session_id: session,
        sandbox_id: now.and_then(|view| view.sandbox_id),
    });
    Refused { elsewhere: Some(elsewhere), ..refused }
}
