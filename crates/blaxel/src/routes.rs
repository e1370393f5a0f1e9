//! Which route a path means. It is decided on the decoded path, as in Blaxel, and by whole names: a
//! file whose name begins like a route is a file.

use http::Method;

use super::paths::{FilePath, RequestPath};
use web::front::Needs;

/// A route of a sandbox's API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    Root,
    Health,
    Status,
    Stop,
    Processes,
    Process(String, OfProcess),
    File(FilePath),
    Tree(FilePath),
    Watch(FilePath),
    Find(FilePath),
    Fuzzy(FilePath),
    Content(FilePath),
    Uploads,
    Initiate(FilePath),
    Upload(String, OfUpload),
    Sockets(String),
    /// A port, and the path behind it as it was sent.
    Port(u16, String),
    TerminalSocket,
    Mcp,
    /// A feature of Blaxel that is missing here, and why.
    NotHere(&'static str),
    Unknown,
}

/// A route beneath one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OfProcess {
    Itself,
    Kill,
    Logs,
    LogStream,
    Stdin,
}

/// A route beneath one upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OfUpload {
    Part,
    Parts,
    Complete,
    Abort,
}

const MONITOR: &str = "port monitors are not offered here: poll GET /network/process/{pid}/ports";
const TUNNEL: &str = "tunnels are not offered here: sandboxes are reached through the server";
const DRIVES: &str = "drives are not offered here: use files, or the directories of a template";
const CODEGEN: &str = "codegen tools are not configured, and are not offered here";
const UPGRADE: &str = "sandboxes have nothing to upgrade: the server is upgraded as a whole";
const ARCHIVE: &str = "archives are not offered here: sessions keep their files by themselves";
const ENVIRONMENT: &str = "the environment of a sandbox is given when it is made";
const TERMINAL: &str =
    "the terminal page is not offered here: connect to /terminal/ws, or use `shoal exec -it`";

impl Route {
    pub(super) fn of(asked: &RequestPath<'_>) -> Self {
        let decoded = asked.decoded.as_str();
        let file = |rest: &str| asked.file(rest);
        if let Some(rest) = decoded.strip_prefix("/filesystem/tree/") {
            return Self::Tree(FilePath::from_root(rest));
        }
        if let Some(rest) = asked.after("/filesystem") {
            return Self::File(file(rest));
        }
        for (name, route) in [
            ("/watch/filesystem", Self::Watch as fn(FilePath) -> Self),
            ("/filesystem-find", Self::Find),
            ("/filesystem-search", Self::Fuzzy),
            ("/filesystem-content-search", Self::Content),
            ("/filesystem-multipart/initiate", Self::Initiate),
        ] {
            if let Some(rest) = asked.after(name) {
                return route(file(rest));
            }
        }
        if let Some(rest) = asked.after("/port") {
            return Self::port(rest, asked.raw_behind(2));
        }
        for (name, why) in [
            ("/network/tunnel", TUNNEL),
            ("/drives", DRIVES),
            ("/codegen", CODEGEN),
            ("/upgrade", UPGRADE),
            ("/archive", ARCHIVE),
            ("/environment", ENVIRONMENT),
        ] {
            if asked.after(name).is_some() {
                return Self::NotHere(why);
            }
        }
        let parts: Vec<_> = decoded.trim_matches('/').split('/').collect();
        match parts.as_slice() {
            [""] => Self::Root,
            ["health"] => Self::Health,
            ["status"] => Self::Status,
            ["stop"] => Self::Stop,
            ["mcp"] => Self::Mcp,
            ["process"] => Self::Processes,
            ["process", id] => Self::Process((*id).to_owned(), OfProcess::Itself),
            ["process", id, "kill"] => Self::Process((*id).to_owned(), OfProcess::Kill),
            ["process", id, "logs"] => Self::Process((*id).to_owned(), OfProcess::Logs),
            ["process", id, "logs", "stream"] => {
                Self::Process((*id).to_owned(), OfProcess::LogStream)
            }
            ["process", id, "stdin"] => Self::Process((*id).to_owned(), OfProcess::Stdin),
            ["filesystem-multipart"] => Self::Uploads,
            ["filesystem-multipart", id, "part"] => Self::Upload((*id).to_owned(), OfUpload::Part),
            ["filesystem-multipart", id, "parts"] => {
                Self::Upload((*id).to_owned(), OfUpload::Parts)
            }
            ["filesystem-multipart", id, "complete"] => {
                Self::Upload((*id).to_owned(), OfUpload::Complete)
            }
            ["filesystem-multipart", id, "abort"] => {
                Self::Upload((*id).to_owned(), OfUpload::Abort)
            }
            ["network", "process", pid, "ports"] => Self::Sockets((*pid).to_owned()),
            ["network", "process", _, "monitor"] => Self::NotHere(MONITOR),
            ["terminal", "ws"] => Self::TerminalSocket,
            ["terminal"] => Self::NotHere(TERMINAL),
            _ => Self::Unknown,
        }
    }

