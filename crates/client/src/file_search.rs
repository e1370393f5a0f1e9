//! Looking around among the files of a sandbox, and watching them.

use std::time::Duration;

use tokio::time::timeout;
use wire::{AboutRequest, FileEntry, FileEvent, FileTree, FoundList, LinkRequest, SearchResult};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::events::STREAM;
use crate::inside::Inside;
use crate::lines::{Events, Lines};
use crate::query::Target;

/// Which files.
#[derive(Debug, Clone, Default)]
pub struct FileFilter {
    /// Whose last name is like one of these.
    pub names: Vec<String>,
    /// Of one of these kinds: `file`, `directory`, `link`, `other`.
    pub kinds: Vec<String>,
    /// Not in directories of these names.
    pub exclude: Vec<String>,
    /// Nor what begins with a dot.
    pub exclude_hidden: bool,
    /// How far down.
    pub depth: Option<u32>,
    /// At most so many.
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
    fn look(&self, how: &str, path: &str) -> Target {
        self.at().part("files").part(how).with("path", path)
    }

    /// What is beneath a directory.
    #[boxed]
    pub async fn tree(&self, path: &str, filter: &FileFilter) -> Result<FileTree, ClientError> {
        self.client.json(Call::get(filter.of(self.look("tree", path)))).await
    }

    /// Files beneath a directory.
    #[boxed]
    pub async fn find(&self, path: &str, filter: &FileFilter) -> Result<FoundList, ClientError> {
        self.client.json(Call::get(filter.of(self.look("find", path)))).await
    }

    /// A text in the files beneath a directory, or in one file.
    #[boxed]
    pub async fn search(
        &self,
        path: &str,
        text: &str,
        ignore_case: bool,
        filter: &FileFilter,
    ) -> Result<SearchResult, ClientError> {
        let target = self.look("search", path).with("text", text);
        let target = target.maybe("ignore_case", ignore_case.then_some(true));
        self.client.json(Call::get(filter.of(target))).await
    }

    /// Changes the permissions of a file, or when it was last written.
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

    /// What changes in a directory; it is armed when this is answered.
    #[boxed]
    pub async fn watch(&self, path: &str, recursive: bool) -> Result<WatchStream, ClientError> {
        let target = self.look("watch", path).maybe("recursive", recursive.then_some(true));
        let mut call = Call::get(target).accept(STREAM);
        let answer = self.client.stream(&mut call).await?;
        let quiet = self.client.patience().quiet;
        let lines = Lines::new(answer.into_body());
        let mut stream = WatchStream { lines, events: Events::default(), quiet, over: false };
        match stream.next().await? {
            Some(FileEvent::Armed) => Ok(stream),
            other => Err(ClientError::cut(format!("a watch that began with {other:?}"))),
        }
    }
}

/// What changes, as it happens. A watch that is cut off cannot be taken up: what changed meanwhile is
/// not known.
pub struct WatchStream {
    lines: Lines,
    events: Events,
    quiet: Duration,
    over: bool,
}

impl WatchStream {
    /// What comes next; none after the end. Safe to drop while waiting.
    pub async fn next(&mut self) -> Result<Option<FileEvent>, ClientError> {
        while !self.over {
            let line = timeout(self.quiet, self.lines.next()).await;
            let line = line.map_err(|_| ClientError::cut("nothing was heard for too long"))??;
            let Some(line) = line else {
                self.over = true;
                return Err(ClientError::cut("the watch was cut off"));
            };
            let Some(told) = self.events.line(&line) else { continue };
            let event = serde_json::from_str(&told.data).map_err(ClientError::cut)?;
            self.over = matches!(event, FileEvent::Gone | FileEvent::Error { .. });
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
        f.debug_struct("WatchStream").field("over", &self.over).finish_non_exhaustive()
    }
}
