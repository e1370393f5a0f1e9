//! Inspection of a sandbox (find, search, watch, sockets): a process of the guest writes its
//! findings to a pipe. If the call is dropped, the process is killed. Only a bounded amount of its
//! output is read.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use guest_protocol::look::{Change, Look, Sighting, Sightings, Until, Which};
use guest_protocol::message::{Pipe, Request, lane};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use super::GuestLink;
use super::call::Call;
use super::channel::Kind;
use super::lanes::LaneReader;
use super::pipes::{self, PipeReader};
use super::programs::Program;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::exec::Process;
use crate::files::ByteReader;
use crate::inside::{
    ChangeKind, Changes, FileChange, FileWatch, FindQuery, Found, FoundEntry, MAX_RESULTS,
    SearchQuery, Searched, Socket, TextMatch, WatchQuery,
};

/// How long an inspection may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// After this time it returns what it has found so far.
const LOOK_TIME_MS: u32 = 25_000;

/// How much of its output is read: names and lines may be long.
const LOOK_BYTES: usize = 8 << 20;

/// What is read at once.
const PIECE_BYTES: usize = 64 * 1024;

impl GuestLink {
    /// Looks for files beneath a directory.
    pub(super) async fn find_files(&self, query: &FindQuery) -> Result<Found, RuntimeError> {
        const STEP: &str = "look for files";
        let results = query.max_results.min(MAX_RESULTS);
        let look = Look::Find {
            path: query.path.clone(),
            which: Which {
                names: query.names.clone(),
                exclude_directories: query.exclude_directories.clone(),
                exclude_hidden: query.exclude_hidden,
            },
            kinds: query.kinds.clone(),
            max_depth: query.max_depth,
            until: Until { results, time_ms: LOOK_TIME_MS },
        };
        let mut entries = Vec::new();
        let end = self
            .look(STEP, look, |sighting| {
                let Sighting::File { path, kind, size, mode, modified_ms } = sighting else {
                    return false;
                };
                entries.push(FoundEntry { path, kind, size, mode, modified_ms });
                entries.len() <= results as usize
            })
            .await?;
        Ok(Found { entries, truncated: end.truncated, unreadable: end.count })
    }

    /// Looks for a text in files beneath a directory.
    pub(super) async fn search_files(&self, query: &SearchQuery) -> Result<Searched, RuntimeError> {
        const STEP: &str = "look into files";
        let results = query.max_results.min(MAX_RESULTS);
        let look = Look::Search {
            path: query.path.clone(),
            text: query.text.clone(),
            case_sensitive: query.case_sensitive,
            which: Which {
                names: query.names.clone(),
                exclude_directories: query.exclude_directories.clone(),
                exclude_hidden: query.exclude_hidden,
            },
            until: Until { results, time_ms: LOOK_TIME_MS },
        };
        let mut matches = Vec::new();
        let end = self
            .look(STEP, look, |sighting| {
                let Sighting::Match { path, line, column, text } = sighting else { return false };
                matches.push(TextMatch { path, line, column, text });
                matches.len() <= results as usize
            })
            .await?;
        Ok(Searched { matches, truncated: end.truncated, files: end.count })
    }

    /// Sockets of a program and of everything that descends from it.
    pub(super) async fn sockets_of(&self, pid: u32) -> Result<Vec<Socket>, RuntimeError> {
        let mut sockets = Vec::new();
        self.look("look at sockets", Look::Sockets { pid }, |sighting| {
            let Sighting::Socket {
                pid,
                program,
                protocol,
                local_address,
                local_port,
                remote_address,
                remote_port,
                state,
            } = sighting
            else {
                return false;
            };
            sockets.push(Socket {
                pid,
                program,
                protocol,
                local_address,
                local_port,
                remote_address,
                remote_port,
                state,
            });
            sockets.len() <= MAX_RESULTS as usize
        })
        .await
        .map_err(|error| {
            let is_unknown = error.code == RuntimeErrorCode::NotFound;
            let code = if is_unknown { RuntimeErrorCode::ProcessUnknown } else { error.code };
            RuntimeError { code, ..error }
        })?;
        Ok(sockets)
    }

    /// Watches a directory; done when the watch is armed.
    pub(super) async fn watch_files(&self, query: &WatchQuery) -> Result<FileWatch, RuntimeError> {
        const STEP: &str = "watch files";
        let look = Look::Watch { path: query.path.clone(), recursive: query.recursive };
        let mut inspection = self.begin(STEP, look)?;
        match timeout(LOOK_TIMEOUT, inspection.next()).await {
            Err(_) => Err(RuntimeError::deadline(STEP)),
            Ok(Err(error)) => Err(error),
            Ok(Ok(Some(Sighting::Armed))) => Ok(Box::new(inspection)),
            Ok(Ok(_)) => Err(inspection.ended_early()),
        }
    }

