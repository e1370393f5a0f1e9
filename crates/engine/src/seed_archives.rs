//! Seed archives: files that sessions begin with. A client that stores one has a while to name it;
//! archives that nothing names are removed now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kernel::Kernel;
use model::{ErrorCode, KeyId, Refusal, SeedId};
use tar_stream::{Bounds, Entries, Kind};
use tasks::spawn_blocking;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use workspaces::{NamedFiles, SeedBounds, SeedFile, Seeds, WorkspaceError, WorkspaceErrorKind};

use crate::boxed;
use crate::core::Core;
use crate::{Caller, Engine, documents};

/// How long a stored archive stays without a name.
const HELD: Duration = Duration::from_mins(10);

/// How often unnamed archives are looked for, besides whenever a session ends that began with one.
const SWEEP: Duration = Duration::from_mins(10);

/// When that happens first: a dialect that names some may start after the engine.
const FIRST_SWEEP: Duration = Duration::from_secs(5);

/// How long to wait for more sessions that end.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// The largest archive.
const BYTES_MAX: u64 = 256 << 20;
const ENTRIES_MAX: u64 = 20_000;

/// How much disk the archives of one key may take, and those of all keys. The last one may exceed
/// it.
const KEY_BYTES_MAX: u64 = 1 << 30;
const ALL_BYTES_MAX: u64 = 8 << 30;

/// How many archives are stored at once, and how long a request waits for that.
const WRITERS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(30);

/// A part of the server that names seed archives.
type Holder = Box<dyn Fn() -> BTreeSet<SeedId> + Send + Sync>;

/// Requests that are about to name a seed archive. A request registers here before it checks that
/// the archive exists; the removal looks here last. So neither waits for the other.
pub(crate) struct SeedHolders {
    writers: Arc<Semaphore>,
    held: Mutex<BTreeMap<SeedId, PendingNames>>,
    /// A session that began with a seed archive has ended.
    unnamed: Notify,
    holders: Mutex<Vec<Holder>>,
    /// Which key stored which archive, since the start.
    stored_by: Mutex<BTreeMap<SeedId, KeyId>>,
}

/// How many requests are about to name an archive, and when the last one registered.
struct PendingNames {
    count: u32,
    since: Instant,
}

impl Default for SeedHolders {
    fn default() -> Self {
        Self {
            writers: Arc::new(Semaphore::new(WRITERS)),
            held: Mutex::default(),
            unnamed: Notify::new(),
            holders: Mutex::default(),
            stored_by: Mutex::default(),
        }
    }
}

impl SeedHolders {
    fn held(&self) -> MutexGuard<'_, BTreeMap<SeedId, PendingNames>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holders(&self) -> MutexGuard<'_, Vec<Holder>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored_by(&self) -> MutexGuard<'_, BTreeMap<SeedId, KeyId>> {
        self.stored_by.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, seed: SeedId) {
        let mut held = self.held();
        let hold = held.entry(seed).or_insert(PendingNames { count: 0, since: Instant::now() });
        hold.count += 1;
        hold.since = Instant::now();
    }

    /// A request has named the archive.
    pub(crate) fn release(&self, seed: SeedId) {
        let mut held = self.held();
        if let Some(hold) = held.get_mut(&seed) {
            hold.count = hold.count.saturating_sub(1);
            if hold.count == 0 {
                held.remove(&seed);
            }
        }
    }

    /// A session that named an archive has ended: the archive goes, if nothing else names it.
    pub(crate) fn unname(&self) {
        self.unnamed.notify_one();
    }

    /// Whether a key may store another archive.
    fn check_room(&self, seeds: &Seeds, key: KeyId) -> Result<(), Refusal> {
        let own: u64 = {
            let stored = self.stored_by();
            let own = stored.iter().filter(|(_, by)| **by == key);
            own.filter_map(|(seed, _)| seeds.bytes_of(*seed)).sum()
        };
        refuse_over(own, seeds.bytes())
    }

    /// All archives that something names.
    fn named(&self, core: &Core) -> BTreeSet<SeedId> {
        let mut named = core.read(Kernel::seeds);
        named.extend(self.holders().iter().flat_map(|holder| holder()));
        let mut held = self.held();
        held.retain(|_, hold| hold.since.elapsed() < HELD);
        named.extend(held.keys());
        named
    }
}

impl Engine {
    /// Stores files for workspaces to begin with. They stay for ten minutes, and for as long as a
    /// session or a registered holder names them. Files that are stored already are not written
    /// again.
    #[boxed]
    pub async fn put_seed(&self, caller: Caller, files: Vec<SeedFile>) -> Result<SeedId, Refusal> {
        let seeds = self.seeds()?;
        let spared_bytes = self.core.disk.spared_bytes;
        let bounds = SeedBounds { bytes: BYTES_MAX, entries: ENTRIES_MAX, spared_bytes };
        let writing =
            timeout(PATIENCE, Arc::clone(&self.core.seed_holders.writers).acquire_owned());
        let Ok(Ok(writing)) = writing.await else {
            let cause = "other requests are storing seed archives";
            return Err(Refusal::new(ErrorCode::Overloaded, cause).retry_after(1000));
        };
        let core = Arc::clone(&self.core);
        // If the caller goes away, the stored archive stays for a while all the same.
        let stored = spawn_blocking(move || {
            let _writing = writing;
            let files = NamedFiles::new(files, bounds).map_err(|error| refused(&error))?;
            let seed = files.seed();
            core.seed_holders.hold(seed);
            if seeds.has(seed) {
                return Ok(seed);
            }
            core.seed_holders.check_room(&seeds, caller.key)?;
            seeds.put(&files).map_err(|error| refused(&error))?;
            core.seed_holders.stored_by().insert(seed, caller.key);
            Ok(seed)
        });
        stored.await.map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?
    }

