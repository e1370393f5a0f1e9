//! Two endpoints and a pipe with random timing: every lane gets all its bytes in order, and a
//! reader that does not read delays only itself.

use std::collections::BTreeMap;

use guest_protocol::endpoint::INITIAL_WINDOW_BYTES;
use guest_protocol::message::Request;
use guest_protocol::{Endpoint, Incoming};
use proptest::collection::vec;
use proptest::prelude::*;

const LANES: [(u32, u8); 6] = [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)];

/// The byte at a position of a lane's stream.
fn byte_at(stream: (u32, u8), place: usize) -> u8 {
    ((place * 31) ^ (place >> 8) ^ (stream.0 as usize * 7 + stream.1 as usize)) as u8
}

/// One direction of a lane, from both ends.
#[derive(Debug, Default)]
struct Stream {
    total: usize,
    sent: usize,
    ended: bool,
    held: usize,
    read: usize,
    over: bool,
    slow: bool,
}

#[derive(Debug)]
struct World {
    from: Endpoint,
    to: Endpoint,
    there: Vec<u8>,
    back: Vec<u8>,
    streams: BTreeMap<(u32, u8), Stream>,
    seed: u64,
}

impl World {
    fn new(seed: u64, totals: &[usize], slow: &[bool]) -> Self {
        let (mut from, mut to) = (Endpoint::new(), Endpoint::accepting());
        for channel in [1, 2] {
            from.send(channel, &Request::Ping).unwrap();
        }
        to.feed(from.outgoing()).unwrap();
        from.sent(usize::MAX >> 1);
        while to.next().is_some() {}
        let streams =
            LANES.iter().zip(totals).zip(slow).map(|((&name, &total), &slow)| {
                (name, Stream { total, slow, ..Stream::default() })
            });
        Self { from, to, there: Vec::new(), back: Vec::new(), streams: streams.collect(), seed }
    }

    fn dice(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed % below.max(1) as u64) as usize
    }

    fn step(&mut self, slow_ones_read: bool) {
        let name = LANES[self.dice(LANES.len())];
        match self.dice(5) {
            0 => self.write(name),
            1 => self.read(name, slow_ones_read),
            2 => {
                let n = self.dice(self.from.outgoing().len() + 1);
                self.there.extend_from_slice(&self.from.outgoing()[..n]);
                self.from.sent(n);
                let n = self.dice(self.to.outgoing().len() + 1);
                self.back.extend_from_slice(&self.to.outgoing()[..n]);
                self.to.sent(n);
            }
            3 => {
                let n = self.dice(self.there.len() + 1);
                self.to.feed(&self.there[..n]).unwrap();
                self.there.drain(..n);
                self.arrive();
            }
            _ => {
                let n = self.dice(self.back.len() + 1);
                self.from.feed(&self.back[..n]).unwrap();
                self.back.drain(..n);
                while self.from.next().is_some() {}
            }
        }
    }

    fn write(&mut self, name: (u32, u8)) {
        let most = 1 + self.dice(90_000);
        let stream = self.streams.get_mut(&name).unwrap();
        let until = stream.total.min(stream.sent + most);
        let bytes: Vec<u8> = (stream.sent..until).map(|place| byte_at(name, place)).collect();
        stream.sent += self.from.send_data(name.0, name.1, &bytes);
        if stream.sent == stream.total && !stream.ended {
            stream.ended = true;
            self.from.end(name.0, name.1);
        }
    }

    fn arrive(&mut self) {
        while let Some(incoming) = self.to.next() {
            match incoming {
                Incoming::Data { channel, lane, bytes } => {
                    let stream = self.streams.get_mut(&(channel, lane)).unwrap();
                    let start = stream.read + stream.held;
                    for (n, byte) in bytes.iter().enumerate() {
                        assert_eq!(*byte, byte_at((channel, lane), start + n));
                    }
                    stream.held += bytes.len();
                    assert!(stream.held <= INITIAL_WINDOW_BYTES as usize, "memory is bounded");
                }
                Incoming::End { channel, lane } => {
                    let stream = self.streams.get_mut(&(channel, lane)).unwrap();
                    assert_eq!(stream.read + stream.held, stream.total, "the end comes last");
                    stream.over = true;
                }
                Incoming::Message { .. } | Incoming::Reset { .. } | Incoming::Writable { .. } => {
                    panic!("{incoming:?}")
                }
            }
        }
    }

    fn read(&mut self, name: (u32, u8), slow_ones_read: bool) {
        let most = 1 + self.dice(90_000);
        let stream = self.streams.get_mut(&name).unwrap();
        if stream.slow && !slow_ones_read {
            return;
        }
        let bytes = stream.held.min(most);
        stream.held -= bytes;
        stream.read += bytes;
        self.to.consumed(name.0, name.1, bytes);
    }

    fn done(&self, slow: bool) -> bool {
        let mut streams = self.streams.values().filter(|stream| stream.slow == slow);
        streams.all(|stream| stream.over && stream.read == stream.total)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_slow_reader_blocks_no_other(
        seed in 1_u64..,
        totals in vec(prop_oneof![0_usize..2000, 0_usize..1_500_000], 6),
        slow in vec(any::<bool>(), 6),
    ) {
        let mut world = World::new(seed, &totals, &slow);
        let mut steps = 0;
        while !world.done(false) {
            world.step(false);
            steps += 1;
            prop_assert!(steps < 200_000, "a slow reader holds up the others: {world:?}");
        }
        while !world.done(true) {
            world.step(true);
            steps += 1;
            prop_assert!(steps < 400_000, "a stream is stuck: {world:?}");
        }
        for (stream, total) in world.streams.values().zip(&totals) {
            prop_assert_eq!(stream.read, *total);
        }
    }
}
