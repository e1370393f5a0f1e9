//! A backup, as a stream of tar bytes: the files of every session as one archive each, the seed
//! archives, then the database. The node keeps working meanwhile.
//!
//! The database is copied first and sent last. Every session in the copy has its files in the
//! backup, as of the copy or later; they are read as for a fork. A session that is deleted in
//! between, or was still being created, is removed from the copy, so that none is incomplete. Keys
//! are not included: an operator who may read their files adds them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::record::{Journal, Owner, SandboxRecord};
use model::template::WorkspaceKind;
use model::{
    EndCause, ErrorCode, Refusal, SeedId, SessionId, SessionStatus, Template, TemplateName,
    WorkspaceId,
};
use runtime::{RuntimeError, RuntimeErrorCode};
use serde_json::json;
use store::Store;
use tar_stream::{Kind, NewEntry, end, padding};
use tasks::spawn_blocking;
use tokio::sync::OwnedMutexGuard;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{sleep, timeout};
use workspaces::{Archives, Seeds, WorkspaceError, Workspaces};

use crate::Engine;
use crate::boxed;
use crate::core::Core;
use crate::documents::refused as store_refused;
use crate::effects::EffectError;
use crate::workspace_persistence;

/// The member that marks the backup as complete.
const COMPLETE: &str = "complete.json";
/// The member that says why the backup is incomplete.
const FAILED: &str = "failed.json";

/// Pieces that may wait for the client.
const PIECES: usize = 4;
const PIECE_BYTES: usize = 256 << 10;

/// How often the files of a session are tried, and how long one try may take.
const TRIES: u32 = 8;
const TRY: Duration = Duration::from_mins(30);
const PAUSE: Duration = Duration::from_millis(250);

/// Ids of archives that are made for a backup and removed after it begin with this. Those of
/// sessions never do: they begin with the time.
const SPOOL: u128 = 0x6261_636b_7570_0000 << 64;

/// Whether an archive was made for a backup, by its id: if a killed server left one, it is useless.
pub(crate) fn is_spool(id: WorkspaceId) -> bool {
    id.as_u128() >> 64 == SPOOL >> 64
}

/// A backup in progress. It is given up when this is dropped.
#[derive(Debug)]
pub struct Backup {
    pieces: Receiver<Bytes>,
}

impl Backup {
    /// The next bytes; none at the end. A failure is reported in the last member.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.pieces.recv().await
    }
}

/// What a backup needs where no server runs.
#[derive(Clone)]
pub struct StoppedNode {
    /// Its store.
    pub store: Arc<dyn Store>,
    /// Its workspaces.
    pub workspaces: Arc<Workspaces>,
    /// Its archives.
    pub archives: Archives,
    /// Its seed archives.
    pub seeds: Seeds,
}

impl std::fmt::Debug for StoppedNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoppedNode").finish_non_exhaustive()
    }
}

impl StoppedNode {
    /// Begins a backup. Nothing else may use the node's files meanwhile.
    #[boxed]
    pub async fn backup(self) -> Result<Backup, Refusal> {
        let Self { store, workspaces, archives, seeds } = self;
        let parts = Parts {
            store,
            archives,
            workspaces: Some(workspaces),
            seeds: Some(seeds),
            live: None,
            _alone: None,
        };
        parts.begin().await
    }
}

impl Engine {
    /// Begins a backup of everything that outlives this server, except its keys.
    #[boxed]
    pub async fn backup(&self) -> Result<Backup, Refusal> {
        let disk = &self.core.disk;
        let Some(archives) = disk.archives.clone() else {
            let cause = "this node has no directory for archives";
            return Err(Refusal::new(ErrorCode::Unsupported, cause));
        };
        let Ok(alone) = Arc::clone(&disk.backing_up).try_lock_owned() else {
            let cause = "another backup is being made";
            return Err(Refusal::new(ErrorCode::Overloaded, cause).retry_after(5_000));
        };
        let parts = Parts {
            store: Arc::clone(&self.core.store),
            archives,
            workspaces: disk.workspaces.clone(),
            seeds: disk.seeds.clone(),
            live: Some(Arc::clone(&self.core)),
            _alone: Some(alone),
        };
        parts.begin().await
    }
}

struct Parts {
    store: Arc<dyn Store>,
    archives: Archives,
    workspaces: Option<Arc<Workspaces>>,
    seeds: Option<Seeds>,
    /// The server, if one runs.
    live: Option<Arc<Core>>,
    _alone: Option<OwnedMutexGuard<()>>,
}

/// A file that is removed after its use.
struct Spooled(PathBuf);

