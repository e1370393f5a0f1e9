//! Files in a map: enough of a filesystem for tests. Pure; paths are lexical, and links are only
//! stored: `paths` follows them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use guest_protocol::message::{Entry, EntryKind, MAX_LINK_TARGET_BYTES};

use tokio::sync::broadcast;

use super::paths::Seen;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::files::Page;
use crate::inside::{ChangeKind, FileChange};

/// Changes that a watch may fall behind.
const MAX_CHANGES: usize = 1024;

/// One file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Directory {
        mode: u32,
    },
    File {
        bytes: Vec<u8>,
        mode: u32,
        /// What all names of a file that has more than one have in common.
        shared: Option<u64>,
    },
    Link {
        target: String,
    },
}

/// A directory as it is made.
const DIRECTORY: Node = Node::Directory { mode: 0o755 };

/// Files by their absolute path, without a slash at the end.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    nodes: BTreeMap<String, Node>,
    max_bytes: u64,
    changes: broadcast::Sender<FileChange>,
}

fn error(code: RuntimeErrorCode, step: &'static str, path: &str) -> RuntimeError {
    RuntimeError::new(code, step, path.to_owned())
}

fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn entry(path: &str, node: &Node) -> Entry {
    let (kind, mode, target, shared) = match node {
        Node::Directory { mode } => (EntryKind::Directory, *mode, None, None),
        Node::File { mode, shared, .. } => (EntryKind::File, *mode, None, *shared),
        Node::Link { target } => (EntryKind::Link, 0o777, Some(target.clone().into()), None),
    };
    Entry { name: name(path).into(), kind, size: size(node), mode, modified_ms: 0, target, shared }
}

fn size(node: &Node) -> u64 {
    match node {
        Node::Directory { .. } => 0,
        Node::File { bytes, .. } => bytes.len() as u64,
        Node::Link { target } => target.len() as u64,
    }
}

impl Tree {
    /// Only these directories, and room for so many bytes.
    pub(crate) fn new(directories: &[&str], max_bytes: u64) -> Self {
        let nodes = directories.iter().map(|path| ((*path).to_owned(), DIRECTORY)).collect();
        Self { nodes, max_bytes, changes: broadcast::Sender::new(MAX_CHANGES) }
    }

    /// Whether there is nothing but these directories, as they were made.
    pub(crate) fn is_like(&self, directories: &[&str]) -> bool {
        self.nodes == Self::new(directories, 0).nodes
    }

