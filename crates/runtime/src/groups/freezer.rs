//! Freezes and thaws a sandbox through the files of its control group. It polls the state: a
//! notification by the Linux kernel takes a thousand times as long as the freeze itself.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::{RuntimeError, RuntimeErrorCode};

/// How often the answer is read at once: what sleeps on an idle machine is frozen before that.
const IMMEDIATE_READS: u32 = 96;

/// How often it is read after a pause that is too short to give the thread away for it: what has
/// to wait for a processor is frozen before that.
const BRIEF_PAUSES: u32 = 8;
const BRIEF_PAUSE: Duration = Duration::from_micros(20);

/// How long to wait between two reads after that: what computes is frozen when its time slice
/// ends.
const PAUSE: Duration = Duration::from_millis(1);

/// After how many such reads all runs again for a moment and is frozen anew. The first generation
/// can lose a program that starts another while it is being frozen, and then waits for ever.
const READS_UNTIL_ANEW: u32 = 50;

/// How long a freeze may take: a program that waits for a disk is frozen only when it has its data.
/// A caller with less time drops the call, and the sandbox is thawed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The control group that freezes a sandbox.
#[derive(Debug)]
pub(crate) struct Freezer {
    directory: PathBuf,
}

/// Its files, and what is written to and read from them. The two generations differ.
struct Files {
    control: File,
    state: File,
    words: &'static Words,
}

struct Words {
    control: &'static str,
    freeze: &'static str,
    thaw: &'static str,
    state: &'static str,
    is_frozen: &'static str,
}

const SECOND: Words = Words {
    control: "cgroup.freeze",
    freeze: "1",
    thaw: "0",
    state: "cgroup.events",
    is_frozen: "frozen 1",
};

const FIRST: Words = Words {
    control: "freezer.state",
    freeze: "FROZEN",
    thaw: "THAWED",
    state: "freezer.state",
    is_frozen: "FROZEN",
};

impl Freezer {
    pub(crate) fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Done when nothing in it runs. If the freeze fails, the sandbox is thawed.
    pub(crate) async fn freeze(&self) -> Result<(), RuntimeError> {
        let files = Files::open(&self.directory).map_err(|error| failed("freeze", &error))?;
        let unfinished = Unfinished { files: &files, armed: true };
        files.set(files.words.freeze).map_err(|error| failed("freeze", &error))?;
        until_frozen(&files).await?;
        unfinished.finish();
        Ok(())
    }

    /// Done when everything in it may run, which is at once; that it also runs already is up to
    /// the scheduler.
    pub(crate) fn thaw(&self) -> Result<(), RuntimeError> {
        let files = Files::open(&self.directory).map_err(|error| failed("thaw", &error))?;
        files.set(files.words.thaw).map_err(|error| failed("thaw", &error))
    }
}

fn failed(step: &'static str, error: &io::Error) -> RuntimeError {
    if error.kind() == io::ErrorKind::NotFound {
        let cause = "the control group of the sandbox is gone";
        return RuntimeError::new(RuntimeErrorCode::SandboxGone, step, cause);
    }
    RuntimeError::system(step, error)
}

async fn until_frozen(files: &Files) -> Result<(), RuntimeError> {
    let is_frozen = || files.is(files.words.is_frozen).map_err(|error| failed("freeze", &error));
    for look in 0..IMMEDIATE_READS + BRIEF_PAUSES {
        if look >= IMMEDIATE_READS {
            std::thread::sleep(BRIEF_PAUSE);
        }
        if is_frozen()? {
            return Ok(());
        }
    }
    let deadline = Instant::now() + PATIENCE;
    for look in 1.. {
        sleep(PAUSE).await;
        if is_frozen()? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            break;
        }
        if look % READS_UNTIL_ANEW == 0 {
            files.freeze_anew().await.map_err(|error| failed("freeze", &error))?;
        }
    }
    Err(RuntimeError::deadline("freeze"))
}

impl Files {
    fn open(directory: &Path) -> io::Result<Self> {
        match Self::open_as(directory, &SECOND) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Self::open_as(directory, &FIRST)
            }
            opened => opened,
        }
    }

    fn open_as(directory: &Path, words: &'static Words) -> io::Result<Self> {
        let control = OpenOptions::new().write(true).open(directory.join(words.control))?;
        let state = File::open(directory.join(words.state))?;
        Ok(Self { control, state, words })
    }

    fn set(&self, value: &str) -> io::Result<()> {
        self.control.write_all_at(value.as_bytes(), 0)
    }

    async fn freeze_anew(&self) -> io::Result<()> {
        self.set(self.words.thaw)?;
        sleep(PAUSE).await;
        self.set(self.words.freeze)
    }

    fn is(&self, wanted: &str) -> io::Result<bool> {
        let mut text = [0; 128];
        let length = self.state.read_at(&mut text, 0)?;
        Ok(text[..length].split(|byte| *byte == b'\n').any(|line| line == wanted.as_bytes()))
    }
}

/// Thaws a sandbox that did not freeze in time, or whose caller has gone.
struct Unfinished<'a> {
    files: &'a Files,
    armed: bool,
}

impl Unfinished<'_> {
    fn finish(mut self) {
        self.armed = false;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.armed {
            // If that fails too, the sandbox no longer answers, and the next probe finds out.
            let _ = self.files.set(self.files.words.thaw);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn place(name: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("freezer-{}-{name}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        place
    }

    #[tokio::test(start_paused = true)]
    async fn freeze_that_takes_too_long_is_undone() {
        let place = place("stubborn");
        fs::write(place.join("cgroup.freeze"), "0").unwrap();
        fs::write(place.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
        let error = Freezer::new(&place).freeze().await.unwrap_err();
        assert_eq!(error.code, RuntimeErrorCode::DeadlineExceeded);
        assert_eq!(fs::read_to_string(place.join("cgroup.freeze")).unwrap(), "0");
        fs::write(place.join("cgroup.events"), "populated 1\nfrozen 1\n").unwrap();
        Freezer::new(&place).freeze().await.unwrap();
        assert_eq!(fs::read_to_string(place.join("cgroup.freeze")).unwrap(), "1");
        fs::remove_dir_all(place).unwrap();
    }

    #[tokio::test]
    async fn freeze_and_thaw_use_one_file_in_cgroup_v1() {
        let place = place("first");
        fs::write(place.join("freezer.state"), "THAWED").unwrap();
        Freezer::new(&place).freeze().await.unwrap();
        assert_eq!(fs::read_to_string(place.join("freezer.state")).unwrap(), "FROZEN");
        Freezer::new(&place).thaw().unwrap();
        assert_eq!(fs::read_to_string(place.join("freezer.state")).unwrap(), "THAWED");
        fs::remove_dir_all(&place).unwrap();
        let error = Freezer::new(&place).freeze().await.unwrap_err();
        assert_eq!(error.code, RuntimeErrorCode::SandboxGone);
    }
}
