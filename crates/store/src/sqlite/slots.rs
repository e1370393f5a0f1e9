//! Where the records of one table are. This module knows every id in the table, so it never
//! searches for a row, and a new record takes the row of a removed one.

use std::collections::BTreeMap;

/// The rows of a table, by id.
#[derive(Debug)]
pub(super) struct Slots<K> {
    of: BTreeMap<K, i64>,
    free: Vec<i64>,
    next: i64,
}

/// What a batch means for a table: the rows to write and to delete, and what is known after the
/// commit.
#[derive(Debug)]
pub(super) struct Moves<K, T> {
    /// Rows to write.
    pub(super) puts: Vec<(i64, T)>,
    /// Rows to delete.
    pub(super) deletes: Vec<i64>,
    placed: Vec<(K, i64)>,
    gone: Vec<K>,
    taken_from_free: usize,
    next: i64,
}

impl<K: Ord + Clone> Slots<K> {
    pub(super) const fn new() -> Self {
        Self { of: BTreeMap::new(), free: Vec::new(), next: 1 }
    }

    /// Adds a row of the table. False if its id is in another row already.
    #[must_use]
    pub(super) fn found(&mut self, id: K, slot: i64) -> bool {
        self.next = self.next.max(slot + 1);
        self.of.insert(id, slot).is_none()
    }

    /// After all rows were added: the gaps between them can be used.
    pub(super) fn all_found(&mut self) {
        let taken: std::collections::BTreeSet<i64> = self.of.values().copied().collect();
        self.free = (1..self.next).filter(|slot| !taken.contains(slot)).collect();
    }

    /// Finds a row for every record to store, and the rows to delete. Changes nothing: the
    /// transaction may fail.
    pub(super) fn plan<T: Copy>(&self, last: &[(K, Option<T>)]) -> Moves<K, T> {
        let mut moves = Moves {
            puts: Vec::with_capacity(last.len()),
            deletes: Vec::new(),
            placed: Vec::new(),
            gone: Vec::new(),
            taken_from_free: 0,
            next: self.next,
        };
        for (id, put) in last {
            if put.is_none()
                && let Some(&slot) = self.of.get(id)
            {
                moves.deletes.push(slot);
                moves.gone.push(id.clone());
            }
        }
        for (id, put) in last {
            let Some(value) = *put else { continue };
            let slot = self.of.get(id).copied().unwrap_or_else(|| {
                let slot = moves.vacant(&self.free);
                moves.placed.push((id.clone(), slot));
                slot
            });
            moves.puts.push((slot, value));
        }
        moves
    }

    /// The transaction was committed.
    pub(super) fn accept<T>(&mut self, moves: Moves<K, T>) {
        for id in &moves.gone {
            self.of.remove(id);
        }
        self.of.extend(moves.placed);
        self.free.truncate(self.free.len() - moves.taken_from_free);
        self.free.extend(moves.deletes);
        self.next = moves.next;
    }
}

impl<K, T> Moves<K, T> {
    /// Whether any row changes.
    pub(super) const fn write(&self) -> bool {
        !self.puts.is_empty() || !self.deletes.is_empty()
    }

    fn vacant(&mut self, free: &[i64]) -> i64 {
        if let Some(slot) = self.deletes.pop() {
            return slot;
        }
        if self.taken_from_free < free.len() {
            self.taken_from_free += 1;
            return free[free.len() - self.taken_from_free];
        }
        self.next += 1;
        self.next - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(of: &[(u8, i64)]) -> Slots<u8> {
        let mut slots = Slots::new();
        assert!(of.iter().all(|&(id, slot)| slots.found(id, slot)));
        slots.all_found();
        slots
    }

    type Case<'a> = (&'a str, &'a [(u8, Option<char>)], &'a [(i64, char)], &'a [i64]);

    #[test]
    fn slots_are_overwritten_and_reused() {
        let nothing: &[i64] = &[];
        let cases: [Case<'_>; 8] = [
            ("nothing", &[], &[], nothing),
            ("a known id keeps its row", &[(1, Some('x'))], &[(1, 'x')], nothing),
            ("a new id takes the gap", &[(9, Some('x'))], &[(2, 'x')], nothing),
            (
                "the second new one a new row",
                &[(8, Some('x')), (9, Some('y'))],
                &[(2, 'x'), (4, 'y')],
                nothing,
            ),
            ("an unknown id needs no delete", &[(9, None)], &[], nothing),
            ("a known id does", &[(3, None)], &[], &[3]),
            ("a row changes hands", &[(3, None), (9, Some('x'))], &[(3, 'x')], nothing),
            (
                "also when the new id comes first",
                &[(0, Some('x')), (1, None), (3, None)],
                &[(3, 'x')],
                &[1],
            ),
        ];
        for (what, last, puts, deletes) in cases {
            let moves = rows(&[(1, 1), (3, 3)]).plan(last);
            assert_eq!((&*moves.puts, &*moves.deletes), (puts, deletes), "{what}");
        }
    }

    #[test]
    fn slots_know_what_was_accepted() {
        let mut slots = rows(&[(1, 1), (3, 3)]);
        for last in [
            vec![(3, None), (8, Some(())), (9, Some(()))],
            vec![(1, None), (8, None)],
            vec![(5, Some(())), (6, Some(())), (7, Some(())), (9, None)],
        ] {
            let moves = slots.plan(&last);
            slots.accept(moves);
            let mut taken: Vec<_> = slots.of.values().chain(&slots.free).copied().collect();
            taken.sort_unstable();
            assert!(taken.iter().copied().eq(1..slots.next), "each row once: {slots:?}");
        }
        assert_eq!(slots.of.keys().copied().collect::<Vec<_>>(), [5, 6, 7]);
    }

    #[test]
    fn slots_notice_an_id_in_two_rows() {
        let mut slots = rows(&[(1, 1)]);
        assert!(!slots.found(1, 2));
    }
}
