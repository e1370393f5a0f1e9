//! Slots: the numbers of sandboxes that may live at once. A slot owns a range of users, and control
//! groups that it keeps from one sandbox to the next. This module remembers which limits and which
//! number of kills its groups had last.

use std::collections::VecDeque;

use jail::groups::Limits;

#[derive(Default)]
pub(super) struct Slots {
    free: VecDeque<u32>,
    /// The state of each slot that was ever used.
    states: Vec<SlotState>,
    at_most: u32,
}

#[derive(Default, Clone, Copy)]
struct SlotState {
    limits: Option<Limits>,
    /// Whether the CPU limit is lifted until the next sandbox begins.
    cpu_lifted: bool,
    out_of_memory_kills: u64,
}

impl Slots {
    pub(super) fn new(at_most: u32) -> Self {
        Self { at_most, ..Self::default() }
    }

    /// Takes a slot, preferably one that was used before: its groups exist already.
    pub(super) fn take(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop_front() {
            return Some(slot);
        }
        let slot = self.used();
        if slot == self.at_most {
            return None;
        }
        self.states.push(SlotState::default());
        Some(slot)
    }

    /// Whether a slot is free.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty() || self.used() < self.at_most
    }

    /// Returns a slot with the present number of kills of its group. Whether the kernel killed
    /// something since the slot was taken.
    pub(super) fn release(&mut self, slot: u32, out_of_memory_kills: u64) -> bool {
        self.free.push_back(slot);
        let Some(state) = self.states.get_mut(slot as usize) else { return false };
        let before = std::mem::replace(&mut state.out_of_memory_kills, out_of_memory_kills);
        out_of_memory_kills > before
    }

    /// How many slots were ever used.
    pub(super) fn used(&self) -> u32 {
        self.states.len() as u32
    }

    /// The limits that its groups have.
    pub(super) fn limits(&self, slot: u32) -> Option<Limits> {
        self.states.get(slot as usize).and_then(|state| state.limits)
    }

    pub(super) fn limits_written(&mut self, slot: u32, limits: Limits) {
        if let Some(state) = self.states.get_mut(slot as usize) {
            state.limits = Some(limits);
        }
    }

    /// Records whether the CPU limit is lifted.
    pub(super) fn cpu_lifted(&mut self, slot: u32, lifted: bool) {
        if let Some(state) = self.states.get_mut(slot as usize) {
            state.cpu_lifted = lifted;
        }
    }

    /// Whether the CPU limit is lifted.
    pub(super) fn is_cpu_lifted(&self, slot: u32) -> bool {
        self.states.get(slot as usize).is_some_and(|state| state.cpu_lifted)
    }

    /// Records that the limits of its groups are unknown.
    pub(super) fn limits_unknown(&mut self, slot: u32) {
        if let Some(state) = self.states.get_mut(slot as usize) {
            state.limits = None;
        }
    }

    /// The number of kills when the slot was last returned.
    pub(super) fn out_of_memory_kills(&self, slot: u32) -> u64 {
        self.states.get(slot as usize).map_or(0, |state| state.out_of_memory_kills)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_before_new_ones_and_never_twice_at_once() {
        let mut slots = Slots::new(2);
        assert_eq!((slots.take(), slots.take(), slots.take()), (Some(0), Some(1), None));
        assert!(!slots.release(1, 0));
        assert_eq!((slots.take(), slots.take()), (Some(1), None));
        assert_eq!(slots.used(), 2);
    }

    #[test]
    fn out_of_memory_kills_are_reported_for_the_right_sandbox() {
        let mut slots = Slots::new(1);
        let slot = slots.take().unwrap();
        assert!(slots.release(slot, 3), "three kills in the first");
        assert_eq!(slots.take(), Some(slot));
        assert_eq!(slots.out_of_memory_kills(slot), 3);
        assert!(!slots.release(slot, 3), "none in the second");
    }
}