    /// The files of a seed archive.
    #[boxed]
    pub async fn seed_files(&self, seed: SeedId) -> Result<Vec<SeedFile>, Refusal> {
        let seeds = self.seeds()?;
        let read = spawn_blocking(move || files_of(&seeds, seed)).await;
        read.map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?
    }

    /// Keeps a seed archive for another while, for a request that is about to name it; false if
    /// there is none.
    pub fn keep_seed(&self, seed: SeedId) -> bool {
        self.core.seed_holders.hold(seed);
        self.has_seed(seed)
    }

    /// Whether a seed archive exists.
    pub fn has_seed(&self, seed: SeedId) -> bool {
        self.core.disk.seeds.as_ref().is_some_and(|seeds| seeds.has(seed))
    }

    /// From now on `holder` is asked, too, before seed archives are removed.
    pub fn add_seed_holder(&self, holder: impl Fn() -> BTreeSet<SeedId> + Send + Sync + 'static) {
        self.core.seed_holders.holders().push(Box::new(holder));
    }

    fn seeds(&self) -> Result<Seeds, Refusal> {
        let none =
            || Refusal::new(ErrorCode::Unsupported, "this node has no directory for seed archives");
        self.core.disk.seeds.clone().ok_or_else(none)
    }
}

/// Removes unnamed archives for as long as the engine lives.
pub(crate) async fn run(core: Arc<Core>) {
    let Some(seeds) = core.disk.seeds.clone() else { return };
    sleep(FIRST_SWEEP).await;
    loop {
        sweep(&core, &seeds).await;
        // A sweep follows also if no session ended for so long.
        let _ = timeout(SWEEP, core.seed_holders.unnamed.notified()).await;
        sleep(SWEEP_PAUSE).await;
    }
}

pub(crate) async fn sweep(core: &Arc<Core>, seeds: &Seeds) {
    for key in core.keyring.all().iter().filter(|key| key.revoked_at.is_some()) {
        if let Err(refusal) = documents::remove_all_of(core, key.id).await {
            tracing::warn!(
                key = %key.id,
                cause = %refusal,
                "the documents of a revoked key could not be removed"
            );
            break;
        }
    }
    let mut named = match core.store.document_seeds().await {
        Ok(named) => named,
        Err(error) => {
            // Documents may name some of them.
            tracing::warn!(
                %error,
                "unnamed seed archives were not removed: the store did not say which are named"
            );
            return;
        }
    };
    named.extend(core.seed_holders.named(core));
    let (seeds, core) = (seeds.clone(), Arc::clone(core));
    let removing = spawn_blocking(move || {
        let removed =
            seeds.remove_all_but(&named, |seed| core.seed_holders.held().contains_key(&seed));
        core.seed_holders.stored_by().retain(|seed, _| seeds.has(*seed));
        removed
    });
    match removing.await {
        Ok(Ok(0)) => {}
        Ok(Ok(removed)) => tracing::debug!(removed, "unnamed seed archives were removed"),
        Ok(Err(error)) => tracing::warn!(%error, "unnamed seed archives could not be removed"),
        Err(error) => {
            tracing::error!(%error, "the task that removes unnamed seed archives panicked");
        }
    }
}

fn refuse_over(own_bytes: u64, all_bytes: u64) -> Result<(), Refusal> {
    let (whose, most) = match (own_bytes >= KEY_BYTES_MAX, all_bytes >= ALL_BYTES_MAX) {
        (true, _) => ("this key", KEY_BYTES_MAX),
        (false, true) => ("all keys", ALL_BYTES_MAX),
        (false, false) => return Ok(()),
    };
    let cause = format!(
        "the files that sessions and agents of {whose} begin with take {} MB already; unused \
         ones are removed after a while",
        most >> 20
    );
    Err(Refusal::new(ErrorCode::LimitReached, cause))
}

fn files_of(seeds: &Seeds, seed: SeedId) -> Result<Vec<SeedFile>, Refusal> {
    let broken = |error: std::io::Error| refused(&WorkspaceError::of("read a seed", error));
    let opened = seeds.read(seed).map_err(|error| refused(&error))?;
    let Some(reader) = opened else {
        return Err(Refusal::new(
            ErrorCode::InvalidArgument,
            format!("seed archive {seed} does not exist"),
        ));
    };
    let mut entries = Entries::whole(reader, Bounds::NONE);
    let mut files = Vec::new();
    while let Some(entry) = entries.next_entry().map_err(|error| broken(error.into()))? {
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
    let code = match error.kind {
        WorkspaceErrorKind::Refused | WorkspaceErrorKind::Damaged => ErrorCode::InvalidArgument,
        WorkspaceErrorKind::DiskFull => ErrorCode::DiskFull,
        WorkspaceErrorKind::Unsupported => ErrorCode::Unsupported,
        WorkspaceErrorKind::Id
        | WorkspaceErrorKind::InUse
        | WorkspaceErrorKind::CalledOff
        | WorkspaceErrorKind::Went
        | WorkspaceErrorKind::System => ErrorCode::Internal,
    };
    Refusal::new(code, error.source.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_archives_of_a_key_and_of_all_keys_have_a_limit() {
        let checked =
            |own, all| refuse_over(own, all).map_err(|refusal| refusal.cause.into_owned());
        assert_eq!(checked(KEY_BYTES_MAX - 1, ALL_BYTES_MAX - 1), Ok(()));
        assert!(checked(KEY_BYTES_MAX, KEY_BYTES_MAX).unwrap_err().contains("this key begin with"));
        assert!(
            checked(0, ALL_BYTES_MAX).unwrap_err().contains("all keys begin with take 8192 MB")
        );
    }
}
