//! What its users left in a sandbox, as far as the kernel knows. It must never call a sandbox
//! untouched that a user's code or settings have been in.

/// What its users left in a sandbox.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cleanliness {
    /// It was used since it was last claimed or bound.
    used: bool,
    /// A user's code or settings have been in it since it was last known to be clean.
    touched: bool,
    /// Settings of a user may still be bound to it, whatever a wipe says: its next user binds
    /// theirs, if only none.
    bound: bool,
}

impl Cleanliness {
    /// A lease takes it out of its pool, with settings to bind or without.
    pub(crate) const fn assigned_to_lease(&mut self, with_settings: bool) {
        self.used = false;
        self.touched = with_settings;
        self.bound |= with_settings;
    }

    /// A session takes it out of its pool.
    pub(crate) const fn assigned_to_session(&mut self) {
        self.used = false;
        self.touched = true;
    }

    /// It is started for a session, which is its only user.
    pub(crate) const fn started_for_session(&mut self) {
        self.touched = true;
    }

    /// It confirmed what is bound to it now: settings, or none.
    pub(crate) const fn confirmed(&mut self, with_settings: bool) {
        self.bound = with_settings;
    }

    /// A user asked to run something in it, and waits for that.
    pub(crate) const fn wanted(&mut self) {
        self.used = true;
    }

    /// A use began in it.
    pub(crate) const fn began_use(&mut self) {
        self.used = true;
        self.touched = true;
    }

    /// It came back into its pool, clean.
    pub(crate) const fn cleaned(&mut self) {
        self.used = false;
        self.touched = false;
    }

    /// Its process is gone.
    pub(crate) const fn process_gone(&mut self) {
        self.used = false;
    }

    /// Nothing is left of it but files.
    pub(crate) const fn went_cold(&mut self) {
        self.touched = false;
    }

    pub(crate) const fn is_used(self) -> bool {
        self.used
    }

    pub(crate) const fn is_touched(self) -> bool {
        self.touched
    }

    /// Whether settings of a user may still be bound to it.
    pub(crate) const fn may_be_bound(self) -> bool {
        self.bound
    }
}
