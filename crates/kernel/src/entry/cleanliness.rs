//! What the users of a sandbox left in it, as far as the kernel knows. A sandbox must never count
//! as untouched after a user's code or settings have been in it.

/// What the users of a sandbox left in it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cleanliness {
    /// It was used since it was last handed out.
    used: bool,
    /// A user's code or settings have been in it since it was last clean.
    touched: bool,
    /// A user's settings may still be bound to it, even after a wipe: the next hand-out binds
    /// again, if only nothing.
    bound: bool,
}

impl Cleanliness {
    /// A lease takes it out of its pool, with or without settings to bind.
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

    /// It is launched for a session, its only user.
    pub(crate) const fn started_for_session(&mut self) {
        self.touched = true;
    }

    /// Its guest confirmed what is bound now: settings, or none.
    pub(crate) const fn confirmed(&mut self, with_settings: bool) {
        self.bound = with_settings;
    }

    /// Its user changed what is bound to it.
    pub(crate) const fn rebound(&mut self, with_settings: bool) {
        self.touched = true;
        self.bound |= with_settings;
    }

    /// A caller waits to run something in it.
    pub(crate) const fn wanted(&mut self) {
        self.used = true;
    }

    /// A use began in it.
    pub(crate) const fn began_use(&mut self) {
        self.used = true;
        self.touched = true;
    }

    /// Its guest is lost: it must not go back to its pool as it is.
    pub(crate) const fn guest_lost(&mut self) {
        self.touched = true;
    }

    /// It went back to its pool, clean.
    pub(crate) const fn cleaned(&mut self) {
        self.used = false;
        self.touched = false;
    }

    /// Its process is gone.
    pub(crate) const fn process_gone(&mut self) {
        self.used = false;
    }

    /// Only its files are left.
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