    /// Whether it is a use, which needs a live sandbox.
    pub(super) fn is_use(&self, method: &Method) -> bool {
        match self {
            Self::Root
            | Self::Health
            | Self::Status
            | Self::Stop
            | Self::Process(..)
            | Self::Uploads
            | Self::Upload(..)
            | Self::NotHere(_)
            | Self::Unknown => false,
            Self::Processes => method == Method::POST,
            Self::File(_)
            | Self::Tree(_)
            | Self::Watch(_)
            | Self::Find(_)
            | Self::Fuzzy(_)
            | Self::Content(_)
            | Self::Initiate(_)
            | Self::Sockets(_)
            | Self::Port(..)
            | Self::TerminalSocket
            | Self::Mcp => true,
        }
    }

    fn port(rest: &str, behind: String) -> Self {
        let number = rest.trim_start_matches('/').split('/').next().unwrap_or_default();
        match number.parse() {
            Ok(port) if port > 0 => Self::Port(port, behind),
            Ok(_) | Err(_) => Self::Unknown,
        }
    }

    /// The role that it requires.
    pub(super) fn needs(&self, method: &Method) -> Needs {
        let looks = [Method::GET, Method::HEAD].contains(method);
        match self {
            Self::Port(..) | Self::TerminalSocket => Needs::Use,
            // The role that a tool requires is checked when it is called.
            Self::Mcp => Needs::Read,
            Self::Root
            | Self::Health
            | Self::Status
            | Self::Stop
            | Self::Processes
            | Self::Process(..)
            | Self::File(_)
            | Self::Tree(_)
            | Self::Watch(_)
            | Self::Find(_)
            | Self::Fuzzy(_)
            | Self::Content(_)
            | Self::Uploads
            | Self::Initiate(_)
            | Self::Upload(..)
            | Self::Sockets(_)
            | Self::NotHere(_)
            | Self::Unknown => {
                if looks {
                    Needs::Read
                } else {
                    Needs::Use
                }
            }
        }
    }

