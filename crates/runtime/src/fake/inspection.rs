//! Looks around in the files of a fake sandbox. The same answers as a guest gives, from a map.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use guest_protocol::look::MAX_LINE_BYTES;
use guest_protocol::message::EntryKind;
use guest_protocol::pattern::matches_any;
use tokio::sync::broadcast::{self, error::RecvError};

use super::faults::Operation;
use super::paths::Last;
use super::sandbox::{Address, FakeSandbox};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::inside::{
    ChangeKind, Changes, FileChange, FileWatch, FindQuery, Found, FoundEntry, MAX_RESULTS,
    SearchQuery, Searched, Socket, TextMatch, WatchQuery,
};

const WORKSPACE: &str = "/workspace";

/// Where the parts of a long line begin that are shown: so much before the text.
const BEFORE_BYTES: usize = 128;

/// Of what is beneath a directory, what is neither hidden nor in a directory that is passed over.
fn is_told(path: &str, kind: EntryKind, exclude: &[String], exclude_hidden: bool) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let last = parts.len() - 1;
    !parts.iter().enumerate().any(|(at, part)| {
        let is_directory = at < last || kind == EntryKind::Directory;
        (exclude_hidden && part.starts_with('.'))
            || (is_directory && exclude.iter().any(|name| name == part))
    })
}

fn last_name(path: &str) -> &[u8] {
    path.rsplit('/').next().unwrap_or_default().as_bytes()
}

fn first_match(line: &[u8], text: &[u8], case_sensitive: bool) -> Option<usize> {
    line.windows(text.len()).position(|window| {
        if case_sensitive { window == text } else { window.eq_ignore_ascii_case(text) }
    })
}

fn shown(line: &[u8], at: usize, length: usize) -> Vec<u8> {
    let from = if at + length <= MAX_LINE_BYTES { 0 } else { at.saturating_sub(BEFORE_BYTES) };
    line[from..].iter().copied().take(MAX_LINE_BYTES).collect()
}

impl FakeSandbox {
    /// Files beneath a directory.
    pub(crate) async fn find_files(&self, query: &FindQuery) -> Result<Found, RuntimeError> {
        self.enter(Operation::Files).await?;
        let path = self.place(WORKSPACE, &query.path, Last::Follow)?;
        let all = self.with_tree(&path, |tree| tree.walk(&path))?;
        let most = query.max_results.min(MAX_RESULTS) as usize;
        let mut found = Found::default();
        for (path, entry) in all {
            let depth = path.split('/').count();
            let is_wanted =
                is_told(&path, entry.kind, &query.exclude_directories, query.exclude_hidden)
                    && query.max_depth.is_none_or(|most| depth <= most as usize)
                    && (query.kinds.is_empty() || query.kinds.contains(&entry.kind))
                    && matches_any(&query.names, last_name(&path));
            if !is_wanted {
                continue;
            }
            if found.entries.len() == most {
                found.truncated = true;
                break;
            }
            found.entries.push(FoundEntry {
                path: path.into_bytes(),
                kind: entry.kind,
                size: entry.size,
                mode: entry.mode,
                modified_ms: entry.modified_ms,
            });
        }
        Ok(found)
    }

