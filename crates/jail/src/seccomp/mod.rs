//! Which system calls a sandbox may make: the policy as data ([`allowed`], [`refused`],
//! [`arguments`]), and its compiler ([`mod@compile`]) to the kernel's filter language. All of it is
//! pure; loading is in `sys::filter`. It must never allow by default: a call that no group names
//! does not exist for a sandbox. ([`same_user`] does, because it is loaded in addition.)
//!
//! What a call gets:
//!
//! | call | verdict |
//! |---|---|
//! | in an allowed group | the kernel makes it |
//! | in a group with clauses | that of the first clause that matches its arguments |
//! | in a refused group | `EPERM`, or what the group says |
//! | in no group, or in no kernel | `ENOSYS`, so that programs fall back to older calls |
//! | of another architecture, or of x32 | the process is killed: no honest program does this |

pub mod allowed;
pub mod arguments;
pub mod compile;
pub mod egress;
pub mod host_directories;
pub mod refused;
pub mod same_user;

#[cfg(test)]
mod interpreter;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use arguments::{Arguments, Clause, Test};
pub use compile::{CompileError, Program, compile};

/// The verdict about one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The kernel makes it.
    Allow,
    /// It is not made, and fails with this error number.
    Errno(u16),
    /// The whole process dies with `SIGSYS`.
    Kill,
}

impl Verdict {
    /// "Permission denied".
    pub const PERM: Self = Self::Errno(libc::EPERM as u16);
    /// "There is no such call".
    pub const NOSYS: Self = Self::Errno(libc::ENOSYS as u16);
}

/// How the verdict about a call is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// It is always the same.
    Always(Verdict),
    /// It depends on the arguments.
    Arguments(&'static Arguments),
}

/// A system call of this architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    constant: &'static str,
    number: u32,
}

impl Call {
    /// By the constant of the C library that numbers it.
    #[expect(clippy::cast_sign_loss, reason = "no call has a negative number")]
    const fn of(constant: &'static str, number: libc::c_long) -> Self {
        Self { constant, number: number as u32 }
    }

    /// By its number, where the C library does not know it yet. All architectures number the calls
    /// from 403 on alike.
    const fn recent(name: &'static str, number: u32) -> Self {
        assert!(number >= 403, "older calls differ between architectures");
        Self { constant: name, number }
    }

    /// Its name, as in the manual.
    pub fn name(&self) -> &'static str {
        self.constant.strip_prefix("SYS_").unwrap_or(self.constant)
    }

    /// Its number on this architecture.
    pub const fn number(&self) -> u32 {
        self.number
    }
}

/// Calls with the same verdict for the same reason.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// Its name in messages and reviews.
    pub name: &'static str,
    /// Why its calls get this verdict.
    pub why: &'static str,
    /// The rule.
    pub rule: Rule,
    /// The calls.
    pub calls: &'static [Call],
}

/// Names calls by the constants of the C library.
macro_rules! calls {
    ($($constant:ident),* $(,)?) => {
        &[$(crate::seccomp::Call::of(stringify!($constant), libc::$constant)),*]
    };
}
use calls;

/// The first number that is not of this architecture's own table though the kernel accepts it
/// under the same architecture word: x32 calls carry this bit.
#[cfg(target_arch = "x86_64")]
pub(crate) const FOREIGN_FROM: Option<u32> = Some(0x4000_0000);
/// There is no second table here.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const FOREIGN_FROM: Option<u32> = None;

/// The architecture word that the kernel gives to a filter.
#[cfg(target_arch = "x86_64")]
pub(crate) const ARCHITECTURE: u32 = 0xc000_003e;
/// The architecture word that the kernel gives to a filter.
#[cfg(target_arch = "aarch64")]
pub(crate) const ARCHITECTURE: u32 = 0xc000_00b7;

/// Rules by call number.
#[derive(Debug, Clone)]
pub struct Policy {
    rules: BTreeMap<u32, Rule>,
    /// The verdict about calls that no group names.
    others: Verdict,
}

impl Policy {
    /// The policy of every sandbox.
    pub fn sandbox() -> Self {
        Self::of(&[allowed::GROUPS, arguments::GROUPS, refused::GROUPS])
    }

    /// The policy of sandboxes that have a directory of the host.
    pub fn lending() -> Self {
        Self::of(&[allowed::GROUPS, arguments::GROUPS, refused::GROUPS, host_directories::GROUPS])
    }

    /// The policy of the process of the way out.
    pub fn egress() -> Self {
        Self::of(&[egress::GROUPS])
    }

    /// The additional policy of programs that run as the same user as the guest.
    pub fn same_user_as_guest() -> Self {
        Self { others: Verdict::Allow, ..Self::of(&[same_user::GROUPS]) }
    }

    /// A policy of these groups. If two groups name a call, the later one counts.
    pub fn of(groups: &[&[Group]]) -> Self {
        let mut rules = BTreeMap::new();
        for group in groups.iter().flat_map(|groups| groups.iter()) {
            rules.extend(group.calls.iter().map(|call| (call.number, group.rule)));
        }
        Self { rules, others: Verdict::NOSYS }
    }

    /// How the verdict about a call number is found.
    pub fn rule(&self, number: u32) -> Rule {
        let foreign = FOREIGN_FROM.is_some_and(|first| number >= first);
        let unknown = if foreign { Verdict::Kill } else { self.others };
        self.rules.get(&number).copied().unwrap_or(Rule::Always(unknown))
    }

    /// The whole number space as ranges with one rule each, from 0 up, without gaps: the first
    /// number of each range and its rule.
    pub(crate) fn ranges(&self) -> Vec<(u32, Rule)> {
        let named = self.rules.keys().flat_map(|number| [Some(*number), number.checked_add(1)]);
        let mut starts: Vec<u32> = named.flatten().chain([0]).chain(FOREIGN_FROM).collect();
        starts.sort_unstable();
        starts.dedup();
        let mut ranges: Vec<(u32, Rule)> =
            starts.into_iter().map(|start| (start, self.rule(start))).collect();
        ranges.dedup_by_key(|(_, rule)| *rule);
        ranges
    }
}
