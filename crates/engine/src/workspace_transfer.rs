//! Moves files into and out of a sandbox through its guest: unpacks archives and seed archives in
//! it, and packs a workspace in memory into an archive. Bytes are streamed, so size costs no
//! memory.

use std::borrow::Cow;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use bytes::Bytes;
use model::{ErrorCode, Limits, SeedId, WorkspaceId};
use runtime::{RuntimeError, RuntimeErrorCode, Sandbox};
use tasks::spawn_blocking;
use workspaces::{ArchiveReader, ArchiveWriter, Size, WorkspaceError};

use crate::archive::{Bounds, EngineFiles, Packing, Pieces, UnpackError, Unpacking, Unusual};
use crate::effects::EffectError;
use crate::workspace_disk::{Disk, failed, given_up};
use crate::workspace_locks::Priority;

/// The one directory whose contents are saved.
const WORKSPACE: &str = "/workspace";

/// How much of an archive is read at once.
const PIECE_BYTES: usize = 256 * 1024;

/// File sizes may claim this many times the size of a workspace, as on disk.
const CLAIMED_MAX: u64 = 16;

impl Disk {
    /// Unpacks the archive of a workspace in a sandbox that has it in memory.
    pub(crate) async fn unpack_archive(
        &self,
        id: WorkspaceId,
        sandbox: Arc<dyn Sandbox>,
    ) -> Result<(), EffectError> {
        let Some(archives) = self.archives.clone() else { return Ok(()) };
        let Some(reader) = blocking(move || archives.read(id)).await? else {
            return Err(EffectError::FilesGone(format!("workspace {id} has no archive")));
        };
        // The workspace held all of it before, and the sandbox enforces its own limit.
        let (entries, bytes) = (u64::MAX, u64::MAX);
        let bounds = Bounds { entries, bytes, unusual: Unusual::LeaveOut };
        unpack(Decoded::of(reader), sandbox, bounds, Metadata::Restored).await
    }

    /// Unpacks a seed archive in a sandbox whose workspace is empty.
    pub(crate) async fn unpack_seed(
        &self,
        seed: SeedId,
        sandbox: Arc<dyn Sandbox>,
    ) -> Result<(), EffectError> {
        let missing = || {
            let cause = format!("seed archive {seed} does not exist");
            RuntimeError::new(RuntimeErrorCode::NotFound, "begin with a seed", cause)
        };
        let seeds = self.seeds.clone().ok_or_else(missing)?;
        // Most are small: opened and read at once, they are read whole.
        let opened = blocking(move || Ok(seeds.read(seed)?.map(Decoded::begun))).await?;
        // A damaged seed archive loses no files of a user, so it is not reported as lost files.
        let bounds = bounds(&sandbox.spec().limits);
        let unpacked = unpack(opened.ok_or_else(missing)?, sandbox, bounds, Metadata::New).await;
        unpacked.map_err(|error| error.into_runtime_error().into())
    }

    /// Packs the workspace of a sandbox into an archive of this id, all or nothing. A removal of
    /// the archive waits meanwhile, so that nothing is left of it. Files that cannot be saved are
    /// reported after all others are saved.
    pub(crate) async fn pack_into_archive(
        &self,
        sandbox: Arc<dyn Sandbox>,
        id: WorkspaceId,
    ) -> Result<(), EffectError> {
        let locked = self.locks.lock(id, Priority::Patient).await;
        let Some(archives) = self.archives.clone() else {
            let cause = "this node has no directory for archives";
            let code = RuntimeErrorCode::Unsupported;
            return Err(RuntimeError::new(code, "pack a workspace", cause).into());
        };
        let spared_bytes = self.spared_bytes;
        let writer = blocking(move || archives.write(id, spared_bytes)).await?;
        let claims_left = sandbox.spec().limits.workspace_bytes().saturating_mul(CLAIMED_MAX);
        let inside = EngineFiles(Arc::clone(&sandbox));
        let packing = Packing::start_for_restore(inside, WORKSPACE, USER, claims_left).await;
        let mut packing = packing.map_err(|refusal| broken(&*sandbox, refusal.cause))?;
        let written = write(&mut packing, writer, &*sandbox).await;
        let (lost, left_out) = (packing.lost(), packing.left_out());
        packing.give_up().await;
        let writer = written?;
        // Dropped here: the archive has its name before the lock is free.
        blocking(move || {
            let finished = writer.finish();
            drop(locked);
            finished
        })
        .await?;
        if left_out > 0 {
            tracing::info!(
                workspace = %id,
                left_out,
                "some entries of a workspace were not saved: pipes, sockets, files that vanished \
                 meanwhile, or files that cannot be read"
            );
        }
        if lost.count > 0 {
            let cause = format!(
                "{} of its files and directories cannot be kept, {:?} first: names and links that \
                 are not UTF-8, paths that are too long or too deep, files that claim far more \
                 than a workspace holds, or what its user may not read; the others are saved",
                lost.count, lost.first
            );
            return Err(EffectError::FilesGone(cause));
        }
        Ok(())
    }
}