impl Drop for Spooled {
    fn drop(&mut self) {
        // A file that stays is removed at the next start.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Why a backup ends early.
enum Stopped {
    /// The client is gone.
    Unwanted,
    Failed(Refusal),
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        Self::Failed(refusal)
    }
}

/// Seed archives, held open: one that is removed meanwhile can still be read.
type OpenSeeds = BTreeMap<SeedId, (String, File)>;

impl Parts {
    async fn begin(self) -> Result<Backup, Refusal> {
        let copy = Spooled(self.archives.spool(&format!("backup-{:016x}.db", random()?)));
        // The archives that are named now, and those that are named until the database is copied: a
        // stored archive has minutes to get its name.
        let mut seeds = OpenSeeds::new();
        seeds = self.open_seeds(seeds).await?;
        let journal = self.store.backup(&copy.0).await.map_err(|error| store_refused(&error))?;
        seeds = self.open_seeds(seeds).await?;
        let (to, pieces) = channel(PIECES);
        tasks::spawn(async move {
            let mut members = Members { to };
            let stopped = match self.send_all(&mut members, &journal, seeds, &copy).await {
                Ok(()) | Err(Stopped::Unwanted) => return,
                Err(Stopped::Failed(refusal)) => refusal,
            };
            tracing::error!(cause = %stopped, "a backup failed; its last member says why");
            let code = stopped.code.as_str();
            let said = json!({ "code": code, "cause": stopped.cause }).to_string();
            let _ = members.bytes(FAILED, said.as_bytes()).await;
            let _ = members.end().await;
        });
        Ok(Backup { pieces })
    }

    async fn open_seeds(&self, mut open: OpenSeeds) -> Result<OpenSeeds, Refusal> {
        let Some(seeds) = self.seeds.clone() else { return Ok(open) };
        blocking(move || {
            for seed in seeds.list() {
                if !open.contains_key(&seed)
                    && let Some(file) = seeds.open_file(seed)?
                {
                    open.insert(seed, file);
                }
            }
            Ok(open)
        })
        .await
    }

    async fn send_all(
        &self,
        members: &mut Members,
        journal: &Journal,
        seeds: OpenSeeds,
        copy: &Spooled,
    ) -> Result<(), Stopped> {
        let (mut archives, mut gone) = (0_u64, Vec::new());
        let mut taken = BTreeSet::new();
        for (id, session) in self.needed(journal) {
            match self.take(id).await? {
                Some(file) => {
                    let name = format!("archives/{}", Archives::file_name(id));
                    members.file(&name, file).await?;
                    taken.insert(id);
                    archives += 1;
                }
                None => gone.extend(session),
            }
        }
        // Files in memory were packed as they are now: the copy must say that they are saved.
        let mut saved = in_memory_of(journal);
        saved.retain(|id| taken.contains(id));
        if !saved.is_empty() {
            let noted = self.store.mark_saved_in_backup(&copy.0, &saved).await;
            noted.map_err(|error| store_refused(&error))?;
        }
        for (name, file) in seeds.into_values() {
            members.file(&format!("seeds/{name}"), file).await?;
        }
        let (deleted, missing) = self.judge(gone, journal).await?;
        if !deleted.is_empty() {
            let forgotten = self.store.remove_from_backup(&copy.0, &deleted).await;
            forgotten.map_err(|error| store_refused(&error))?;
        }
        let database = File::open(&copy.0).map_err(|error| unreadable(&error))?;
        members.file("shoal.db", database).await?;
        let said = json!({
            "sessions": journal.sessions.len() - deleted.len(),
            "archives": archives,
            "without_files": missing,
        });
        members.bytes(COMPLETE, said.to_string().as_bytes()).await?;
        members.end().await
    }

    /// The workspaces that a backup must contain, and their sessions. All archives belong to
    /// sessions.
    fn needed(&self, journal: &Journal) -> BTreeMap<WorkspaceId, Option<SessionId>> {
        let archives = self.archives.list().into_keys().filter(|id| !is_spool(*id));
        let mut needed: BTreeMap<_, _> = archives.map(|id| (id, None)).collect();
        for record in &journal.sandboxes {
            match record.owner {
                // Files in memory may never have been saved, and exist all the same.
                Owner::Session(session) if record.has_files || record.instance.is_some() => {
                    needed.insert(record.workspace, Some(session));
                }
                Owner::Session(_) | Owner::Unowned | Owner::Lease(_) => {}
            }
            if record.doomed {
                needed.remove(&record.workspace);
            }
        }
        for session in &journal.sessions {
            if let Some(files) = session.files {
                needed.insert(files.workspace, Some(session.id));
            }
        }
        for doomed in &journal.doomed_workspaces {
            needed.remove(doomed);
        }
        needed
    }