    /// What changes from now on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<FileChange> {
        self.changes.subscribe()
    }

    fn changed(&self, kind: ChangeKind, path: &str, is_directory: bool) {
        // Without a watcher the send fails, which is fine.
        let _ = self.changes.send(FileChange { kind, path: path.into(), is_directory });
    }

    /// Everything beneath a directory in the order of names, a directory before what is in it.
    pub(crate) fn walk(&self, path: &str) -> Result<Vec<(String, Entry)>, RuntimeError> {
        const STEP: &str = "look for files";
        match self.node(STEP, path)? {
            Node::Directory { .. } => {}
            Node::File { .. } | Node::Link { .. } => {
                return Err(error(RuntimeErrorCode::WrongKind, STEP, path));
            }
        }
        let skipped = if path == "/" { 1 } else { path.len() + 1 };
        let mut found: Vec<_> = self
            .beneath(path)
            .map(|(child, node)| (child[skipped..].to_owned(), entry(child, node)))
            .collect();
        found.sort_by(|(one, _), (other, _)| one.split('/').cmp(other.split('/')));
        Ok(found)
    }

    pub(crate) fn stat(&self, path: &str) -> Result<Entry, RuntimeError> {
        Ok(entry(path, self.node("stat", path)?))
    }

    pub(crate) fn read(&self, path: &str) -> Result<(Entry, Vec<u8>), RuntimeError> {
        match self.node("read a file", path)? {
            Node::Directory { .. } | Node::Link { .. } => {
                Err(error(RuntimeErrorCode::WrongKind, "read a file", path))
            }
            Node::File { mode, .. } if mode & 0o400 == 0 => {
                Err(error(RuntimeErrorCode::Denied, "read a file", path).with_errno(13))
            }
            node @ Node::File { bytes, .. } => Ok((entry(path, node), bytes.clone())),
        }
    }

    pub(crate) fn write(
        &mut self,
        path: &str,
        bytes: Vec<u8>,
        mode: Option<u32>,
        parents: bool,
    ) -> Result<Entry, RuntimeError> {
        const STEP: &str = "write a file";
        let old = match self.nodes.get(path) {
            Some(Node::Directory { .. } | Node::Link { .. }) => {
                return Err(error(RuntimeErrorCode::WrongKind, STEP, path));
            }
            Some(Node::File { bytes, mode, shared }) => {
                // What has another name does not go.
                Some((if shared.is_some() { 0 } else { bytes.len() }, *mode))
            }
            None => None,
        };
        let used = self.used() - old.map_or(0, |(len, _)| len as u64);
        if used + bytes.len() as u64 > self.max_bytes {
            return Err(error(RuntimeErrorCode::LimitReached, STEP, path).with_errno(28));
        }
        if parents {
            self.make_parents(path)?;
        }
        self.check_parent(STEP, path)?;
        let mode = mode.or(old.map(|(_, mode)| mode)).unwrap_or(0o644);
        let node = Node::File { bytes, mode, shared: None };
        let described = entry(path, &node);
        self.nodes.insert(path.to_owned(), node);
        if old.is_none() {
            self.changed(ChangeKind::Created, path, false);
        }
        self.changed(ChangeKind::Written, path, false);
        Ok(described)
    }

    pub(crate) fn list(
        &self,
        path: &str,
        after: Option<&[u8]>,
        limit: u32,
    ) -> Result<Page, RuntimeError> {
        const STEP: &str = "list a directory";
        match self.node(STEP, path)? {
            Node::Directory { mode } if mode & 0o400 == 0 => {
                return Err(error(RuntimeErrorCode::Denied, STEP, path).with_errno(13));
            }
            Node::Directory { .. } => {}
            Node::File { .. } | Node::Link { .. } => {
                return Err(error(RuntimeErrorCode::WrongKind, STEP, path));
            }
        }
        let mut found = self
            .beneath(path)
            .filter(|(child, _)| parent(child) == path)
            .filter(|(child, _)| after.is_none_or(|after| name(child).as_bytes() > after))
            .map(|(child, node)| entry(child, node));
        let entries: Vec<_> = found.by_ref().take(limit as usize).collect();
        Ok(Page { entries, more: found.next().is_some() })
    }

    pub(crate) fn make_directory(&mut self, path: &str, parents: bool) -> Result<(), RuntimeError> {
        const STEP: &str = "make a directory";
        match self.nodes.get(path) {
            Some(Node::Directory { .. }) if parents => return Ok(()),
            Some(_) => return Err(error(RuntimeErrorCode::Exists, STEP, path)),
            None => {}
        }
        if parents {
            self.make_parents(path)?;
        }
        self.check_parent(STEP, path)?;
        self.nodes.insert(path.to_owned(), DIRECTORY);
        self.changed(ChangeKind::Created, path, true);
        Ok(())
    }

    pub(crate) fn make_link(&mut self, path: &str, target: &str) -> Result<(), RuntimeError> {
        const STEP: &str = "make a link";
        if target.is_empty() || target.len() > MAX_LINK_TARGET_BYTES || target.contains('\0') {
            return Err(error(RuntimeErrorCode::Invalid, STEP, path));
        }
        if self.nodes.contains_key(path) {
            return Err(error(RuntimeErrorCode::Exists, STEP, path).with_errno(17));
        }
        self.make_parents(path)?;
        self.check_parent(STEP, path)?;
        self.nodes.insert(path.to_owned(), Node::Link { target: target.to_owned() });
        self.changed(ChangeKind::Created, path, false);
        Ok(())
    }

    /// Another name of a file. A write through one name replaces the file, so that the names part.
    pub(crate) fn link_file(&mut self, path: &str, target: &str) -> Result<(), RuntimeError> {
        const STEP: &str = "give a file another name";
        if self.nodes.contains_key(path) {
            return Err(error(RuntimeErrorCode::Exists, STEP, path).with_errno(17));
        }
        let named = self.nodes.values().filter_map(|node| match node {
            Node::File { shared, .. } => *shared,
            Node::Directory { .. } | Node::Link { .. } => None,
        });
        let next = named.max().unwrap_or(0) + 1;
        match self.nodes.get_mut(target) {
            Some(Node::File { shared, .. }) => *shared = shared.or(Some(next)),
            Some(Node::Directory { .. } | Node::Link { .. }) => {
                return Err(error(RuntimeErrorCode::Denied, STEP, target));
            }
            None => return Err(error(RuntimeErrorCode::NotFound, STEP, target).with_errno(2)),
        }
        self.make_parents(path)?;
        self.check_parent(STEP, path)?;
        let node = self.node(STEP, target)?.clone();
        self.nodes.insert(path.to_owned(), node);
        self.changed(ChangeKind::Created, path, false);
        Ok(())
    }

    /// Permissions; when something was written is not known here.
    pub(crate) fn set_metadata(
        &mut self,
        path: &str,
        new_mode: Option<u32>,
        _modified_ms: Option<i64>,
    ) -> Result<(), RuntimeError> {
        const STEP: &str = "change file metadata";
        self.node(STEP, path)?;
        if let (Some(Node::Directory { mode } | Node::File { mode, .. }), Some(new_mode)) =
            (self.nodes.get_mut(path), new_mode)
        {
            *mode = new_mode;
        }
        self.changed(ChangeKind::About, path, self.is_directory(path));
        Ok(())
    }

    /// What is at a path.
    pub(crate) fn look(&self, path: &str) -> Seen {
        match self.nodes.get(path) {
            None => Seen::Nothing,
            Some(Node::Link { target }) => Seen::Link(target.clone()),
            Some(Node::Directory { .. } | Node::File { .. }) => Seen::Something,
        }
    }

    pub(crate) fn rename(
        &mut self,
        from: &str,
        to: &str,
        overwrite: bool,
    ) -> Result<(), RuntimeError> {
        const STEP: &str = "move a file";
        self.node(STEP, from)?;
        self.check_parent(STEP, to)?;
        if to.starts_with(&format!("{from}/")) {
            return Err(error(RuntimeErrorCode::Invalid, STEP, to));
        }
        if self.nodes.contains_key(to) {
            if !overwrite {
                return Err(error(RuntimeErrorCode::Exists, STEP, to));
            }
            self.remove(to, false)?;
        }
        let is_directory = self.is_directory(from);
        let moved: Vec<String> = self.subtree(from);
        for old in moved {
            if let Some(node) = self.nodes.remove(&old) {
                self.nodes.insert(format!("{to}{}", &old[from.len()..]), node);
            }
        }
        self.changed(ChangeKind::Renamed, from, is_directory);
        self.changed(ChangeKind::Created, to, is_directory);
        Ok(())
    }

    pub(crate) fn remove(&mut self, path: &str, recursive: bool) -> Result<(), RuntimeError> {
        const STEP: &str = "remove a file";
        self.node(STEP, path)?;
        if !recursive && self.beneath(path).next().is_some() {
            return Err(error(RuntimeErrorCode::WrongKind, STEP, path).with_errno(39));
        }
        for gone in self.subtree(path).into_iter().rev() {
            let is_directory = self.is_directory(&gone);
            self.nodes.remove(&gone);
            self.changed(ChangeKind::Removed, &gone, is_directory);
        }
        Ok(())
    }

    fn node(&self, step: &'static str, path: &str) -> Result<&Node, RuntimeError> {
        self.nodes
            .get(path)
            .ok_or_else(|| error(RuntimeErrorCode::NotFound, step, path).with_errno(2))
    }

    fn is_directory(&self, path: &str) -> bool {
        matches!(self.nodes.get(path), Some(Node::Directory { .. }))
    }

    fn check_parent(&self, step: &'static str, path: &str) -> Result<(), RuntimeError> {
        match self.node(step, parent(path))? {
            Node::Directory { .. } => Ok(()),
            Node::File { .. } | Node::Link { .. } => {
                Err(error(RuntimeErrorCode::WrongKind, step, path))
            }
        }
    }

    fn make_parents(&mut self, path: &str) -> Result<(), RuntimeError> {
        let above = parent(path);
        if above == "/" || self.nodes.contains_key(above) {
            return Ok(());
        }
        self.make_directory(above, true)
    }

    fn used(&self) -> u64 {
        let mut counted = BTreeSet::new();
        let nodes = self.nodes.values().filter(|node| match node {
            Node::File { shared: Some(shared), .. } => counted.insert(*shared),
            Node::File { .. } | Node::Directory { .. } | Node::Link { .. } => true,
        });
        nodes.map(size).sum()
    }

    fn beneath(&self, path: &str) -> impl Iterator<Item = (&String, &Node)> {
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        self.nodes
            .range::<String, _>((Bound::Excluded(&prefix), Bound::Unbounded))
            .take_while(move |(child, _)| child.starts_with(&prefix))
            .collect::<Vec<_>>()
            .into_iter()
    }

    fn subtree(&self, path: &str) -> Vec<String> {
        let own = std::iter::once(path.to_owned());
        own.chain(self.beneath(path).map(|(child, _)| child.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_listed_in_pages_and_moved_whole() {
        let mut tree = Tree::new(&["/", "/w"], 10);
        for path in ["/w/d/a", "/w/d/b", "/w/d/e/f"] {
            tree.write(path, vec![1], None, true).unwrap();
        }
        let page = tree.list("/w/d", Some(b"a"), 1).unwrap();
        assert_eq!((page.entries[0].name.as_slice(), page.more), (&b"b"[..], true));
        let page = tree.list("/w/d", Some(b"b"), 9).unwrap();
        assert_eq!((page.entries.len(), page.more), (1, false));
        tree.rename("/w/d", "/w/g", false).unwrap();
        assert_eq!(tree.read("/w/g/e/f").unwrap().1, [1]);
        assert_eq!(tree.remove("/w/g", false).unwrap_err().code, RuntimeErrorCode::WrongKind);
        tree.remove("/w/g", true).unwrap();
        assert_eq!(tree.stat("/w/g/a").unwrap_err().code, RuntimeErrorCode::NotFound);
        let full = tree.write("/w/x", vec![0; 11], None, false).unwrap_err();
        assert_eq!(full.code, RuntimeErrorCode::LimitReached);
    }

    #[test]
    fn seed_archive_keeps_links() {
        let mut tree = Tree::new(&["/", "/w"], 10);
        tree.make_link("/w/d/l", "../f").unwrap();
        let entry = tree.stat("/w/d/l").unwrap();
        assert_eq!((entry.kind, entry.size, entry.mode), (EntryKind::Link, 4, 0o777));
        assert_eq!(entry.target.as_deref(), Some(&b"../f"[..]));
        assert_eq!(tree.look("/w/d/l"), Seen::Link("../f".to_owned()));
        let again = tree.make_link("/w/d/l", "x").unwrap_err();
        assert_eq!(again.code, RuntimeErrorCode::Exists);
        tree.rename("/w/d/l", "/w/m", false).unwrap();
        tree.remove("/w/m", false).unwrap();
        assert_eq!(tree.look("/w/m"), Seen::Nothing);
    }
}