async fn write(
    packing: &mut Packing<EngineFiles>,
    mut writer: ArchiveWriter,
    sandbox: &dyn Sandbox,
) -> Result<ArchiveWriter, RuntimeError> {
    loop {
        let piece = packing.next_piece().await;
        let piece = piece.map_err(|error| broken(sandbox, error.to_string()))?;
        let Some(piece) = piece else { return Ok(writer) };
        // If the future is dropped in between, nothing of the archive stays.
        writer = blocking(move || {
            let written = writer.write_all(&piece);
            written.map_err(|error| WorkspaceError::of("write an archive", error))?;
            Ok(writer)
        })
        .await?;
    }
}

/// Runs blocking work off the threads that serve requests.
async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, WorkspaceError> + Send + 'static,
) -> Result<T, RuntimeError> {
    let done = spawn_blocking(act).await;
    done.map_err(|error| given_up(&error))?.map_err(|error| failed(&error))
}

/// Metadata of unpacked files.
enum Metadata {
    /// As it was when they were packed.
    Restored,
    /// As for files that a user writes.
    New,
}

async fn unpack(
    decoded: Decoded,
    sandbox: Arc<dyn Sandbox>,
    bounds: Bounds,
    metadata: Metadata,
) -> Result<(), EffectError> {
    let inside = EngineFiles(Arc::clone(&sandbox));
    let unpacking = Unpacking::new(&inside, decoded, WORKSPACE, bounds).into_existing();
    let unpacking = match metadata {
        Metadata::Restored => unpacking.with_metadata(),
        Metadata::New => unpacking,
    };
    let done = unpacking.run().await;
    done.map(|_| ()).map_err(|error| match error {
        UnpackError::Archive(refusal) if refusal.code != ErrorCode::TooLarge => {
            EffectError::FilesGone(refusal.cause.into_owned())
        }
        UnpackError::Archive(refusal) | UnpackError::Files(refusal) => {
            broken(&*sandbox, refusal.cause).into()
        }
        UnpackError::Source(error) if error.kind() == io::ErrorKind::InvalidData => {
            EffectError::FilesGone(error.to_string())
        }
        UnpackError::Source(error) => broken(&*sandbox, error.to_string()).into(),
    })
}

/// The user of everything in a workspace, as sandboxes see it.
const USER: u32 = 1000;

fn bounds(limits: &Limits) -> Bounds {
    let size = Size::of_bytes(limits.workspace_bytes());
    Bounds { entries: size.files(), bytes: size.bytes(), unusual: Unusual::LeaveOut }
}

/// An archive that is decompressed as it is read.
struct Decoded {
    /// None while a piece is being read, and after the end.
    reader: Option<ArchiveReader>,
    /// What was read already.
    first: Option<io::Result<Vec<u8>>>,
    has_ended: bool,
}

impl Decoded {
    const fn of(reader: ArchiveReader) -> Self {
        Self { reader: Some(reader), first: None, has_ended: false }
    }

    /// With its first piece, and at its end if that was all. Blocks.
    fn begun(mut reader: ArchiveReader) -> Self {
        let mut piece = Vec::new();
        let read = (&mut reader).take(PIECE_BYTES as u64).read_to_end(&mut piece);
        let has_ended = read.as_ref().is_ok_and(|read| *read < PIECE_BYTES);
        Self { reader: Some(reader), first: Some(read.map(|_| piece)), has_ended }
    }
}

impl Pieces for Decoded {
    type Error = io::Error;

    async fn next_piece(&mut self) -> io::Result<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return first.map(|piece| (!piece.is_empty()).then(|| piece.into()));
        }
        if self.has_ended {
            return Ok(None);
        }
        let Some(mut reader) = self.reader.take() else {
            return Err(io::Error::other("an archive was not read to its end"));
        };
        let read = spawn_blocking(move || {
            let mut piece = vec![0; PIECE_BYTES];
            let read = reader.read(&mut piece)?;
            piece.truncate(read);
            Ok::<_, io::Error>((reader, piece))
        });
        let (reader, piece) = read.await.map_err(io::Error::other)??;
        self.reader = Some(reader);
        Ok((!piece.is_empty()).then(|| piece.into()))
    }
}

/// As a runtime error. It matters whether the sandbox has ended.
fn broken(sandbox: &dyn Sandbox, cause: impl Into<Cow<'static, str>>) -> RuntimeError {
    const STEP: &str = "move files";
    let code = match sandbox.ended() {
        Some(died) if died.out_of_memory => RuntimeErrorCode::OutOfMemory,
        Some(_) => RuntimeErrorCode::SandboxGone,
        None => RuntimeErrorCode::System,
    };
    RuntimeError::new(code, STEP, cause)
}
