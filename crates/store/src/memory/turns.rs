//! Turns in memory: by number, id and session, and by the time of their end.

use std::collections::{BTreeMap, BTreeSet};

use model::turn::{TurnChange, TurnEnd, TurnPiece, TurnRecord};
use model::{KeyId, SessionId, TurnId, Wall};

use crate::contract::TurnQuery;
use crate::retention::Retention;
use crate::retention_selection::{Next, RetentionSelection, Shares, Tally};
use crate::turns::{
    PAGE_BYTES, end_bytes, forked, forked_id, latest, numbered, piece_bytes, put_bytes, shown_bytes,
};

/// All stored turns.
#[derive(Debug)]
pub(crate) struct Turns {
    retention: Retention,
    by_number: BTreeMap<u64, Turn>,
    ids: BTreeMap<TurnId, u64>,
    of_session: BTreeMap<SessionId, BTreeSet<u64>>,
    /// Ended ones, in the order of their ends.
    over: BTreeSet<(Wall, u64)>,
    over_of: BTreeMap<KeyId, BTreeSet<(Wall, u64)>>,
    shares: Shares,
    last_number: u64,
}

#[derive(Debug)]
struct Turn {
    record: TurnRecord,
    pieces: Vec<TurnPiece>,
    /// The size of its record.
    put_bytes: u64,
    pieces_bytes: u64,
}

impl Turn {
    /// What a fork copies of it, and its pieces.
    fn bytes(&self) -> (u64, u64) {
        let end = self.record.end.as_ref().map_or(0, end_bytes);
        (self.put_bytes + end, self.pieces_bytes)
    }

    fn share(&self) -> Tally {
        let (copied, pieces) = self.bytes();
        Tally::one(copied + pieces)
    }

    fn last_piece(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.seq)
    }
}

impl Turns {
    pub(crate) fn new(retention: Retention) -> Self {
        Self {
            retention,
            by_number: BTreeMap::new(),
            ids: BTreeMap::new(),
            of_session: BTreeMap::new(),
            over: BTreeSet::new(),
            over_of: BTreeMap::new(),
            shares: Shares::default(),
            last_number: 0,
        }
    }

    pub(crate) fn write(&mut self, changes: &[TurnChange]) {
        if changes.is_empty() {
            return;
        }
        let before = self.over.len();
        for change in changes {
            match change {
                TurnChange::Put(record) => self.put(record.clone(), Vec::new()),
                TurnChange::Pieces { turn, pieces } => self.append(*turn, pieces),
                TurnChange::Started { turn, start } => {
                    if let Some(kept) = self.unfinished(*turn) {
                        kept.record.started = Some(*start);
                    }
                }
                TurnChange::Ended { turn, end } => self.end(*turn, end),
                TurnChange::Forked { from, to } => self.fork(*from, *to),
            }
        }
        let ended = self.over.len() - before;
        self.delete_surplus(RetentionSelection::new(
            self.retention.turn_bounds(),
            latest(changes),
            ended as u64,
        ));
        self.shares.settle();
    }

    fn put(&mut self, record: TurnRecord, pieces: Vec<TurnPiece>) {
        if self.ids.contains_key(&record.id) {
            return;
        }
        self.last_number += 1;
        let number = self.last_number;
        let (put_bytes, pieces_bytes) = (put_bytes(&record), pieces.iter().map(piece_bytes).sum());
        let record = TurnRecord { number, ..record };
        let mut turn = Turn { record, pieces, put_bytes, pieces_bytes };
        let last_piece = turn.last_piece();
        turn.record.end = turn.record.end.map(|end| numbered(&end, last_piece));
        self.ids.insert(turn.record.id, number);
        self.of_session.entry(turn.record.session).or_default().insert(number);
        self.by_number.insert(number, turn);
        self.count_if_ended(number);
    }

    /// Counts a turn, if it has ended.
    fn count_if_ended(&mut self, number: u64) {
        let Some(turn) = self.by_number.get(&number) else { return };
        let Some(end) = &turn.record.end else { return };
        let (tenant, at) = (turn.record.tenant, end.at);
        self.over.insert((at, number));
        self.over_of.entry(tenant).or_default().insert((at, number));
        self.shares.add(tenant, turn.share());
    }