    /// Lines with a text in them.
    pub(crate) async fn search_files(&self, query: &SearchQuery) -> Result<Searched, RuntimeError> {
        const STEP: &str = "look into files";
        self.enter(Operation::Files).await?;
        if query.text.is_empty() {
            return Err(RuntimeError::new(RuntimeErrorCode::Invalid, STEP, "the text is empty"));
        }
        let path = self.place(WORKSPACE, &query.path, Last::Follow)?;
        let files = self.with_tree(&path, |tree| match tree.stat(&path)?.kind {
            EntryKind::File => Ok(vec![(String::new(), tree.read(&path)?.1)]),
            EntryKind::Directory | EntryKind::Link | EntryKind::Other => {
                let mut files = Vec::new();
                for (below, entry) in tree.walk(&path)? {
                    let is_wanted = entry.kind == EntryKind::File
                        && is_told(
                            &below,
                            entry.kind,
                            &query.exclude_directories,
                            query.exclude_hidden,
                        )
                        && matches_any(&query.names, last_name(&below));
                    if is_wanted && let Ok((_, bytes)) = tree.read(&format!("{path}/{below}")) {
                        files.push((below, bytes));
                    }
                }
                Ok::<_, RuntimeError>(files)
            }
        })?;
        let most = query.max_results.min(MAX_RESULTS) as usize;
        let mut searched = Searched::default();
        let text = query.text.as_bytes();
        for (path, bytes) in files.into_iter().filter(|(_, bytes)| !bytes.contains(&0)) {
            searched.files += 1;
            for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
                let Some(at) = first_match(line, text, query.case_sensitive) else { continue };
                searched.matches.push(TextMatch {
                    path: path.clone().into_bytes(),
                    line: number as u64 + 1,
                    column: at as u64 + 1,
                    text: shown(line, at, text.len()),
                });
                if searched.matches.len() == most {
                    searched.truncated = true;
                    return Ok(searched);
                }
            }
        }
        Ok(searched)
    }

    /// Where a program listens.
    pub(crate) async fn sockets_of(&self, pid: u32) -> Result<Vec<Socket>, RuntimeError> {
        self.enter(Operation::Ports).await?;
        let state = self.state();
        if !state.processes.iter().any(|process| process.pid == pid && process.lives()) {
            return Err(RuntimeError::new(
                RuntimeErrorCode::ProcessUnknown,
                "look at sockets",
                format!("no process {pid}"),
            ));
        }
        let listening = |(address, listener): (&Address, &(u32, _))| match address {
            Address::Port(port) if listener.0 == pid => Some(Socket {
                pid,
                program: "listen".to_owned(),
                protocol: "tcp".to_owned(),
                local_address: "127.0.0.1".to_owned(),
                local_port: *port,
                remote_address: "0.0.0.0".to_owned(),
                remote_port: 0,
                state: "LISTEN".to_owned(),
            }),
            Address::Port(_) | Address::Path(_) => None,
        };
        Ok(state.listeners.iter().filter_map(listening).collect())
    }

    /// Changes from now on.
    pub(crate) async fn watch_files(
        &self,
        own: Arc<Self>,
        query: &WatchQuery,
    ) -> Result<FileWatch, RuntimeError> {
        self.enter(Operation::Files).await?;
        let path = self.place(WORKSPACE, &query.path, Last::Follow)?;
        let (kind, changes) =
            self.with_tree(&path, |tree| Ok((tree.stat(&path)?.kind, tree.changes())))?;
        if kind != EntryKind::Directory {
            return Err(RuntimeError::new(RuntimeErrorCode::WrongKind, "watch files", path));
        }
        Ok(Box::new(Watch {
            sandbox: own,
            path,
            recursive: query.recursive,
            changes,
            is_over: false,
        }))
    }
}

/// A watch of a directory.
struct Watch {
    sandbox: Arc<FakeSandbox>,
    path: String,
    recursive: bool,
    changes: broadcast::Receiver<FileChange>,
    is_over: bool,
}

impl Watch {
    /// What a change is to this watch.
    fn seen(&mut self, change: FileChange) -> Option<FileChange> {
        if change.path == self.path.as_bytes() {
            self.is_over |= matches!(change.kind, ChangeKind::Removed | ChangeKind::Renamed);
            return None;
        }
        let rest = change.path.strip_prefix(self.path.as_bytes())?.strip_prefix(b"/")?;
        (self.recursive || !rest.contains(&b'/')).then_some(change)
    }
}

impl Changes for Watch {
    fn next(
        &mut self,
    ) -> Pin<Box<dyn Future<Output = Result<Option<FileChange>, RuntimeError>> + Send + '_>> {
        Box::pin(async {
            while !self.is_over {
                let sandbox = Arc::clone(&self.sandbox);
                let change = tokio::select! {
                    change = self.changes.recv() => change,
                    died = sandbox.wait_exited() => return Err(died.error("watch files")),
                };
                match change {
                    Ok(change) => {
                        if let Some(change) = self.seen(change) {
                            return Ok(Some(change));
                        }
                    }
                    Err(RecvError::Lagged(_)) => {
                        let (kind, path) = (ChangeKind::Lost, Vec::new());
                        return Ok(Some(FileChange { kind, path, is_directory: false }));
                    }
                    Err(RecvError::Closed) => self.is_over = true,
                }
            }
            Ok(None)
        })
    }
}
