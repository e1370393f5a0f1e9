//! The two ends of a copy: a path of this machine, or a path in a sandbox or session.

use std::path::PathBuf;

use uuid::Uuid;

/// The directory of relative paths in a sandbox.
const HOME: &str = "/workspace";

/// On this machine, or in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Location {
    Local(Local),
    Sandbox(Remote),
}

/// On this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Local {
    /// Our standard input or output.
    Stream,
    /// A path, and whether it was written as a directory.
    Path(PathBuf, bool),
}

/// In a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remote {
    /// The id of the sandbox or of the session.
    pub(super) id: Uuid,
    pub(super) path: String,
}

impl Location {
    /// A text with an id before a colon is in a sandbox; any other is on this machine.
    pub(super) fn parse(text: &str) -> Self {
        if let Some((id, path)) = text.split_once(':')
            && let Ok(id) = id.parse()
        {
            let path = match path {
                "" => format!("{HOME}/"),
                path if path.starts_with('/') => path.to_owned(),
                path => format!("{HOME}/{path}"),
            };
            return Self::Sandbox(Remote { id, path });
        }
        Self::Local(match text {
            "-" => Local::Stream,
            path => Local::Path(PathBuf::from(path), path.ends_with('/')),
        })
    }
}

/// The last name of a path in a sandbox, if it is a valid file name.
pub(super) fn last_name(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/').rsplit('/').next()?;
    (!name.is_empty() && name != "." && name != "..").then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0192f3a0-0000-7000-8000-000000000001";

    #[test]
    fn copy_locations_are_parsed() {
        let there = |path: &str| {
            Location::Sandbox(Remote { id: ID.parse().unwrap(), path: path.to_owned() })
        };
        let here = |path: &str, dir| Location::Local(Local::Path(PathBuf::from(path), dir));
        let cases = [
            (format!("{ID}:/a/b"), there("/a/b")),
            (format!("{ID}:a"), there("/workspace/a")),
            (format!("{ID}:"), there("/workspace/")),
            ("a:b".to_owned(), here("a:b", false)),
            ("./x/".to_owned(), here("./x/", true)),
            ("-".to_owned(), Location::Local(Local::Stream)),
            (ID.to_owned(), here(ID, false)),
        ];
        for (text, expected) in cases {
            assert_eq!(Location::parse(&text), expected, "{text}");
        }
    }

    #[test]
    fn copy_names_that_lead_elsewhere_are_refused() {
        let cases = [
            ("/a/b", Some("b")),
            ("/a/b/", Some("b")),
            ("/", None),
            ("/a/..", None),
            ("/a/.", None),
            ("", None),
        ];
        for (path, expected) in cases {
            assert_eq!(last_name(path), expected, "{path}");
        }
    }
}