    /// Of the sessions whose files are gone: those that are left out of the backup, and those that
    /// stay without files.
    async fn judge(
        &self,
        gone: Vec<SessionId>,
        copied: &Journal,
    ) -> Result<(BTreeSet<SessionId>, Vec<String>), Stopped> {
        if gone.is_empty() {
            return Ok((BTreeSet::new(), Vec::new()));
        }
        let now = self.store.load().await.map_err(|error| store_refused(&error))?.journal;
        let is_left_out = |id: &SessionId| !goes_on(*id, &now) || was_starting(*id, copied);
        let (left_out, missing): (BTreeSet<_>, BTreeSet<_>) =
            gone.into_iter().partition(is_left_out);
        Ok((left_out, missing.iter().map(ToString::to_string).collect()))
    }

    /// The files of a session as an archive; none if they are gone.
    async fn take(&self, id: WorkspaceId) -> Result<Option<File>, Stopped> {
        let mut why = Cow::Borrowed("");
        for attempt in 0..TRIES {
            if attempt > 0 {
                sleep(PAUSE * attempt).await;
            }
            let incarnation = || self.workspaces.as_ref().and_then(|all| all.incarnation(id));
            let before = incarnation();
            let to = WorkspaceId::from_u128(SPOOL | u128::from(random()?));
            // Removed whatever happens next.
            let spooled = SpooledArchive { archives: self.archives.clone(), id: to };
            match timeout(TRY, self.copy(id, to)).await {
                // If the workspace was renamed meanwhile, it was being removed while it was read.
                Ok(Ok(())) if incarnation() == before => {
                    let archives = self.archives.clone();
                    let file = blocking(move || archives.open_file(to)).await?;
                    drop(spooled);
                    if file.is_some() {
                        return Ok(file);
                    }
                    why = "the packed archive is gone".into();
                }
                Ok(Ok(())) => why = "the files were moved while they were read".into(),
                Ok(Err(EffectError::FilesGone(cause))) => {
                    if !self.is_there(id) {
                        return Ok(None);
                    }
                    why = cause.into();
                }
                Ok(Err(EffectError::Runtime(error)))
                    if error.code == RuntimeErrorCode::DiskFull =>
                {
                    let cause = format!("to pack the files of workspace {id}: {error}");
                    return Err(Refusal::new(ErrorCode::DiskFull, cause).into());
                }
                Ok(Err(EffectError::Runtime(error))) => {
                    let over = matches!(
                        error.code,
                        RuntimeErrorCode::SandboxGone | RuntimeErrorCode::SandboxUnknown
                    );
                    if !self.is_there(id) && (over || self.user(id).is_none()) {
                        return Ok(None);
                    }
                    why = error.to_string().into();
                }
                Ok(Err(error @ (EffectError::NeedsGuest | EffectError::Refused(_)))) => {
                    why = error.to_string().into();
                }
                Err(_) => why = "reading them took too long".into(),
            }
        }
        let cause = format!("the files of workspace {id} could not be read: {why}");
        Err(Refusal::new(ErrorCode::Internal, cause).into())
    }

    fn is_there(&self, id: WorkspaceId) -> bool {
        let on_disk = self.workspaces.as_ref().is_some_and(|all| all.has(id));
        on_disk || self.archives.get(id).is_some()
    }

    fn user(&self, id: WorkspaceId) -> Option<model::InstanceId> {
        self.live.as_ref().and_then(|core| core.read(|kernel| kernel.user_of_workspace(id)))
    }

