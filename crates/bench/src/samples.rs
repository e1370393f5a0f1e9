//! Measured times and what is read from them. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

/// How rounds follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pace {
    /// With a pause before each sample, as in life: caches and grace periods have gone cold.
    Spaced,
    /// One right after the other.
    BackToBack,
}

impl Pace {
    pub(crate) const ALL: [Self; 2] = [Self::Spaced, Self::BackToBack];

    /// In a word, for scripts.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Spaced => "spaced",
            Self::BackToBack => "back_to_back",
        }
    }
}

/// Times of one thing at one pace, sorted when read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Series {
    sorted: Vec<Duration>,
}

impl Series {
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { sorted: times }
    }

    pub(crate) fn push(&mut self, time: Duration) {
        let place = self.sorted.partition_point(|earlier| *earlier <= time);
        self.sorted.insert(place, time);
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// The smallest time that this share of all does not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.sorted.len() * percent).div_ceil(100);
        self.sorted.get(rank.saturating_sub(1)).copied()
    }

    pub(crate) fn median(&self) -> Option<Duration> {
        self.percentile(50)
    }

    pub(crate) fn least(&self) -> Option<Duration> {
        self.sorted.first().copied()
    }
}

/// All that was measured, by name and pace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    series: BTreeMap<(&'static str, Pace), Series>,
    /// Names in the order in which they came first.
    names: Vec<&'static str>,
}

impl Samples {
    pub(crate) fn push(&mut self, name: &'static str, pace: Pace, time: Duration) {
        if !self.names.contains(&name) {
            self.names.push(name);
        }
        self.series.entry((name, pace)).or_default().push(time);
    }

    pub(crate) fn names(&self) -> &[&'static str] {
        &self.names
    }

    pub(crate) fn get(&self, name: &'static str, pace: Pace) -> Option<&Series> {
        self.series.get(&(name, pace))
    }

    /// How often as long one thing takes as another, by the medians of the same rounds.
    pub(crate) fn ratio(&self, name: &'static str, to: &'static str, pace: Pace) -> Option<f64> {
        let one = self.get(name, pace)?.median()?;
        let other = self.get(to, pace)?.median().filter(|time| !time.is_zero())?;
        Some(one.as_secs_f64() / other.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let mut series = Series::default();
        assert_eq!(series.median(), None);
        for n in (1..=100).rev() {
            series.push(ms(n));
        }
        assert_eq!(series.median(), Some(ms(50)));
        assert_eq!(series.percentile(99), Some(ms(99)));
        assert_eq!(series.percentile(100), Some(ms(100)));
        assert_eq!(series.least(), Some(ms(1)));
        let mut one = Series::default();
        one.push(ms(7));
        assert_eq!((one.median(), one.percentile(99), one.len()), (Some(ms(7)), Some(ms(7)), 1));
    }

    #[test]
    fn ratios_compare_the_same_pace() {
        let mut samples = Samples::default();
        samples.push("bare", Pace::Spaced, ms(4));
        samples.push("exec", Pace::Spaced, ms(5));
        samples.push("bare", Pace::BackToBack, ms(2));
        assert_eq!(samples.ratio("exec", "bare", Pace::Spaced), Some(1.25));
        assert_eq!(samples.ratio("exec", "bare", Pace::BackToBack), None);
        assert_eq!(samples.names(), ["bare", "exec"]);
    }
}