    /// Passes each finding to `take` until the end. A finding that it does not take is a protocol
    /// error.
    async fn look(
        &self,
        step: &'static str,
        look: Look,
        mut take: impl FnMut(Sighting) -> bool,
    ) -> Result<InspectionEnd, RuntimeError> {
        let mut inspection = self.begin(step, look)?;
        let looking = async {
            let mut bytes = 0;
            loop {
                match inspection.next().await? {
                    Some(Sighting::Over { truncated, count }) => {
                        return Ok(InspectionEnd { truncated, count });
                    }
                    Some(sighting) => {
                        bytes += weight(&sighting);
                        if bytes > LOOK_BYTES {
                            return Ok(InspectionEnd { truncated: true, count: 0 });
                        }
                        if !take(sighting) {
                            return Err(inspection.ended_early());
                        }
                    }
                    None => return Err(inspection.ended_early()),
                }
            }
        };
        timeout(LOOK_TIMEOUT, looking).await.map_err(|_| RuntimeError::deadline(step))?
    }

    fn begin(&self, step: &'static str, look: Look) -> Result<Inspection, RuntimeError> {
        let mut passed: Vec<OwnedFd> = Vec::new();
        let (output, pipe) = if self.connection.settings.pass_descriptors {
            let (ours, theirs) = pipes::output()?;
            passed.push(theirs);
            (Pipe::Passed, Some(ours))
        } else {
            (Pipe::Lane, None)
        };
        let request = Request::Look { look: Box::new(look), output };
        let kind = Kind::Program { main: false, output: output == Pipe::Lane };
        let call = Arc::new(Call::open(&self.connection, step, kind, &request, passed)?);
        // From here on, dropping it kills the process.
        let process = Process::new(Arc::new(Program::new(Arc::clone(&call))));
        let reader: ByteReader = match pipe {
            Some(pipe) => Box::new(PipeReader::new(pipe, call, lane::STDOUT)),
            None => Box::new(LaneReader::new(call, lane::STDOUT)),
        };
        let buffer = vec![0; PIECE_BYTES];
        Ok(Inspection {
            step,
            reader,
            process,
            sightings: Sightings::default(),
            buffer,
            has_ended: false,
        })
    }
}

/// How an inspection ended.
struct InspectionEnd {
    truncated: bool,
    count: u64,
}

/// An inspection in progress.
struct Inspection {
    step: &'static str,
    reader: ByteReader,
    process: Process,
    sightings: Sightings,
    buffer: Vec<u8>,
    has_ended: bool,
}

impl Inspection {
    /// The next finding; none if the process ended without one. A dropped call loses nothing.
    async fn next(&mut self) -> Result<Option<Sighting>, RuntimeError> {
        loop {
            let taken = self.sightings.take().map_err(|error| {
                RuntimeError::new(RuntimeErrorCode::Protocol, self.step, error.to_string())
            })?;
            match taken {
                Some(Sighting::Failed(fault)) => {
                    return Err(RuntimeError::from_fault(self.step, fault));
                }
                Some(sighting) => return Ok(Some(sighting)),
                None => {}
            }
            let read = self
                .reader
                .read(&mut self.buffer)
                .await
                .map_err(|error| RuntimeError::from_io(self.step, error))?;
            if read == 0 {
                // The exit of the process says why it did not begin, or how it was ended.
                self.process
                    .wait()
                    .await
                    .map_err(|error| RuntimeError { step: self.step.into(), ..error })?;
                return Ok(None);
            }
            self.sightings.feed(&self.buffer[..read]);
        }
    }

    fn ended_early(&self) -> RuntimeError {
        let cause = "the inspection was ended before it was done";
        RuntimeError::new(RuntimeErrorCode::System, self.step, cause)
    }
}

impl Changes for Inspection {
    fn next(
        &mut self,
    ) -> Pin<Box<dyn Future<Output = Result<Option<FileChange>, RuntimeError>> + Send + '_>> {
        Box::pin(async {
            if self.has_ended {
                return Ok(None);
            }
            match Self::next(self).await? {
                Some(Sighting::Change { kind, path, is_directory }) => {
                    Ok(Some(FileChange { kind: changed(kind), path, is_directory }))
                }
                Some(Sighting::Over { .. }) => {
                    self.has_ended = true;
                    Ok(None)
                }
                Some(
                    Sighting::Armed
                    | Sighting::File { .. }
                    | Sighting::Match { .. }
                    | Sighting::Socket { .. }
                    | Sighting::Failed(_),
                )
                | None => Err(self.ended_early()),
            }
        })
    }
}

/// The memory of one finding, roughly.
fn weight(sighting: &Sighting) -> usize {
    let text = match sighting {
        Sighting::File { path, .. } | Sighting::Change { path, .. } => path.len(),
        Sighting::Match { path, text, .. } => path.len() + text.len(),
        Sighting::Socket { program, local_address, remote_address, .. } => {
            program.len() + local_address.len() + remote_address.len()
        }
        Sighting::Armed | Sighting::Over { .. } | Sighting::Failed(_) => 0,
    };
    size_of::<Sighting>() + text
}

fn changed(kind: Change) -> ChangeKind {
    match kind {
        Change::Created => ChangeKind::Created,
        Change::Written => ChangeKind::Written,
        Change::Removed => ChangeKind::Removed,
        Change::Renamed => ChangeKind::Renamed,
        Change::About => ChangeKind::About,
        Change::Lost => ChangeKind::Lost,
    }
}