    /// Copies the files of a session into an archive, as a fork does.
    async fn copy(&self, from: WorkspaceId, to: WorkspaceId) -> Result<(), EffectError> {
        if let Some(core) = &self.live {
            let template = in_memory()?;
            let copied = workspace_persistence::read(core, from, to, &template).await;
            return match copied {
                // By now the kernel knows that the guest is needed, and thaws it first.
                Err(EffectError::NeedsGuest) => {
                    workspace_persistence::read(core, from, to, &template).await
                }
                copied => copied,
            };
        }
        let (workspaces, archives) = (self.workspaces.clone(), self.archives.clone());
        let copied = spawn_blocking(move || {
            if archives.get(from).is_some() && !workspaces.as_ref().is_some_and(|all| all.has(from))
            {
                return archives.copy(from, to);
            }
            let Some(workspaces) = workspaces.filter(|all| all.has(from)) else { return Ok(()) };
            let mut writer = archives.write(to, 0)?;
            workspaces.pack(from, &mut writer, &mut |_| true)?;
            writer.finish().map(|_| ())
        });
        let copied = copied.await.map_err(|error| crate::workspace_disk::given_up(&error))?;
        copied.map_err(|error| crate::workspace_disk::failed(&error))?;
        if self.is_there(from) {
            return Ok(());
        }
        Err(EffectError::FilesGone(format!("neither workspace {from} nor an archive of it exists")))
    }
}

/// Whether a session exists and is not being ended. Its files go before its record does, so a
/// record alone is no proof.
fn goes_on(id: SessionId, journal: &Journal) -> bool {
    let is_ended = |record: &SandboxRecord| {
        record.owner == Owner::Session(id) && record.ending == Some(EndCause::SessionEnded)
    };
    journal.sessions.iter().any(|it| it.id == id && it.status != SessionStatus::Ended)
        && !journal.sandboxes.iter().any(is_ended)
}

/// Whether a session was still being created: its client had no answer, and it had no files.
fn was_starting(id: SessionId, journal: &Journal) -> bool {
    journal.sessions.iter().any(|it| it.id == id && it.status == SessionStatus::Starting)
}

/// Workspaces whose files are lost with the sandbox.
fn in_memory_of(journal: &Journal) -> BTreeSet<WorkspaceId> {
    let live = journal.sandboxes.iter().filter(|record| record.instance.is_some());
    let in_memory = live.filter(|record| !record.traits.workspace_survives);
    in_memory.map(|record| record.workspace).collect()
}

/// An archive that is removed after its use.
struct SpooledArchive {
    archives: Archives,
    id: WorkspaceId,
}

impl Drop for SpooledArchive {
    fn drop(&mut self) {
        // An archive that stays is removed at the next start.
        let _ = self.archives.remove(self.id);
    }
}

/// A template with workspaces in memory: a copy for it is an archive.
fn in_memory() -> Result<Template, RuntimeError> {
    let name = TemplateName::new("backup").map_err(|error| {
        RuntimeError::new(RuntimeErrorCode::Invalid, "name a copy", error.to_string())
    })?;
    let mut template = Template::named(name);
    template.workspace.kind = Some(WorkspaceKind::Memory);
    Ok(template)
}

/// Sends members of a tar archive to the client.
struct Members {
    to: Sender<Bytes>,
}

impl Members {
    async fn file(&mut self, name: &str, file: File) -> Result<(), Stopped> {
        let bytes = file.metadata().map_err(|error| unreadable(&error))?.len();
        self.head(name, bytes).await?;
        let (mut left, mut file) = (bytes, Some(file));
        while left > 0 {
            let Some(mut reading) = file.take() else { break };
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
            let read = spawn_blocking(move || {
                let mut piece = vec![0; want];
                reading.read_exact(&mut piece).map(|()| (piece, reading))
            });
            let read = read.await.unwrap_or_else(|error| Err(io::Error::other(error)));
            let (piece, reading) = read.map_err(|error| unreadable(&error))?;
            left -= piece.len() as u64;
            file = Some(reading);
            self.send(piece.into()).await?;
        }
        self.pad(bytes).await
    }

    async fn bytes(&mut self, name: &str, bytes: &[u8]) -> Result<(), Stopped> {
        self.head(name, bytes.len() as u64).await?;
        self.send(Bytes::copy_from_slice(bytes)).await?;
        self.pad(bytes.len() as u64).await
    }

    async fn head(&mut self, name: &str, bytes: u64) -> Result<(), Stopped> {
        let written = NewEntry {
            kind: Kind::File,
            path: name.as_bytes(),
            mode: 0o600,
            owner: (0, 0),
            size: bytes,
            modified: (0, 0),
            target: b"",
            attributes: &[],
            comment: None,
        };
        let mut header = Vec::new();
        written.write(&mut header);
        self.send(header.into()).await
    }

    async fn pad(&mut self, bytes: u64) -> Result<(), Stopped> {
        match padding(bytes) as usize {
            0 => Ok(()),
            count => self.send(vec![0; count].into()).await,
        }
    }

    async fn end(&mut self) -> Result<(), Stopped> {
        let mut last = Vec::new();
        end(&mut last);
        self.send(last.into()).await
    }

    async fn send(&mut self, piece: Bytes) -> Result<(), Stopped> {
        self.to.send(piece).await.map_err(|_| Stopped::Unwanted)
    }
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, WorkspaceError> + Send + 'static,
) -> Result<T, Refusal> {
    let done = spawn_blocking(act).await;
    let done = done.map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
    done.map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))
}

fn unreadable(error: &io::Error) -> Refusal {
    Refusal::new(ErrorCode::Internal, format!("read what is to be in the backup: {error}"))
}

fn random() -> Result<u64, Refusal> {
    getrandom::u64().map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))
}
