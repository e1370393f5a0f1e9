//! Contenders and the rounds in which they take turns. Only one runs at a time, and what is
//! compared was measured within the same second.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use super::samples::{Pace, Samples};
use command::failure::Failure;

/// The pause before a sample: longer than a grace period of the kernel.
pub(crate) const GAP: Duration = Duration::from_millis(50);

/// A sample: names of steps and how long each took.
pub(crate) type Times = Vec<(&'static str, Duration)>;

/// Something that can be measured again and again.
#[async_trait]
pub(crate) trait Contender: Send {
    /// Names it where it is chosen or fails.
    fn name(&self) -> &'static str;

    /// Takes part in every n-th round only: slow contenders are measured less often.
    fn every(&self) -> u32 {
        1
    }

    /// Measures once.
    async fn sample(&mut self) -> Result<Times, Failure>;

    /// Cleans up.
    async fn close(&mut self) {}
}

/// What could not be measured, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) name: String,
    pub(crate) why: String,
}

/// Lets all take turns, each with `burst` samples in a row. A contender that fails is skipped from
/// then on, and reported.
pub(crate) async fn compete(
    contenders: &mut Vec<Box<dyn Contender>>,
    pace: Pace,
    rounds: u32,
    burst: u32,
    samples: &mut Samples,
    skipped: &mut Vec<Skipped>,
) {
    let mut out = BTreeMap::new();
    // One round that does not count: files come into memory, pools fill.
    for round in 0..=rounds {
        for index in order(round, contenders.len()) {
            let contender = &mut contenders[index];
            if out.contains_key(&index) || !round.is_multiple_of(contender.every()) {
                continue;
            }
            for _ in 0..burst {
                if pace == Pace::Spaced {
                    sleep(GAP).await;
                }
                match contender.sample().await {
                    Ok(times) => {
                        let counted = times.into_iter().filter(|_| round > 0);
                        counted.for_each(|(name, time)| samples.push(name, pace, time));
                    }
                    Err(failure) => {
                        out.insert(index, failure.to_string());
                        break;
                    }
                }
            }
        }
    }
    // From the last, so that the indexes of the others stay valid.
    for (index, why) in out.into_iter().rev() {
        let mut contender = contenders.remove(index);
        skipped.push(Skipped { name: contender.name().to_owned(), why });
        contender.close().await;
    }
}

/// The order of one round: another one in each, and the same in each run. What follows after a
/// slow contender finds colder caches, so no contender may always have the same one before it.
fn order(round: u32, contenders: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..contenders).collect();
    order.sort_by_key(|index| mix((u64::from(round) << 32) | *index as u64));
    order
}

/// Spreads a number over all bits (`SplitMix64`).
const fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Steady(&'static str, u32);
    struct Broken(u32);

    #[async_trait]
    impl Contender for Steady {
        fn name(&self) -> &'static str {
            self.0
        }
        fn every(&self) -> u32 {
            self.1
        }
        async fn sample(&mut self) -> Result<Times, Failure> {
            Ok(vec![(self.0, Duration::from_micros(5))])
        }
    }

    #[async_trait]
    impl Contender for Broken {
        fn name(&self) -> &'static str {
            "broken"
        }
        async fn sample(&mut self) -> Result<Times, Failure> {
            self.0 += 1;
            if self.0 > 2 {
                return Err(Failure::new("cannot", "tired"));
            }
            Ok(vec![("broken", Duration::ZERO)])
        }
    }

    #[test]
    fn contender_has_every_other_one_before_it_in_some_round() {
        let mut before = std::collections::BTreeSet::new();
        for round in 0..100 {
            let order = order(round, 5);
            assert_eq!(order.iter().copied().sum::<usize>(), 10, "each once");
            before.extend(order.windows(2).map(|pair| (pair[0], pair[1])));
        }
        assert_eq!(before.len(), 5 * 4);
    }

    #[tokio::test]
    async fn contenders_take_turns_and_a_failed_one_is_skipped() {
        let (mut samples, mut skipped) = (Samples::default(), vec![]);
        let mut contenders: Vec<Box<dyn Contender>> =
            vec![Box::new(Steady("a", 1)), Box::new(Broken(0)), Box::new(Steady("b", 5))];
        compete(&mut contenders, Pace::BackToBack, 10, 1, &mut samples, &mut skipped).await;
        let count = |name| samples.get(name, Pace::BackToBack).unwrap().len();
        assert_eq!((count("a"), count("b"), count("broken")), (10, 2, 1));
        assert_eq!(skipped, [Skipped { name: "broken".into(), why: "cannot: tired".into() }]);
        assert_eq!(contenders.len(), 2);
    }
}