    /// Its name in the log and the metrics.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Root => "/compat/blaxel/{sandbox}",
            Self::Health => "/compat/blaxel/{sandbox}/health",
            Self::Status => "/compat/blaxel/{sandbox}/status",
            Self::Stop => "/compat/blaxel/{sandbox}/stop",
            Self::Processes => "/compat/blaxel/{sandbox}/process",
            Self::Process(_, of) => match of {
                OfProcess::Itself => "/compat/blaxel/{sandbox}/process/{id}",
                OfProcess::Kill => "/compat/blaxel/{sandbox}/process/{id}/kill",
                OfProcess::Logs => "/compat/blaxel/{sandbox}/process/{id}/logs",
                OfProcess::LogStream => "/compat/blaxel/{sandbox}/process/{id}/logs/stream",
                OfProcess::Stdin => "/compat/blaxel/{sandbox}/process/{id}/stdin",
            },
            Self::File(_) => "/compat/blaxel/{sandbox}/filesystem/{path}",
            Self::Tree(_) => "/compat/blaxel/{sandbox}/filesystem/tree/{path}",
            Self::Watch(_) => "/compat/blaxel/{sandbox}/watch/filesystem/{path}",
            Self::Find(_) => "/compat/blaxel/{sandbox}/filesystem-find/{path}",
            Self::Fuzzy(_) => "/compat/blaxel/{sandbox}/filesystem-search/{path}",
            Self::Content(_) => "/compat/blaxel/{sandbox}/filesystem-content-search/{path}",
            Self::Uploads | Self::Initiate(_) | Self::Upload(..) => {
                "/compat/blaxel/{sandbox}/filesystem-multipart"
            }
            Self::Sockets(_) => "/compat/blaxel/{sandbox}/network/process/{pid}/ports",
            Self::Port(..) => "/compat/blaxel/{sandbox}/port/{port}",
            Self::TerminalSocket => "/compat/blaxel/{sandbox}/terminal/ws",
            Self::Mcp => "/compat/blaxel/{sandbox}/mcp",
            Self::NotHere(_) | Self::Unknown => "/compat/blaxel/other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(raw: &str) -> Route {
        Route::of(&RequestPath::new(raw).unwrap())
    }

    #[test]
    fn routes_are_found_on_the_decoded_path_and_by_whole_names() {
        let process = |of| Route::Process("my-app".to_owned(), of);
        for (raw, expected) in [
            ("/", Route::Root),
            ("", Route::Root),
            ("/health", Route::Health),
            ("/process", Route::Processes),
            ("/process/", Route::Processes),
            ("/process/my-app", process(OfProcess::Itself)),
            ("/process/my%2Dapp/logs", process(OfProcess::Logs)),
            ("/process/my-app/logs/stream", process(OfProcess::LogStream)),
            ("/process/my-app/kill", process(OfProcess::Kill)),
            ("/process/my-app/stdin", process(OfProcess::Stdin)),
            ("/process/my-app/other", Route::Unknown),
            ("/filesystem/tree/x", Route::Tree(FilePath::new("/x"))),
            ("/filesystem/tree//x", Route::Tree(FilePath::new("/x"))),
            ("/filesystem/tree%2Fx", Route::Tree(FilePath::new("/x"))),
            ("/filesystem/tree", Route::File(FilePath::new("tree"))),
            ("/filesystem/treehouse.txt", Route::File(FilePath::new("treehouse.txt"))),
            ("/filesystem//tree/x", Route::File(FilePath::new("/tree/x"))),
            ("/filesystem%2Fa/b", Route::File(FilePath::new("/a/b"))),
            ("/filesystem-find//a", Route::Find(FilePath::new("/a"))),
            ("/filesystem-findings", Route::Unknown),
            ("/filesystem-content-search/%2Fa", Route::Content(FilePath::new("/a"))),
            ("/watch/filesystem//a/**", Route::Watch(FilePath::new("/a/**"))),
            ("/filesystem-multipart", Route::Uploads),
            ("/filesystem-multipart/initiate//a", Route::Initiate(FilePath::new("/a"))),
            ("/filesystem-multipart/u/part", Route::Upload("u".to_owned(), OfUpload::Part)),
            ("/network/process/12/ports", Route::Sockets("12".to_owned())),
            ("/network/process/12/monitor", Route::NotHere(MONITOR)),
            ("/network/tunnel/config", Route::NotHere(TUNNEL)),
            ("/drives/mount", Route::NotHere(DRIVES)),
            ("/port/3000", Route::Port(3000, String::new())),
            ("/port/3000/a%2Fb", Route::Port(3000, "/a%2Fb".to_owned())),
            ("/port/0/a", Route::Unknown),
            ("/port/70000", Route::Unknown),
            ("/terminal/ws", Route::TerminalSocket),
            ("/nothing", Route::Unknown),
        ] {
            assert_eq!(route(raw), expected, "{raw}");
        }
    }

    #[test]
    fn reading_routes_need_a_lower_role() {
        assert_eq!(route("/process").needs(&Method::GET), Needs::Read);
        assert_eq!(route("/process").needs(&Method::POST), Needs::Use);
        assert_eq!(route("/filesystem/a").needs(&Method::HEAD), Needs::Read);
        assert_eq!(route("/port/80/").needs(&Method::GET), Needs::Use);
    }
}
