//! Events of one key in blocks that have those of other keys too: finds whose they are, and takes
//! the oldest of one key out. A block without events is deleted, and the last block never changes,
//! since it says where numbering continues.

use memchr::memmem::Finder;
use model::KeyId;
use rusqlite::{Connection, params};
use serde::Deserialize;

use super::json_lines;
use crate::event_shares::EventShares;

/// How many blocks one commit looks at. The next one continues there.
const BLOCKS_AT_ONCE: usize = 2_048;

/// How much was deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) count: u64,
    pub(super) bytes: u64,
}

/// The part of an event that says whose it is.
#[derive(Deserialize)]
struct Owner {
    number: u64,
    tenant: KeyId,
}

/// A line that cannot be read belongs to none; its reader reports it.
fn owner(line: &[u8]) -> Owner {
    serde_json::from_slice(line).unwrap_or(Owner { number: 0, tenant: KeyId::NIL })
}

/// Whose events are stored.
pub(super) fn found(conn: &Connection) -> rusqlite::Result<EventShares> {
    let mut shares = EventShares::default();
    let mut select = conn.prepare("SELECT last, lines FROM events ORDER BY last")?;
    let mut blocks = select.query([])?;
    while let Some(block) = blocks.next()? {
        let place = block.get(0)?;
        for line in json_lines::all(block.get_ref(1)?.as_bytes()?) {
            let Owner { number, tenant } = owner(line);
            shares.found(tenant, number, place);
        }
    }
    shares.found_all();
    Ok(shares)
}

/// What becomes of a block.
struct Edit {
    place: i64,
    first: u64,
    count: u64,
    lines: Vec<u8>,
}

/// Deletes the oldest events of a key, at most so many.
pub(super) fn remove(
    conn: &Connection,
    shares: &mut EventShares,
    tenant: KeyId,
    most: u64,
    last_block: i64,
) -> rusqlite::Result<Taken> {
    let (mut taken, mut number, mut from) = (Taken::default(), 0, shares.from(tenant));
    let mut edits = Vec::new();
    let id = tenant.to_string();
    let needle = Finder::new(&id);
    let sql = "SELECT last, lines FROM events WHERE last >= ?1 AND last < ?2 ORDER BY last";
    let mut select = conn.prepare_cached(sql)?;
    let mut blocks = select.query([from, last_block])?;
    for _ in 0..BLOCKS_AT_ONCE {
        if taken.count >= most {
            break;
        }
        let Some(block) = blocks.next()? else { break };
        let (place, text) = (block.get(0)?, block.get_ref(1)?.as_bytes()?);
        from = place;
        if needle.find(text).is_none() {
            continue;
        }
        let mut edit = Edit { place, first: 0, count: 0, lines: Vec::new() };
        let before = taken.count;
        for line in json_lines::all(text) {
            let of = owner(line);
            if of.tenant == tenant && taken.count < most {
                taken.count += 1;
                taken.bytes += line.len() as u64 + 1;
                number = of.number;
            } else {
                edit.keep(line, of.number);
            }
        }
        if taken.count > before {
            edits.push(edit);
        }
    }
    drop(blocks);
    for edit in edits {
        edit.write(conn)?;
    }
    shares.remove(tenant, taken.count, number, from);
    Ok(taken)
}

impl Edit {
    fn keep(&mut self, line: &[u8], number: u64) {
        if self.count == 0 {
            self.first = number;
        }
        self.count += 1;
        self.lines.extend_from_slice(line);
        self.lines.push(b'\n');
    }

    fn write(&self, conn: &Connection) -> rusqlite::Result<()> {
        if self.count == 0 {
            conn.prepare_cached("DELETE FROM events WHERE last = ?1")?.execute([self.place])?;
            return Ok(());
        }
        let sql = "UPDATE events SET first = ?2, count = ?3, lines = ?4 WHERE last = ?1";
        let lines = String::from_utf8_lossy(&self.lines);
        let row = params![self.place, self.first.cast_signed(), self.count.cast_signed(), lines];
        conn.prepare_cached(sql)?.execute(row)?;
        Ok(())
    }
}
