//! The paths of all routes that use a sandbox: programs, files, archives and ports have the same
//! routes for a sandbox by its own id and for the sandbox that a session has.

use model::ErrorCode;

/// A path, and the name of the operation in generated clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct RouteSpec {
    pub(super) path: &'static str,
    pub(super) id: &'static str,
}

/// The routes of one target of a use.
#[derive(Debug, Clone, Copy)]
pub(super) struct TargetRoutes {
    pub(super) exec: RouteSpec,
    pub(super) read: RouteSpec,
    pub(super) write: RouteSpec,
    pub(super) remove: RouteSpec,
    pub(super) list: RouteSpec,
    pub(super) stat: RouteSpec,
    pub(super) rename: RouteSpec,
    pub(super) mkdir: RouteSpec,
    pub(super) download: RouteSpec,
    pub(super) upload: RouteSpec,
    pub(super) change: RouteSpec,
    pub(super) link: RouteSpec,
    pub(super) tree: RouteSpec,
    pub(super) find: RouteSpec,
    pub(super) search: RouteSpec,
    pub(super) watch: RouteSpec,
    pub(super) multipart: RouteSpec,
    pub(super) ports: RouteSpec,
    pub(super) proxy: RouteSpec,
    /// The same without anything after the port.
    pub(super) proxy_root: &'static [&'static str],
    pub(super) forward: RouteSpec,
}

macro_rules! target_routes {
    ($base:literal, $of:literal) => {
        TargetRoutes {
            exec: RouteSpec { path: concat!($base, "/exec"), id: concat!("exec", $of) },
            read: RouteSpec { path: concat!($base, "/files"), id: concat!("read_file", $of) },
            write: RouteSpec { path: concat!($base, "/files"), id: concat!("write_file", $of) },
            remove: RouteSpec { path: concat!($base, "/files"), id: concat!("delete_file", $of) },
            list: RouteSpec { path: concat!($base, "/files/list"), id: concat!("list_files", $of) },
            stat: RouteSpec { path: concat!($base, "/files/stat"), id: concat!("stat_file", $of) },
            rename: RouteSpec {
                path: concat!($base, "/files/move"),
                id: concat!("move_file", $of),
            },
            mkdir: RouteSpec {
                path: concat!($base, "/files/directory"),
                id: concat!("make_directory", $of),
            },
            download: RouteSpec {
                path: concat!($base, "/archive"),
                id: concat!("download_archive", $of),
            },
            upload: RouteSpec {
                path: concat!($base, "/archive"),
                id: concat!("upload_archive", $of),
            },
            change: RouteSpec { path: concat!($base, "/files"), id: concat!("change_file", $of) },
            link: RouteSpec { path: concat!($base, "/files/link"), id: concat!("make_link", $of) },
            tree: RouteSpec { path: concat!($base, "/files/tree"), id: concat!("file_tree", $of) },
            find: RouteSpec { path: concat!($base, "/files/find"), id: concat!("find_files", $of) },
            search: RouteSpec {
                path: concat!($base, "/files/search"),
                id: concat!("search_files", $of),
            },
            watch: RouteSpec {
                path: concat!($base, "/files/watch"),
                id: concat!("watch_files", $of),
            },
            multipart: RouteSpec {
                path: concat!($base, "/files/multipart"),
                id: concat!("upload_files", $of),
            },
            ports: RouteSpec { path: concat!($base, "/ports"), id: concat!("list_ports", $of) },
            proxy: RouteSpec {
                path: concat!($base, "/ports/{port}/{*path}"),
                id: concat!("reach_port", $of),
            },
            proxy_root: &[concat!($base, "/ports/{port}"), concat!($base, "/ports/{port}/")],
            forward: RouteSpec {
                path: concat!($base, "/forward/{port}"),
                id: concat!("forward_port", $of),
            },
        }
    };
}

/// Error codes of the use of a session.
pub(super) const SESSION_REFUSES: &[ErrorCode] = &[
    ErrorCode::SessionUnknown,
    ErrorCode::SessionEnded,
    ErrorCode::SessionStopped,
    ErrorCode::SessionBusy,
    ErrorCode::TemplateUnknown,
    ErrorCode::NetworkRefused,
    ErrorCode::SecretMissing,
    ErrorCode::LaunchFailed,
    ErrorCode::BoundaryFull,
    ErrorCode::EgressUnavailable,
    ErrorCode::ReadyTimeout,
    ErrorCode::HarnessFailed,
    ErrorCode::PoolClosed,
    ErrorCode::QueueFull,
    ErrorCode::DiskFull,
    ErrorCode::Aborted,
    ErrorCode::CheckoutTimeout,
    ErrorCode::PersistFailed,
];

/// Error codes of the use of a sandbox, which may belong to a session.
pub(super) const SANDBOX_REFUSES: &[ErrorCode] = &[
    ErrorCode::SandboxUnknown,
    ErrorCode::NotLeased,
    ErrorCode::SessionEnded,
    ErrorCode::SessionStopped,
    ErrorCode::SessionBusy,
    ErrorCode::TemplateUnknown,
    ErrorCode::NetworkRefused,
    ErrorCode::SecretMissing,
    ErrorCode::LaunchFailed,
    ErrorCode::BoundaryFull,
    ErrorCode::EgressUnavailable,
    ErrorCode::ReadyTimeout,
    ErrorCode::HarnessFailed,
    ErrorCode::PoolClosed,
    ErrorCode::QueueFull,
    ErrorCode::DiskFull,
    ErrorCode::Aborted,
    ErrorCode::CheckoutTimeout,
    ErrorCode::PersistFailed,
];

/// One kind of target.
pub(super) struct TargetSpec {
    pub(super) routes: TargetRoutes,
    /// Error codes that only this kind has.
    pub(super) refuses: &'static [ErrorCode],
}

/// Both kinds of targets.
pub(super) const TARGETS: [TargetSpec; 2] = [
    TargetSpec { routes: target_routes!("/v1/sandboxes/{id}", ""), refuses: SANDBOX_REFUSES },
    TargetSpec {
        routes: target_routes!("/v1/sessions/{id}", "_of_session"),
        refuses: SESSION_REFUSES,
    },
];
