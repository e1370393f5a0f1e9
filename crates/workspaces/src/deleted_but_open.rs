//! Usage of deleted files that are still open or mapped: they take space until the last program
//! closes them, and no walk through a workspace finds them. They are found through `/proc`: the
//! workspace that is mounted in a program's mount namespace tells which workspace they count for.
//! Files in transit in a socket are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{File, read_dir, read_link};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use model::WorkspaceId;
use rustix::fs::{Stat, stat};

use crate::layout::workspace_named;
use crate::scan::{Usage, bytes_of};

/// How much of a `/proc` file is read. A program can make its own as long as it likes.
const LIST_BYTES_MAX: u64 = 8 << 20;

/// A scan of all processes.
pub(crate) struct DeletedFilesScan<'a> {
    /// The device of the workspaces; files on other devices are ignored.
    pub(crate) device: u64,
    pub(crate) wanted: &'a BTreeSet<WorkspaceId>,
    /// As for a scan.
    pub(crate) go_on: &'a mut dyn FnMut(u64) -> bool,
}

impl DeletedFilesScan<'_> {
    /// The usage of deleted files per workspace. Processes come and go meanwhile: what cannot be
    /// read is skipped.
    pub(crate) fn find(mut self) -> BTreeMap<WorkspaceId, Usage> {
        let mut found = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut homes = BTreeMap::new();
        for process in numbered(Path::new("/proc")) {
            if !(self.go_on)(1) {
                break;
            }
            let tasks = numbered(&process.join("task"));
            // All threads share the mount namespace; the first thread may have ended before the
            // others.
            let lives_at =
                tasks.iter().find_map(|task| Some((task, read_link(task.join("ns/mnt")).ok()?)));
            let Some((task, home)) = lives_at else { continue };
            let workspace = *homes.entry(home).or_insert_with(|| self.workspace_at(task));
            let Some(workspace) = workspace else { continue };
            for task in &tasks {
                // Threads may have descriptors of their own.
                self.count(open_in(task), workspace, &mut seen, &mut found);
            }
            self.count(mapped_in(&process), workspace, &mut seen, &mut found);
        }
        found
    }

    /// The one workspace that is mounted in a program's mount namespace.
    fn workspace_at(&self, task: &Path) -> Option<WorkspaceId> {
        let mounts = lines(&task.join("mountinfo"));
        let roots = mounts.filter_map(|line| mounted_workspace(&line));
        let known: BTreeSet<_> = roots.filter(|one| self.wanted.contains(one)).collect();
        if known.len() == 1 { known.first().copied() } else { None }
    }

    fn count(
        &mut self,
        files: impl Iterator<Item = PathBuf>,
        workspace: WorkspaceId,
        seen: &mut BTreeSet<u64>,
        found: &mut BTreeMap<WorkspaceId, Usage>,
    ) {
        for file in files {
            if !(self.go_on)(1) {
                return;
            }
            let Ok(file) = stat(&file) else { continue };
            if is_deleted(&file, self.device) && seen.insert(file.st_ino) {
                let usage = found.entry(workspace).or_default();
                usage.files += 1;
                usage.bytes += bytes_of(&file);
            }
        }
    }
}

fn is_deleted(found: &Stat, device: u64) -> bool {
    found.st_nlink == 0 && found.st_dev == device
}

/// The numeric entries of a directory of `/proc`.
fn numbered(directory: &Path) -> Vec<PathBuf> {
    let is_number = |name: &OsString| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
    let entries = read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| is_number(&entry.file_name())).map(|entry| entry.path()).collect()
}

fn open_in(task: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    read_dir(task.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Deleted files that a program has mapped. Only root may read them.
fn mapped_in(process: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let files = process.join("map_files");
    lines(&process.join("maps"))
        .filter(|line| line.ends_with(" (deleted)"))
        .filter_map(move |line| Some(files.join(range_of(&line)?)))
}

/// The address range of a mapping, as its file in `map_files` is named.
fn range_of(line: &str) -> Option<String> {
    let (from, to) = line.split_once(' ')?.0.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(format!("{:x}-{:x}", number(from)?, number(to)?))
}

/// The workspace that a line of a list of mounts is about.
fn mounted_workspace(line: &str) -> Option<WorkspaceId> {
    let root = line.split(' ').nth(3)?;
    workspace_named(root.rsplit('/').next()?)
}

fn lines(list: &Path) -> impl Iterator<Item = String> + use<> {
    let file = File::open(list).ok();
    file.into_iter().flat_map(|file| {
        // Names may be anything, and a line that is not text is none of ours.
        BufReader::new(file.take(LIST_BYTES_MAX))
            .split(b'\n')
            .map_while(Result::ok)
            .filter_map(|line| String::from_utf8(line).ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_file_scan_parses_mounts_and_mappings() {
        let id = "00010203-0405-0607-0809-0a0b0c0d0e0f";
        let mount = |root: &str| format!("36 35 98:0 {root} /workspace rw - ext4 /dev/vda rw");
        for (line, expected) in [
            (mount(&format!("/data/workspaces/{id}")), id.parse().ok()),
            (mount(&format!("/{id}")), id.parse().ok()),
            (mount("/"), None),
            (mount(&format!("/{id}/inner")), None),
            ("36 35".to_owned(), None),
        ] {
            assert_eq!(mounted_workspace(&line), expected, "{line}");
        }
        for (line, expected) in [
            ("00400000-0040b000 r-xp 0 fe:00 7 /a (deleted)", Some("400000-40b000")),
            ("7f00a0000000-7f00a0001000 rw-s 0 fe:00 7 /b", Some("7f00a0000000-7f00a0001000")),
            ("nothing", None),
            ("x-y z", None),
        ] {
            assert_eq!(range_of(line).as_deref(), expected, "{line}");
        }
    }
}
