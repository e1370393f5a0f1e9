//! Reads the stream of a backup, from a running server or from the data directory of a stopped one,
//! and splits it into files. A stream that ends without its summary is an error.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::{Buf as _, Bytes};
use client::{Client, Discovery};
use engine::{Archives, Seeds, StoppedNode, Workspaces};
use serde::Deserialize;
use store::sqlite::SqliteStore;
use store::{Retention, Store as _};
use tar_stream::{Bounds, Entries};

use super::manifest::is_expected;
use super::writer::BackupWriter;
use crate::config::StoreKind;
use crate::failure::Failure;
use crate::native;
use crate::output::Output;
use crate::serve::data_dir::DataDir;

/// Chunks between the two threads.
const PIECES: usize = 4;
/// The longest report at the end of the stream.
const REPORT_BYTES_MAX: u64 = 1 << 20;

/// The report at the end of a complete backup.
#[derive(Debug, Deserialize)]
pub(super) struct BackupSummary {
    pub(super) sessions: u64,
    /// Sessions whose files were missing before the backup was made.
    pub(super) without_files: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Failed {
    code: String,
    cause: String,
}

/// Reads the backup from the server of a data directory.
pub(super) fn from_server(
    data_dir: &Path,
    writer: &mut BackupWriter,
    output: &Output,
) -> Result<BackupSummary, Failure> {
    let discovery = Discovery { data_dir: Some(data_dir.to_owned()), ..Discovery::default() };
    let client = Client::found(discovery).map_err(|error| {
        Failure::of_client("cannot find the server of this data directory", &error)
    })?;
    let failed = |error: client::ClientError| Failure::of_client("cannot make a backup", &error);
    split_in_thread(writer, output, async |to: SyncSender<Bytes>| {
        let mut backup = client.backup().await.map_err(failed)?;
        while let Some(piece) = backup.next().await.map_err(failed)? {
            if to.send(piece).is_err() {
                break;
            }
        }
        Ok(())
    })
}

/// Reads a data directory that no server uses, and locks it meanwhile.
pub(super) fn from_directory(
    data_dir: &Path,
    writer: &mut BackupWriter,
    output: &Output,
) -> Result<BackupSummary, Failure> {
    let place = DataDir::open(data_dir, StoreKind::Sqlite)?;
    // Nothing is committed here, so no retention limit deletes anything.
    let store = SqliteStore::open(place.path(), Retention::default())
        .map_err(|error| Failure::new("cannot open the store", &error).remedy(error.remedy()))?;
    let store = Arc::new(store);
    let unusable = |error| Failure::new("cannot use the files of sessions", error);
    let node = StoppedNode {
        store: Arc::<SqliteStore>::clone(&store),
        workspaces: Arc::new(Workspaces::open(place.workspaces()).map_err(unusable)?),
        archives: Archives::open(place.archives()).map_err(unusable)?,
        seeds: Seeds::open(place.seeds()).map_err(unusable)?,
    };
    split_in_thread(writer, output, async |to: SyncSender<Bytes>| {
        let failed = |refusal: model::Refusal| {
            let remedy = refusal.code.remedy();
            Failure::new("cannot make a backup", refusal).remedy(remedy)
        };
        let mut backup = node.backup().await.map_err(failed)?;
        while let Some(piece) = backup.next().await {
            if to.send(piece).is_err() {
                break;
            }
        }
        // All commits are in the database file afterwards, as after an orderly stop.
        store.close().await.map_err(|error| Failure::new("cannot close the store", error))
    })
}

/// Splits the stream in a thread of its own.
fn split_in_thread(
    writer: &mut BackupWriter,
    output: &Output,
    feed: impl AsyncFnOnce(SyncSender<Bytes>) -> Result<(), Failure>,
) -> Result<BackupSummary, Failure> {
    let (to, pieces) = sync_channel(PIECES);
    std::thread::scope(|scope| {
        let taking = scope.spawn(move || {
            let reader = ChunkReader { pieces, at_hand: Bytes::new() };
            split(reader, writer, output)
        });
        let tokio = native::tokio_of_one_thread()?;
        let fed = native::block_on(&tokio, feed(to));
        tokio.shutdown_background();
        let taken = taking.join().unwrap_or_else(|_| {
            Err(Failure::new("cannot make a backup", "the thread that writes the backup panicked"))
        });
        // An error of the source is the cause of the error here.
        fed?;
        taken
    })
}

fn split(
    reader: impl Read,
    writer: &mut BackupWriter,
    output: &Output,
) -> Result<BackupSummary, Failure> {
    let failed = |error: io::Error| {
        Failure::new("cannot write the backup", error)
            .remedy("check the free space of the target; the log of the server may say more")
    };
    let mut entries = Entries::new(reader, Bounds::NONE);
    let (mut summary, mut bytes, mut files) = (None, 0_u64, 0_u64);
    while let Some(entry) = entries.next_entry().map_err(|error| failed(error.into()))? {
        let path = String::from_utf8_lossy(&entry.path).into_owned();
        let size = entry.size;
        if is_expected(&path) {
            writer.put(&path, size, &mut entries).map_err(failed)?;
            (files, bytes) = (files + 1, bytes + size);
            output.progress(&format!("{files} files, {} MB", bytes >> 20));
            continue;
        }
        let mut said = Vec::new();
        (&mut entries).take(REPORT_BYTES_MAX).read_to_end(&mut said).map_err(failed)?;
        match &*path {
            "complete.json" => {
                let read = serde_json::from_slice(&said);
                summary = Some(read.map_err(|error| Failure::new("cannot make a backup", error))?);
            }
            "failed.json" => {
                let Failed { code, cause } = serde_json::from_slice(&said)
                    .map_err(|error| Failure::new("cannot make a backup", error))?;
                return Err(Failure::new("cannot make a backup", format!("{code}: {cause}"))
                    .remedy("try again; the log of the server may say more"));
            }
            other => {
                let cause = format!("the server sent {other:?}, which this program does not know");
                return Err(Failure::new("cannot make a backup", cause)
                    .remedy("use the program of the same version as the server"));
            }
        }
    }
    summary.ok_or_else(|| {
        Failure::new("cannot make a backup", "the data ended too early")
            .remedy("try again; the log of the server may say more")
    })
}

/// Received chunks as a blocking reader.
struct ChunkReader {
    pieces: Receiver<Bytes>,
    at_hand: Bytes,
}

impl Read for ChunkReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at_hand.is_empty() {
            match self.pieces.recv() {
                Ok(piece) => self.at_hand = piece,
                Err(_) => return Ok(0),
            }
        }
        let count = self.at_hand.len().min(buffer.len());
        self.at_hand.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}
