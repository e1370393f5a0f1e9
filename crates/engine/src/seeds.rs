//! Seeds: files that sessions begin with. Who stores some has a while to name them; those that
//! nobody names any more are removed now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kernel::Kernel;
use model::{ErrorCode, Refusal, SeedId};
use store::DocumentQuery;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use workspaces::tar::{Entries, Kind};
use workspaces::{SeedBounds, SeedFile, Seeds, Trouble, WorkspaceError};

use crate::Engine;
use crate::core::Core;

/// How long whoever stored files has to name them.
const HELD: Duration = Duration::from_mins(10);

/// How often those that nobody names are looked for. The first time is after a while, too: who
/// names some may come up later than we do.
const SWEEP: Duration = Duration::from_mins(10);

/// How much one may be.
const BYTES_MAX: u64 = 256 << 20;
const ENTRIES_MAX: u64 = 20_000;

/// Somebody who names seeds.
type Holder = Box<dyn Fn() -> BTreeSet<SeedId> + Send + Sync>;

/// Who holds which.
#[derive(Default)]
pub(crate) struct Sowing {
    /// Held while one is stored or some are removed, so that nothing is removed between.
    alone: tokio::sync::Mutex<()>,
    held: Mutex<BTreeMap<SeedId, Instant>>,
    holders: Mutex<Vec<Holder>>,
}

impl Sowing {
    fn held(&self) -> MutexGuard<'_, BTreeMap<SeedId, Instant>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holders(&self) -> MutexGuard<'_, Vec<Holder>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that somebody names.
    fn named(&self, core: &Core) -> BTreeSet<SeedId> {
        let mut named = core.read(Kernel::seeds);
        named.extend(self.holders().iter().flat_map(|holder| holder()));
        let mut held = self.held();
        held.retain(|_, since| since.elapsed() < HELD);
        named.extend(held.keys());
        named
    }
}

impl Engine {
    /// Stores files for workspaces to begin with. They stay for ten minutes, and for as long as a
    /// session or somebody who said so names them.
    pub async fn put_seed(&self, files: Vec<SeedFile>) -> Result<SeedId, Refusal> {
        self.store_seed(move |seeds, bounds| seeds.put_files(files, bounds)).await
    }

    /// The same from a tar archive.
    pub async fn put_seed_archive(
        &self,
        archive: impl Read + Send + 'static,
    ) -> Result<SeedId, Refusal> {
        self.store_seed(move |seeds, bounds| seeds.put_archive(archive, bounds)).await
    }

    /// The files of a seed.
    pub async fn seed_files(&self, seed: SeedId) -> Result<Vec<SeedFile>, Refusal> {
        let seeds = self.seeds()?;
        let read = spawn_blocking(move || files_of(&seeds, seed)).await;
        read.map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?
    }

    /// Keeps a seed for another while, for somebody who is about to name it; false if there is none.
    pub async fn keep_seed(&self, seed: SeedId) -> bool {
        let _alone = self.core.sowing.alone.lock().await;
        let there = self.has_seed(seed);
        if there {
            self.core.sowing.held().insert(seed, Instant::now());
        }
        there
    }

    /// Whether there is a seed.
    pub fn has_seed(&self, seed: SeedId) -> bool {
        self.core.disk.seeds.as_ref().is_some_and(|seeds| seeds.has(seed))
    }

    /// From now on these are asked, too, before seeds are removed.
    pub fn hold_seeds(&self, holder: impl Fn() -> BTreeSet<SeedId> + Send + Sync + 'static) {
        self.core.sowing.holders().push(Box::new(holder));
    }

    fn seeds(&self) -> Result<Seeds, Refusal> {
        let none = || Refusal::new(ErrorCode::Unsupported, "this node has no place for seeds");
        self.core.disk.seeds.clone().ok_or_else(none)
    }

    async fn store_seed(
        &self,
        put: impl FnOnce(Seeds, SeedBounds) -> Result<SeedId, WorkspaceError> + Send + 'static,
    ) -> Result<SeedId, Refusal> {
        let seeds = self.seeds()?;
        let spared_bytes = self.core.disk.spared_bytes;
        let bounds = SeedBounds { bytes: BYTES_MAX, entries: ENTRIES_MAX, spared_bytes };
        let core = Arc::clone(&self.core);
        // Whoever asked may go away: what is stored is held all the same, for a while.
        let stored = tokio::spawn(async move {
            let _alone = core.sowing.alone.lock().await;
            let put = spawn_blocking(move || put(seeds, bounds)).await;
            let seed = put.map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
            let seed = seed.map_err(|error| refused(&error))?;
            core.sowing.held().insert(seed, Instant::now());
            Ok(seed)
        });
        stored.await.map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?
    }
}

/// Removes what nobody names, for as long as the engine lives.
pub(crate) async fn run(core: Arc<Core>) {
    let Some(seeds) = core.disk.seeds.clone() else { return };
    loop {
        sleep(SWEEP).await;
        sweep(&core, &seeds).await;
    }
}

pub(crate) async fn sweep(core: &Arc<Core>, seeds: &Seeds) {
    let _alone = core.sowing.alone.lock().await;
    let with_seed = DocumentQuery { with_seed: true, ..DocumentQuery::default() };
    let documents = match core.store.documents(&with_seed).await {
        Ok(documents) => documents,
        Err(error) => {
            // Some of them may be named there.
            tracing::warn!(%error, "seeds that nobody names were not looked for");
            return;
        }
    };
    let mut named = core.sowing.named(core);
    named.extend(documents.iter().filter_map(|document| document.seed));
    let seeds = seeds.clone();
    match spawn_blocking(move || seeds.remove_all_but(&named)).await {
        Ok(Ok(0)) => {}
        Ok(Ok(removed)) => tracing::debug!(removed, "seeds that nobody names were removed"),
        Ok(Err(error)) => tracing::warn!(%error, "seeds that nobody names were not removed"),
        Err(error) => tracing::error!(%error, "removing seeds was given up"),
    }
}

fn files_of(seeds: &Seeds, seed: SeedId) -> Result<Vec<SeedFile>, Refusal> {
    let broken = |error: std::io::Error| refused(&WorkspaceError::of("read a seed", error));
    let opened = seeds.read(seed).map_err(|error| refused(&error))?;
    let Some(reader) = opened else {
        return Err(Refusal::new(ErrorCode::InvalidArgument, format!("there is no seed {seed}")));
    };
    let mut entries = Entries::of(reader);
    let mut files = Vec::new();
    while let Some(entry) = entries.next_entry().map_err(broken)? {
        if entry.kind != Kind::File {
            continue;
        }
        let mut bytes = vec![0; usize::try_from(entry.size).unwrap_or(0)];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += entries.read(&mut bytes[filled..]).map_err(broken)?;
        }
        let path = String::from_utf8_lossy(&entry.path).into_owned();
        files.push(SeedFile { path, bytes, mode: entry.mode });
    }
    Ok(files)
}

fn refused(error: &WorkspaceError) -> Refusal {
    let code = match error.trouble {
        Trouble::Refused | Trouble::Damaged => ErrorCode::InvalidArgument,
        Trouble::DiskFull => ErrorCode::DiskFull,
        Trouble::Unsupported => ErrorCode::Unsupported,
        Trouble::Id | Trouble::InUse | Trouble::CalledOff | Trouble::System => ErrorCode::Internal,
    };
    Refusal::new(code, error.source.to_string())
}
