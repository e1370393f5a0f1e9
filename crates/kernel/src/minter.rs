//! Makes ids and jitter from the random seed that the kernel starts with, and numbers effects and
//! arrivals. The same seed and the same events give the same ids.

use model::Wall;

use crate::index::mix;

/// A stream of ids.
#[derive(Debug)]
pub(crate) struct Minter {
    state: u64,
    effects: u64,
    places: u64,
}

impl Minter {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed, effects: 0, places: 0 }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A UUID of version 7: ordered by time of making, then random.
    pub(crate) fn id(&mut self, now: Wall) -> u128 {
        let time = u128::from(now.0 & 0xffff_ffff_ffff) << 80;
        let random = (u128::from(self.next()) << 64) | u128::from(self.next());
        let version = 0x7_u128 << 76;
        let variant = 0b10_u128 << 62;
        let mask = (0xfff_u128 << 64) | 0x3fff_ffff_ffff_ffff;
        time | version | variant | (random & mask)
    }

    /// The unique number of the next effect.
    pub(crate) const fn effect(&mut self) -> u64 {
        self.effects += 1;
        self.effects
    }

    /// The next number in the order of arrival, for all queues.
    pub(crate) const fn next_arrival(&mut self) -> u64 {
        self.places += 1;
        self.places
    }

    /// A number from 0 to `bound` - 1, or 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_valid_uuids_of_version_7_in_order_of_time() {
        let mut minter = Minter::new(1);
        let (a, b) = (minter.id(Wall(1000)), minter.id(Wall(1001)));
        assert!(a < b);
        assert_eq!((a >> 80, b >> 80), (1000, 1001));
        let uuid = uuid::Uuid::from_u128(a);
        assert_eq!((uuid.get_version_num(), uuid.get_variant()), (7, uuid::Variant::RFC4122));
        assert_ne!(minter.id(Wall(1001)), b);
        assert_eq!(Minter::new(1).id(Wall(1000)), a);
    }

    #[test]
    fn jitter_stays_below_its_bound_and_differs() {
        let mut minter = Minter::new(2);
        let numbers: Vec<u64> = (0..100).map(|_| minter.below(10)).collect();
        assert!(numbers.iter().all(|n| *n < 10));
        assert!((0..10).all(|n| numbers.contains(&n)));
        assert_eq!(minter.below(0), 0);
    }
}
