//! Translates the server's paths to the engine's, where the server itself runs in a container: a
//! table of path prefixes. The longest prefix of whole names wins. This is only the table: it must
//! never look at a file, and whether a path may be mounted is decided elsewhere.

use model::mount::{is_beneath, is_plain};
use thiserror::Error;

/// What is wrong with a table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PathMapProblem {
    /// A path is relative, or has `.`, `..`, double or trailing slashes.
    #[error("{0:?} does not begin with a slash, or has `.`, `..`, double or trailing slashes")]
    NotPlain(String),
    /// Two lines begin with the same path.
    #[error("{0:?} is listed twice")]
    Twice(String),
}

/// A table of path prefixes: ours, and the same directory as the engine sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathMap {
    /// Longest first. The engine does not see a path without a translation.
    pairs: Vec<(String, Option<String>)>,
}

impl PathMap {
    /// A table, from pairs of a path here and the same path as the engine sees it.
    pub fn new(pairs: Vec<(String, String)>) -> Result<Self, PathMapProblem> {
        Self::with_hidden(pairs.into_iter().map(|(from, to)| (from, Some(to))).collect())
    }

    /// The same, with paths here that the engine does not see.
    pub(super) fn with_hidden(
        mut pairs: Vec<(String, Option<String>)>,
    ) -> Result<Self, PathMapProblem> {
        for path in pairs.iter().flat_map(|(from, to)| std::iter::once(from).chain(to)) {
            if !is_plain(path) {
                return Err(PathMapProblem::NotPlain(path.clone()));
            }
        }
        pairs.sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        if let Some(twice) = pairs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(PathMapProblem::Twice(twice[0].0.clone()));
        }
        Ok(Self { pairs })
    }

    /// A path as the engine sees it; none if it does not, no line is about it, or it is not plain.
    pub fn translate(&self, path: &str) -> Option<String> {
        if !is_plain(path) {
            return None;
        }
        let (from, to) = self.pairs.iter().find(|(from, _)| is_beneath(path, from))?;
        let rest = path.strip_prefix(from.trim_end_matches('/'))?.trim_start_matches('/');
        let joined = format!("{}/{rest}", to.as_ref()?.trim_end_matches('/'));
        Some(match joined.trim_end_matches('/') {
            "" => "/".to_owned(),
            trimmed => trimmed.to_owned(),
        })
    }

    /// Whether it has no lines.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Result<PathMap, PathMapProblem> {
        PathMap::new(pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect())
    }

    #[test]
    fn path_map_uses_the_longest_prefix_of_whole_names() {
        let table = map(&[
            ("/data", "/srv/data"),
            ("/data/hot", "/mnt/ssd"),
            ("/data/hot/keep", "/srv/keep"),
            ("/top", "/"),
        ])
        .unwrap();
        for (path, expected) in [
            ("/data", Some("/srv/data")),
            ("/data/x/y", Some("/srv/data/x/y")),
            ("/database/x", None),
            ("/data.old", None),
            ("/data/hot", Some("/mnt/ssd")),
            ("/data/hot/x", Some("/mnt/ssd/x")),
            ("/data/hotter", Some("/srv/data/hotter")),
            ("/data/hot/keep/x", Some("/srv/keep/x")),
            ("/data/hot/keeper", Some("/mnt/ssd/keeper")),
            ("/top", Some("/")),
            ("/top/x", Some("/x")),
            ("/", None),
            ("/elsewhere", None),
            ("/data/../etc", None),
            ("/data/./x", None),
            ("/data/", None),
            ("/data//x", None),
            ("data/x", None),
            ("", None),
        ] {
            assert_eq!(table.translate(path).as_deref(), expected, "{path:?}");
        }
        let all = map(&[("/", "/host"), ("/data", "/srv")]).unwrap();
        for (path, expected) in [("/", "/host"), ("/etc/x", "/host/etc/x"), ("/data/x", "/srv/x")] {
            assert_eq!(all.translate(path).as_deref(), Some(expected), "{path:?}");
        }
        assert_eq!(map(&[]).unwrap().translate("/data"), None);
    }

    #[test]
    fn path_map_hides_what_the_engine_does_not_see() {
        let pairs =
            [("/data", Some("/srv")), ("/data/memory", None), ("/data/memory/x", Some("/x"))];
        let pairs = pairs.map(|(from, to)| (from.to_owned(), to.map(str::to_owned)));
        let table = PathMap::with_hidden(pairs.to_vec()).unwrap();
        for (path, expected) in [
            ("/data/y", Some("/srv/y")),
            ("/data/memory", None),
            ("/data/memory/y", None),
            ("/data/memory/x/y", Some("/x/y")),
        ] {
            assert_eq!(table.translate(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn path_map_ignores_the_order_of_lines() {
        let one = map(&[("/a", "/1"), ("/a/b", "/2")]).unwrap();
        assert_eq!(one, map(&[("/a/b", "/2"), ("/a", "/1")]).unwrap());
    }

    #[test]
    fn path_maps_that_are_ambiguous_or_malformed_are_refused() {
        let twice = |path: &str| Err(PathMapProblem::Twice(path.to_owned()));
        let not_plain = |path: &str| Err(PathMapProblem::NotPlain(path.to_owned()));
        for (pairs, expected) in [
            (&[("/a", "/1"), ("/b", "/2"), ("/a", "/3")][..], twice("/a")),
            (&[("/a", "/1"), ("/a", "/1")], twice("/a")),
            (&[("/a/", "/1")], not_plain("/a/")),
            (&[("/a", "/1/")], not_plain("/1/")),
            (&[("/a/../b", "/1")], not_plain("/a/../b")),
            (&[("/a", "1")], not_plain("1")),
            (&[("/a//b", "/1")], not_plain("/a//b")),
            (&[("", "/1")], not_plain("")),
        ] {
            assert_eq!(map(pairs).map(drop), expected, "{pairs:?}");
        }
        assert!(map(&[("/a", "/1"), ("/b", "/1")]).is_ok(), "two of ours may be one of the engine");
    }
}
