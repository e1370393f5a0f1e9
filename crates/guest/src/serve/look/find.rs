//! Finds files by name and kind.

use guest_protocol::look::{Sighting, Until, Which};
use guest_protocol::message::{EntryKind, Fault, FaultCode};

use super::super::fault::fault;
use super::super::files::{PERMISSIONS, kind_of, milliseconds};
use super::record_writer::RecordWriter;
use super::walk::{Deadline, Walk};

/// Reports the files beneath a directory.
pub(super) fn find(
    path: &str,
    which: &Which,
    kinds: &[EntryKind],
    max_depth: Option<u32>,
    until: Until,
    records: &mut RecordWriter,
) -> Result<(), Fault> {
    let deadline = Deadline::after(until.time_ms);
    let Ok(mut walk) = Walk::start(path, which, max_depth)? else {
        return Err(fault(FaultCode::WrongKind, format!("{path} is not a directory")));
    };
    let (mut found, mut truncated) = (0, false);
    while let Some(visit) = walk.next() {
        let kind = kind_of(&visit.stat);
        if deadline.has_passed() || records.is_closed() {
            truncated = true;
            break;
        }
        if !visit.is_wanted || !(kinds.is_empty() || kinds.contains(&kind)) {
            continue;
        }
        if found == until.results {
            truncated = true;
            break;
        }
        found += 1;
        records.write(&Sighting::File {
            path: visit.path,
            kind,
            size: u64::try_from(visit.stat.st_size).unwrap_or(0),
            mode: visit.stat.st_mode & PERMISSIONS,
            modified_ms: milliseconds(&visit.stat),
        });
    }
    let truncated = truncated || walk.is_cut;
    records.write(&Sighting::Over { truncated, count: walk.unreadable });
    Ok(())
}
