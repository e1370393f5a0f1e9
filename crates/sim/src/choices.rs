//! The one source of every random decision. A run draws numbers from a random seed and records them
//! step by step; a run can also be driven by such a list, and then a missing number is 0. Nothing
//! in a world may decide anything by other means: no clock, no thread, no hash order. By convention
//! 0 is the dullest choice, so lower numbers make a calmer world.

/// Draws numbers, or plays back numbers that were drawn before.
#[derive(Debug)]
pub struct Choices {
    source: Source,
    drawn: Vec<Vec<u32>>,
}

#[derive(Debug)]
enum Source {
    /// Every choice is 0, and nothing is recorded.
    Dull,
    Seed(u64),
    List {
        steps: Vec<Vec<u32>>,
        at: usize,
    },
}

impl Choices {
    /// Draws from a seed.
    pub fn seeded(seed: u64) -> Self {
        Self { source: Source::Seed(seed ^ 0x5be1_1a5e_ed00_77aa), drawn: vec![Vec::new()] }
    }

    /// Plays back; the first list is what was drawn before the first step.
    pub fn listed(steps: Vec<Vec<u32>>) -> Self {
        Self { source: Source::List { steps, at: 0 }, drawn: vec![Vec::new()] }
    }

    /// Starts the list of another step.
    pub fn begin_step(&mut self) {
        self.drawn.push(Vec::new());
        if let Source::List { at, .. } = &mut self.source {
            *at += 1;
        }
    }

    /// From now on every choice is the dullest.
    pub fn grow_dull(&mut self) {
        self.source = Source::Dull;
    }

    /// What was drawn so far, step by step.
    pub fn into_drawn(self) -> Vec<Vec<u32>> {
        self.drawn
    }

    /// A number below `bound`; 0 if the bound is 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        if bound <= 1 {
            return 0;
        }
        let here = self.drawn.len() - 1;
        let value = match &mut self.source {
            Source::Dull => return 0,
            Source::Seed(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut mixed = *state;
                mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((u128::from(mixed ^ (mixed >> 31)) * u128::from(bound)) >> 64) as u32
            }
            Source::List { steps, at } => {
                let next = self.drawn[here].len();
                steps.get(*at).and_then(|step| step.get(next)).copied().unwrap_or(0) % bound
            }
        };
        self.drawn[here].push(value);
        value
    }

    /// A number from `low` up to and including `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + u64::from(self.below((high.saturating_sub(low) + 1) as u32))
    }

    /// Whether something that happens `per_mille` times in a thousand happens now.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.below(1000) >= 1000_u32.saturating_sub(per_mille)
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        items.get(self.below(items.len() as u32) as usize).copied()
    }

    /// An index, each as likely as its weight.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut left = self.below(weights.iter().sum());
        for (index, &weight) in weights.iter().enumerate() {
            if left < weight {
                return index;
            }
            left -= weight;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_choices_play_back() {
        let mut seeded = Choices::seeded(7);
        let draw = |choices: &mut Choices| {
            let mut all = vec![choices.below(10)];
            choices.begin_step();
            all.extend([choices.below(1000), choices.weighted(&[1, 2, 3]) as u32]);
            all.push(u32::from(choices.chance(500)));
            all
        };
        let first = draw(&mut seeded);
        let mut listed = Choices::listed(seeded.into_drawn());
        assert_eq!(draw(&mut listed), first);
        listed.begin_step();
        assert_eq!((listed.below(9), listed.chance(999)), (0, false), "what is missing is dull");
    }
}
