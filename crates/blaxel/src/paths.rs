//! Request paths. Blaxel routes on the decoded path, but looks at the encoded one
//! to tell whether a file is meant from the root or from the working directory; its clients rely on
//! both. Nothing is confined here: the guest does that, as the programs inside would see it.

use percent_encoding::percent_decode_str;

use super::errors::BlaxelError;

/// Where relative paths begin, and what `~` is.
pub(super) const WORKSPACE: &str = "/workspace";
const PATH_BYTES_MAX: usize = 4096;

/// The path of a request, encoded and decoded.
pub(super) struct RequestPath<'a> {
    raw: &'a str,
    pub(super) decoded: String,
}

/// A file inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilePath {
    /// The whole path.
    pub(super) whole: String,
    /// As clients see it: relative if the request was.
    pub(super) shown: String,
}

impl<'a> RequestPath<'a> {
    pub(super) fn new(raw: &'a str) -> Result<Self, BlaxelError> {
        let decoded = percent_decode_str(raw).decode_utf8();
        let decoded = decoded.map_err(|_| BlaxelError::bad("the path is not UTF-8"))?.into_owned();
        if decoded.contains('\0') || decoded.len() > PATH_BYTES_MAX {
            let cause = "the path contains a zero byte, or is longer than 4096 bytes";
            return Err(BlaxelError::bad(cause));
        }
        Ok(Self { raw, decoded })
    }

    /// What comes after a name of a route: nothing, or a slash and something.
    pub(super) fn after(&self, route: &str) -> Option<&str> {
        let rest = self.decoded.strip_prefix(route)?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    }

    /// The encoded path behind this many parts.
    pub(super) fn raw_behind(&self, parts: usize) -> String {
        let mut slashes = self.raw.match_indices('/');
        slashes.nth(parts).map_or_else(String::new, |(at, _)| self.raw[at..].to_owned())
    }

    /// The file that is named after a route.
    pub(super) fn file(&self, rest: &str) -> FilePath {
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        // An encoded slash, which only some clients send, means the root.
        if self.raw.contains("%2F") { FilePath::from_root(rest) } else { FilePath::new(rest) }
    }
}

impl FilePath {
    /// A path as a client writes it.
    pub(super) fn new(text: &str) -> Self {
        if text.starts_with('/') {
            return Self::from_root(text);
        }
        let of_home =
            text.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'));
        if let Some(rest) = of_home {
            return Self::from_root(&format!("{WORKSPACE}/{rest}"));
        }
        let shown = clean(text);
        if shown.is_empty() {
            return Self::from_root(WORKSPACE);
        }
        Self { whole: format!("{WORKSPACE}/{shown}"), shown }
    }

    pub(super) fn from_root(text: &str) -> Self {
        let whole = format!("/{}", clean(text));
        Self { shown: whole.clone(), whole }
    }

    /// A file beneath it, as clients see it.
    pub(super) fn shown_beneath(&self, name: &str) -> String {
        format!("{}/{name}", self.shown.trim_end_matches('/'))
    }

    /// Its last name; that of the root is `/`.
    pub(super) fn name(&self) -> &str {
        let name = self.whole.rsplit('/').next().unwrap_or_default();
        if name.is_empty() { "/" } else { name }
    }

    /// The whole path without an end, if it has that.
    pub(super) fn without_end(&self, end: &str) -> Option<String> {
        let whole = self.whole.strip_suffix(end)?;
        Some(if whole.is_empty() { "/".to_owned() } else { whole.to_owned() })
    }
}

/// Without empty parts and dots. What would lead above the beginning leads to it.
fn clean(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(raw: &str) -> (String, String) {
        let asked = RequestPath::new(raw).unwrap();
        let file = asked.file(asked.after("/filesystem").unwrap());
        (file.whole, file.shown)
    }

    #[test]
    fn file_paths_that_clients_send_are_understood() {
        for (raw, whole, shown) in [
            ("/filesystem", "/workspace", "/workspace"),
            ("/filesystem/", "/workspace", "/workspace"),
            ("/filesystem/.", "/workspace", "/workspace"),
            ("/filesystem/a/b", "/workspace/a/b", "a/b"),
            ("/filesystem//a/b", "/a/b", "/a/b"),
            ("/filesystem/%2Fa%2Fb", "/a/b", "/a/b"),
            ("/filesystem%2Fa/b", "/a/b", "/a/b"),
            ("/filesystem/rel%2Fa.txt", "/rel/a.txt", "/rel/a.txt"),
            ("/filesystem/rel%2fa.txt", "/workspace/rel/a.txt", "rel/a.txt"),
            ("/filesystem/~/x", "/workspace/x", "/workspace/x"),
            ("/filesystem/~", "/workspace", "/workspace"),
            ("/filesystem/~x", "/workspace/~x", "~x"),
            ("/filesystem/a/../../b", "/workspace/b", "b"),
            ("/filesystem//../etc", "/etc", "/etc"),
            ("/filesystem//", "/", "/"),
            ("/filesystem/a%20b+c", "/workspace/a b+c", "a b+c"),
            ("/filesystem/treehouse.txt", "/workspace/treehouse.txt", "treehouse.txt"),
        ] {
            assert_eq!(file(raw), (whole.to_owned(), shown.to_owned()), "{raw}");
        }
        assert_eq!(RequestPath::new("/filesystem-find/x").unwrap().after("/filesystem"), None);
        assert!(RequestPath::new("/filesystem/%ff").is_err());
        assert!(RequestPath::new("/filesystem/a%00").is_err());
    }

    #[test]
    fn file_path_has_a_name_and_an_optional_suffix() {
        assert_eq!(FilePath::new("/").name(), "/");
        assert_eq!(FilePath::new("a/b").name(), "b");
        for (path, without) in [("/a/**", "/a"), ("/**", "/"), ("**", WORKSPACE)] {
            assert_eq!(FilePath::new(path).without_end("/**").as_deref(), Some(without));
        }
        assert_eq!(FilePath::new("/a").without_end("/**"), None);
        assert_eq!(FilePath::new("/").shown_beneath("x"), "/x");
        assert_eq!(FilePath::new("d").shown_beneath("x"), "d/x");
    }

    proptest! {
        #[test]
        fn any_path_is_whole_and_clean(raw in "/filesystem[/a.~%2F]{0,20}") {
            if let Ok(asked) = RequestPath::new(&raw) && let Some(rest) = asked.after("/filesystem") {
                let whole = asked.file(rest).whole;
                prop_assert!(whole.starts_with('/'));
                prop_assert!(!whole.split('/').skip(1).any(|part| [".", ".."].contains(&part)));
                prop_assert!(!whole.contains("//"));
            }
        }
    }
}
