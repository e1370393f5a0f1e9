//! What takes the slots of a pool, by count: launches that wait for a place, launches, leased
//! sandboxes, sandboxes being cleaned. The remaining slots are idle sandboxes and sandboxes that
//! are ending.

/// What takes the slots of a pool.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Occupancy {
    slots: u32,
    /// Launches that wait for a place on the node.
    applying: u32,
    launching: u32,
    /// Failed launches that are being removed; as many callers are refused when they are.
    failing: u32,
    leased: u32,
    cleaning: u32,
}

impl Occupancy {
    /// A launch waits for a place and has its slot already.
    pub(crate) const fn applied(&mut self) {
        self.applying += 1;
        self.slots += 1;
    }

    /// A launch that waited is withdrawn.
    pub(crate) const fn withdrawn(&mut self) {
        self.applying -= 1;
        self.slots -= 1;
    }

    /// A launch that waited got its place.
    pub(crate) const fn placed(&mut self) {
        self.applying -= 1;
    }

    pub(crate) const fn slot_taken(&mut self) {
        self.slots += 1;
    }

    pub(crate) const fn slot_freed(&mut self) {
        self.slots -= 1;
    }

    pub(crate) const fn launch_began(&mut self) {
        self.launching += 1;
    }

    pub(crate) const fn launch_ended(&mut self) {
        self.launching -= 1;
    }

    /// A launch failed, and its instance must be removed.
    pub(crate) const fn failure_began(&mut self) {
        self.failing += 1;
    }

    /// The instance of a failed launch is removed.
    pub(crate) const fn failed_launch_removed(&mut self) {
        self.failing -= 1;
    }

    pub(crate) const fn lease_began(&mut self) {
        self.leased += 1;
    }

    pub(crate) const fn lease_ended(&mut self) {
        self.leased -= 1;
    }

    pub(crate) const fn cleaning_began(&mut self) {
        self.cleaning += 1;
    }

    pub(crate) const fn cleaning_ended(&mut self) {
        self.cleaning -= 1;
    }

    pub(crate) const fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) const fn applying(&self) -> u32 {
        self.applying
    }

    pub(crate) const fn launching(&self) -> u32 {
        self.launching
    }

    pub(crate) const fn failing(&self) -> u32 {
        self.failing
    }

    pub(crate) const fn leased(&self) -> u32 {
        self.leased
    }

    pub(crate) const fn cleaning(&self) -> u32 {
        self.cleaning
    }
}
