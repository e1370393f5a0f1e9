//! Deletes removed workspaces, one after the other, in a thread of its own. The next start
//! continues after a crash.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jail::sys::{btrfs, project};
use rustix::fs::{AtFlags, FileType, RawDir, statat, unlinkat};

use crate::hard_limits::is_btrfs;
use crate::layout::{Layout, open_directory};
use crate::project_ids;
use crate::removal::remove_tree;

/// The pause after a failed removal.
const PAUSE: Duration = Duration::from_secs(5);

/// The trash.
pub(crate) struct Trash {
    bin: Arc<Bin>,
}

struct Bin {
    layout: Arc<Layout>,
    state: Mutex<State>,
    changed: Condvar,
    stopped: AtomicBool,
}

#[derive(Default)]
struct State {
    /// How many times something was moved to the trash.
    thrown: u64,
    /// The value of `thrown` when the trash was last empty.
    emptied: u64,
    stuck: Option<String>,
}

impl Trash {
    pub(crate) fn start(layout: Arc<Layout>) -> io::Result<Self> {
        let bin = Arc::new(Bin {
            layout,
            state: Mutex::default(),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
        });
        let emptied = Arc::clone(&bin);
        std::thread::Builder::new()
            .name("workspace-trash".to_owned())
            .spawn(move || emptied.run())?;
        Ok(Self { bin })
    }

    /// There is something to remove.
    pub(crate) fn wake(&self) {
        self.bin.state().thrown += 1;
        self.bin.changed.notify_all();
    }

    pub(crate) fn wait_until_empty(&self, patience: Duration) -> bool {
        let state = self.bin.state();
        let all = state.thrown;
        let waited =
            self.bin.changed.wait_timeout_while(state, patience, |state| state.emptied < all);
        waited.unwrap_or_else(PoisonError::into_inner).0.emptied >= all
    }

    pub(crate) fn stuck(&self) -> Option<String> {
        self.bin.state().stuck.clone()
    }
}

impl Drop for Trash {
    fn drop(&mut self) {
        self.bin.stopped.store(true, Ordering::Relaxed);
        self.bin.changed.notify_all();
    }
}

impl Bin {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let stopped = || self.stopped.load(Ordering::Relaxed);
        loop {
            let state = self
                .changed
                .wait_while(self.state(), |state| state.emptied == state.thrown && !stopped());
            let thrown = state.unwrap_or_else(PoisonError::into_inner).thrown;
            if stopped() {
                return;
            }
            let emptied = self.empty();
            let mut state = self.state();
            match emptied {
                Ok(()) => {
                    state.stuck = None;
                    state.emptied = thrown;
                    self.changed.notify_all();
                }
                Err(error) => {
                    state.stuck = Some(error.to_string());
                    drop(self.changed.wait_timeout_while(state, PAUSE, |_| !stopped()));
                }
            }
        }
    }

    /// Removes everything, until a listing finds nothing. What cannot be removed is left for later,
    /// and does not hold up the rest.
    fn empty(&self) -> io::Result<()> {
        loop {
            let mut removed = false;
            let mut failed = None;
            let trash = open_directory(&self.layout.trash, ".")?;
            let mut buffer = Vec::with_capacity(8192);
            let mut entries = RawDir::new(trash, buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                let entry = entry?;
                let Ok(name) = entry.file_name().to_str() else { continue };
                if matches!(name, "." | "..") {
                    continue;
                }
                match self.remove(name) {
                    Ok(()) => removed = true,
                    Err(error) => failed = Some(error),
                }
                if self.stopped.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
            match (removed, failed) {
                (true, _) => {}
                (false, Some(error)) => return Err(error),
                (false, None) => return Ok(()),
            }
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let trash = &self.layout.trash;
        let found = statat(trash, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            return Ok(unlinkat(trash, name, AtFlags::empty())?);
        }
        if is_btrfs(&self.layout)
            && found.st_ino == btrfs::SUBVOLUME_INODE
            && btrfs::destroy_subvolume(trash.as_fd(), name).is_ok()
        {
            return Ok(());
        }
        let project = open_directory(trash, name)
            .ok()
            .and_then(|directory| project::project_of(directory.as_fd()).ok())
            .filter(|project| project_ids::is_ours(*project));
        remove_tree(trash, &CString::new(name)?, &self.stopped)?;
        if let Some(project) = project {
            // A limit that stays does no harm: an id with a limit is not given to another
            // workspace.
            let _ = project_ids::give_back(trash.as_fd(), project);
        }
        Ok(())
    }
}
