//! Searches and watches the files of a sandbox.

use std::time::Duration;

use tokio::time::timeout;
use wire::{AboutRequest, FileEntry, FileEvent, FileTree, FoundList, LinkRequest, SearchResult};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::events::STREAM;
use crate::inside::Inside;
use crate::lines::{Lines, SseParser};
use crate::query::Target;

/// Selects files.
#[derive(Debug, Clone, Default)]
pub struct FileFilter {
    /// Whose last name matches one of these.
    pub names: Vec<String>,
    /// Of one of these kinds: `file`, `directory`, `link`, `other`.
    pub kinds: Vec<String>,
    /// Not in directories of these names.
    pub exclude: Vec<String>,
    /// Without names that begin with a dot.
    pub exclude_hidden: bool,
    /// How many levels deep.
    pub depth: Option<u32>,
    /// At most this many.
    pub limit: Option<u32>,
}

impl FileFilter {
    fn of(&self, mut target: Target) -> Target {
        for (name, values) in
            [("name", &self.names), ("kind", &self.kinds), ("exclude", &self.exclude)]
        {
            for value in values {
                target = target.with(name, value);
            }
        }
        target
            .maybe("exclude_hidden", self.exclude_hidden.then_some(true))
            .maybe("depth", self.depth)
            .maybe("limit", self.limit)
    }
}

impl Inside {
    fn files_route(&self, how: &str, path: &str) -> Target {
        self.at().part("files").part(how).with("path", path)
    }

    /// The tree below a directory.
    #[boxed]
    pub async fn tree(&self, path: &str, filter: &FileFilter) -> Result<FileTree, ClientError> {
        self.client.json(Call::get(filter.of(self.files_route("tree", path)))).await
    }

    /// Files below a directory.
    #[boxed]
    pub async fn find(&self, path: &str, filter: &FileFilter) -> Result<FoundList, ClientError> {
        self.client.json(Call::get(filter.of(self.files_route("find", path)))).await
    }

    /// Searches for a text in the files below a directory, or in one file.
    #[boxed]
    pub async fn search(
        &self,
        path: &str,
        text: &str,
        ignore_case: bool,
        filter: &FileFilter,
    ) -> Result<SearchResult, ClientError> {
        let target = self.files_route("search", path).with("text", text);
        let target = target.maybe("ignore_case", ignore_case.then_some(true));
        self.client.json(Call::get(filter.of(target))).await
    }

    /// Changes the permissions or the modification time of a file.
    #[boxed]
    pub async fn change_file(
        &self,
        path: &str,
        about: &AboutRequest,
    ) -> Result<FileEntry, ClientError> {
        let target = self.at().part("files").with("path", path);
        self.client.json(Call::patch(target).json(about)?).await
    }

    /// Makes a symbolic link.
    #[boxed]
    pub async fn make_link(&self, path: &str, target: &str) -> Result<(), ClientError> {
        let request = LinkRequest { path: path.to_owned(), target: target.to_owned() };
        self.client.done(Call::post(self.at().part("files").part("link")).json(&request)?).await
    }

    /// Watches a directory. Changes after this call returned are reported.
    #[boxed]
    pub async fn watch(&self, path: &str, recursive: bool) -> Result<WatchStream, ClientError> {
        let target = self.files_route("watch", path).maybe("recursive", recursive.then_some(true));
        let mut call = Call::get(target).accept(STREAM);
        let answer = self.client.stream(&mut call).await?;
        let quiet = self.client.patience().quiet;
        let lines = Lines::new(answer.into_body());
        let mut stream = WatchStream { lines, events: SseParser::default(), quiet, ended: false };
        match stream.next().await? {
            Some(FileEvent::Armed) => Ok(stream),
            other => Err(ClientError::cut(format!("the watch began with {other:?}"))),
        }
    }
}

/// Changes as they happen. A broken watch cannot resume: changes meanwhile are unknown.
pub struct WatchStream {
    lines: Lines,
    events: SseParser,
    quiet: Duration,
    ended: bool,
}

impl WatchStream {
    /// The next change; none after the end. Safe to drop while waiting.
    pub async fn next(&mut self) -> Result<Option<FileEvent>, ClientError> {
        while !self.ended {
            let line = timeout(self.quiet, self.lines.next()).await;
            let line =
                line.map_err(|_| ClientError::cut("the server sent nothing for too long"))??;
            let Some(line) = line else {
                self.ended = true;
                return Err(ClientError::cut("the connection of the watch ended"));
            };
            let Some(event) = self.events.line(&line) else { continue };
            let event = serde_json::from_str(&event.data).map_err(ClientError::cut)?;
            self.ended = matches!(event, FileEvent::Gone | FileEvent::Error { .. });
            return match event {
                FileEvent::Error { problem } => Err(ClientError::Problem(problem)),
                FileEvent::Armed
                | FileEvent::Created(_)
                | FileEvent::Written(_)
                | FileEvent::Removed(_)
                | FileEvent::Renamed(_)
                | FileEvent::About(_)
                | FileEvent::Lost
                | FileEvent::Gone => Ok(Some(event)),
            };
        }
        Ok(None)
    }
}

impl std::fmt::Debug for WatchStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchStream").field("ended", &self.ended).finish_non_exhaustive()
    }
}
