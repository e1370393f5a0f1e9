//! Where the routes of a use are: programs, files, archives and ports are the same for a sandbox by its
//! own id and for the sandbox that a session has, under two paths.

use model::ErrorCode;

/// A path, and how what is done there is called in clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    pub(super) path: &'static str,
    pub(super) id: &'static str,
}

/// All routes of a use.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
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
pub(super) const SESSION_REFUSES: &[ErrorCode] = &[
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
pub(super) const SANDBOX_REFUSES: &[ErrorCode] = &[
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

/// The routes of one kind of thing that is used.
pub(super) struct Of {
    pub(super) at: At,
    /// What only this kind refuses.
    pub(super) refuses: &'static [ErrorCode],
}

/// Both kinds.
pub(super) const BOTH: [Of; 2] = [
    Of { at: at!("/v1/sandboxes/{id}", ""), refuses: SANDBOX_REFUSES },
    Of { at: at!("/v1/sessions/{id}", "_of_session"), refuses: SESSION_REFUSES },
];