    fn append(&mut self, turn: TurnId, pieces: &[TurnPiece]) {
        let Some(kept) = self.unfinished(turn) else { return };
        let last = kept.last_piece();
        for piece in pieces.iter().filter(|piece| piece.seq > last) {
            kept.pieces_bytes += piece_bytes(piece);
            kept.pieces.push(piece.clone());
        }
    }

    fn end(&mut self, turn: TurnId, end: &TurnEnd) {
        let Some(kept) = self.unfinished(turn) else { return };
        kept.record.end = Some(numbered(end, kept.last_piece()));
        let number = kept.record.number;
        self.count_if_ended(number);
    }

    fn fork(&mut self, from: SessionId, to: SessionId) {
        if self.of_session.contains_key(&to) {
            return;
        }
        let of_parent = self.of_session.get(&from).into_iter().flatten();
        let over = of_parent.filter_map(|number| {
            self.by_number.get(number).filter(|turn| turn.record.end.is_some())
        });
        let latest_first: Vec<&Turn> = over.rev().collect();
        let count = forked(latest_first.iter().map(|turn| turn.bytes().0));
        let mut copies: Vec<_> = latest_first
            .into_iter()
            .take(count)
            .map(|turn| {
                let id = forked_id(turn.record.id, to);
                (TurnRecord { id, session: to, ..turn.record.clone() }, turn.pieces.clone())
            })
            .collect();
        while let Some((record, pieces)) = copies.pop() {
            self.put(record, pieces);
        }
    }

    fn unfinished(&mut self, turn: TurnId) -> Option<&mut Turn> {
        let number = self.ids.get(&turn)?;
        self.by_number.get_mut(number).filter(|kept| kept.record.end.is_none())
    }

    fn delete_surplus(&mut self, mut selection: RetentionSelection) {
        while let Some(next) = selection.next(&self.shares) {
            let first = match next {
                Next::Of(tenant) => self.over_of.get(&tenant).and_then(BTreeSet::first),
                Next::EndedBefore(moment) => self.over.first().filter(|(at, _)| *at < moment),
            };
            let Some(&(at, number)) = first else { return };
            self.over.remove(&(at, number));
            let Some(turn) = self.by_number.remove(&number) else { return };
            let tenant = turn.record.tenant;
            if let Some(left) = self.over_of.get_mut(&tenant) {
                left.remove(&(at, number));
                if left.is_empty() {
                    self.over_of.remove(&tenant);
                }
            }
            self.shares.remove(tenant, turn.share());
            self.ids.remove(&turn.record.id);
            let session = turn.record.session;
            if let Some(left) = self.of_session.get_mut(&session) {
                left.remove(&number);
                if left.is_empty() {
                    self.of_session.remove(&session);
                }
            }
        }
    }

    pub(crate) fn turn(&self, turn: TurnId) -> Option<TurnRecord> {
        self.kept(turn).map(|kept| kept.record.clone())
    }

    pub(crate) fn turns(&self, query: &TurnQuery) -> Vec<TurnRecord> {
        let Some(numbers) = self.of_session.get(&query.session) else { return Vec::new() };
        let Some(first) = query.after.checked_add(1) else { return Vec::new() };
        let kept = numbers.range(first..).filter_map(|number| self.by_number.get(number));
        page(kept.map(|turn| &turn.record), shown_bytes, query.limit)
    }

    pub(crate) fn pieces(&self, turn: TurnId, after: u64, limit: u32) -> Vec<TurnPiece> {
        let Some(kept) = self.kept(turn) else { return Vec::new() };
        let from = kept.pieces.partition_point(|piece| piece.seq <= after);
        page(kept.pieces[from..].iter(), piece_bytes, limit)
    }

    fn kept(&self, turn: TurnId) -> Option<&Turn> {
        self.by_number.get(self.ids.get(&turn)?)
    }
}

fn page<'k, T: Clone + 'k>(
    all: impl Iterator<Item = &'k T>,
    bytes_of: impl Fn(&T) -> u64,
    limit: u32,
) -> Vec<T> {
    let mut bytes = 0;
    let fits = all.take(limit as usize).take_while(|one| {
        let room = bytes < PAGE_BYTES as u64;
        bytes += bytes_of(one);
        room
    });
    fits.cloned().collect()
}
