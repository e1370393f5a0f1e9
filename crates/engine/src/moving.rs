//! Files on their way into a sandbox and out of it, by way of its guest: archives and seeds are
//! unpacked in it, and a workspace in memory is packed into an archive. Bytes pass through; how
//! many there are costs no memory.

use std::borrow::Cow;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use bytes::Bytes;
use model::{ErrorCode, Limits, SeedId, WorkspaceId};
use runtime::{RuntimeError, RuntimeErrorCode, Sandbox};
use tokio::task::spawn_blocking;
use workspaces::{ArchiveReader, Size, WorkspaceError};

use crate::archive::{Bounds, Inside, Packing, Pieces, UnpackError, Unpacking, Unusual};
use crate::disk::{Disk, failed, given_up};
use crate::effects::EffectError;
use crate::works::Haste;

/// The one place whose contents are kept.
const WORKSPACE: &str = "/workspace";

/// What is read of an archive at once.
const PIECE_BYTES: usize = 256 * 1024;

impl Disk {
    /// Unpacks the archive of a workspace in a sandbox that has it in memory.
    pub(crate) async fn bring_back(
        &self,
        id: WorkspaceId,
        sandbox: Arc<dyn Sandbox>,
    ) -> Result<(), EffectError> {
        let Some(archives) = self.archives.clone() else { return Ok(()) };
        let Some(reader) = blocking(move || archives.read(id)).await? else {
            return Err(EffectError::FilesGone(format!("there is no archive of {id}")));
        };
        unpack(reader, sandbox).await
    }

    /// Puts the files of a seed into a sandbox whose workspace is fresh.
    pub(crate) async fn sow(
        &self,
        seed: SeedId,
        sandbox: Arc<dyn Sandbox>,
    ) -> Result<(), EffectError> {
        let missing = || {
            let cause = format!("there is no seed {seed}");
            RuntimeError::new(RuntimeErrorCode::NotFound, "begin with a seed", cause)
        };
        let seeds = self.seeds.clone().ok_or_else(missing)?;
        let opened = blocking(move || seeds.read(seed)).await?;
        // What is damaged is no reason to give up files that nobody had yet.
        let unpacked = unpack(opened.ok_or_else(missing)?, sandbox).await;
        unpacked.map_err(|error| error.into_runtime_error().into())
    }

    /// Packs what a sandbox has in its workspace into an archive of this id, all or nothing. Who
    /// removes that meanwhile waits: nothing is left of what is removed.
    pub(crate) async fn take_out(
        &self,
        sandbox: Arc<dyn Sandbox>,
        id: WorkspaceId,
    ) -> Result<(), RuntimeError> {
        let entered = self.works.enter(id, Haste::Patient).await;
        let Some(archives) = self.archives.clone() else {
            let cause = "this node has no place for archives";
            return Err(RuntimeError::new(
                RuntimeErrorCode::Unsupported,
                "pack a workspace",
                cause,
            ));
        };
        let spared_bytes = self.spared_bytes;
        let mut writer = blocking(move || archives.write(id, spared_bytes)).await?;
        let entries = bounds(&sandbox.spec().limits).entries;
        let packing = Packing::start(Inside(Arc::clone(&sandbox)), WORKSPACE, entries).await;
        let packing = packing.map_err(|refusal| broken(&*sandbox, refusal.cause))?;
        let mut packing = packing.owned_by(USER);
        loop {
            let piece = packing.next_piece().await;
            let piece = piece.map_err(|error| broken(&*sandbox, error.to_string()))?;
            let Some(piece) = piece else { break };
            // Dropped in between, nothing of it stays.
            writer = blocking(move || {
                let written = writer.write_all(&piece);
                written.map_err(|error| WorkspaceError::of("write an archive", error))?;
                Ok(writer)
            })
            .await?;
        }
        // Dropped here, it has its name before anybody else comes to it.
        blocking(move || {
            let finished = writer.finish();
            drop(entered);
            finished
        })
        .await?;
        let left_out = packing.left_out();
        if left_out > 0 {
            tracing::warn!(
                workspace = %id,
                left_out,
                "files of a workspace in memory could not be saved: pipes, sockets, names that \
                 are not UTF-8, or what its user may not read"
            );
        }
        Ok(())
    }
}

/// Does something that blocks, off the threads that serve requests.
async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, WorkspaceError> + Send + 'static,
) -> Result<T, RuntimeError> {
    let done = spawn_blocking(act).await;
    done.map_err(|error| given_up(&error))?.map_err(|error| failed(&error))
}

async fn unpack(reader: ArchiveReader, sandbox: Arc<dyn Sandbox>) -> Result<(), EffectError> {
    let bounds = bounds(&sandbox.spec().limits);
    let decoded = Decoded { reader: Some(reader) };
    let inside = Inside(Arc::clone(&sandbox));
    let done = Unpacking::new(&inside, decoded, WORKSPACE, bounds).run().await;
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

/// An archive that is read as it is taken; none while a piece is being read.
struct Decoded {
    reader: Option<ArchiveReader>,
}

impl Pieces for Decoded {
    type Error = io::Error;

    async fn next_piece(&mut self) -> io::Result<Option<Bytes>> {
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

/// What went wrong, in the words of a runtime. What matters is whether the sandbox is over.
fn broken(sandbox: &dyn Sandbox, cause: impl Into<Cow<'static, str>>) -> RuntimeError {
    const STEP: &str = "move files";
    let code = match sandbox.ended() {
        Some(died) if died.out_of_memory => RuntimeErrorCode::OutOfMemory,
        Some(_) => RuntimeErrorCode::SandboxGone,
        None => RuntimeErrorCode::System,
    };
    RuntimeError::new(code, STEP, cause)
}
