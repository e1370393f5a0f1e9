//! The family of a program: everything that descends from it, even if it tried to get away. Members
//! are found by their parents, their sessions, and the mark in their environment. A family must
//! never include the guest itself, nor a program that the host started separately.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};

use jail::sys::reap;
use rustix::process::{Signal, getpid};

use super::environment::TAG;

/// More of an environment is not read.
const MAX_ENVIRONMENT_BYTES: u64 = 1024 * 1024;

/// After this many rounds that still find members, a kill gives up.
const MAX_ROUNDS: u32 = 500;

/// How many rounds a kill waits for processes whose mark cannot be read yet.
const MAX_ROUNDS_OF_UNCLEAR: u32 = MAX_ROUNDS / 2;

/// Other signals look for new members at most this often: a family may grow for ever.
const MAX_ROUNDS_OF_OTHERS: u32 = 16;

/// How long killed processes get before the next round.
const ROUND_MS: u64 = 2;

/// A process, as `/proc` describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
    has_ended: bool,
    /// The channel of its mark.
    tag: Option<u32>,
    /// It is in the middle of an exec: until that ends, its mark cannot be read.
    is_starting: bool,
}

/// A signal to a whole family.
#[derive(Debug)]
pub(super) struct FamilySignal {
    /// The channel of the program.
    process: u32,
    /// Its session. While it has members, its number cannot be used again.
    session: Option<i32>,
    signal: i32,
    rounds: u32,
    signalled: BTreeSet<i32>,
    next_ms: u64,
}

/// The result of one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// No process is left to signal.
    Done,
    /// Look again.
    Again,
    /// So many processes are left, and further rounds make no sense.
    GaveUp(usize),
}

impl FamilySignal {
    pub(super) fn new(process: u32, leader: Option<i32>, signal: i32) -> Self {
        Self { process, session: leader, signal, rounds: 0, signalled: BTreeSet::new(), next_ms: 0 }
    }

    /// The channel of the program.
    pub(super) fn process(&self) -> u32 {
        self.process
    }

    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.next_ms
    }

    fn is_kill(&self) -> bool {
        self.signal == Signal::KILL.as_raw()
    }

    /// Looks for members once, and signals those it found. `others` are the programs of other
    /// channels.
    pub(super) fn round(&mut self, others: &[i32], now_ms: u64) -> Round {
        let around = Descendants::of(&look_around(), others, getpid().as_raw_nonzero().get());
        let family = around.family(self.process, self.session);
        if !family.iter().any(|member| Some(member.session) == self.session) {
            self.session = None;
        }
        self.rounds += 1;
        self.next_ms = now_ms + ROUND_MS;
        if self.is_kill() {
            self.kill(&family, around.has_unclear(&family))
        } else {
            self.signal(&family)
        }
    }

    /// Groups first: the kernel kills a group as one, so that no member can fork away meanwhile.
    /// `unclear`: a process may turn out to belong to the family.
    fn kill(&mut self, family: &[Process], unclear: bool) -> Round {
        let living: Vec<_> = family.iter().filter(|member| !member.has_ended).collect();
        if living.is_empty() {
            let waits = unclear && self.rounds <= MAX_ROUNDS_OF_UNCLEAR;
            return if waits { Round::Again } else { Round::Done };
        }
        if self.rounds > MAX_ROUNDS {
            return Round::GaveUp(living.len());
        }
        let groups: BTreeSet<i32> = living.iter().map(|member| member.group).collect();
        for group in groups {
            // A process that is already gone counts as killed.
            let _ = reap::signal_group(group, self.signal);
        }
        for member in living {
            let _ = reap::signal(member.pid, self.signal);
        }
        Round::Again
    }

    /// Signals every member once, including new ones.
    fn signal(&mut self, family: &[Process]) -> Round {
        let mut found_new = false;
        for member in family.iter().filter(|member| !member.has_ended) {
            if self.signalled.insert(member.pid) {
                found_new = true;
                let _ = reap::signal(member.pid, self.signal);
            }
        }
        if found_new && self.rounds < MAX_ROUNDS_OF_OTHERS { Round::Again } else { Round::Done }
    }
}

/// The process ids of a program's family, however it was started. `programs` are those of the host,
/// with their channels.
pub(super) fn relatives(pid: i32, guest: i32, programs: &BTreeMap<i32, u32>) -> Vec<i32> {
    // No channel has this number, so no mark matches.
    let channel = programs.get(&pid).copied().unwrap_or(u32::MAX);
    let others: Vec<i32> = programs.keys().copied().filter(|&other| other != pid).collect();
    let found = Descendants::of(&look_around(), &others, guest).family(channel, Some(pid));
    found.iter().filter(|one| !one.has_ended).map(|one| one.pid).collect()
}

/// All processes beneath the guest.
struct Descendants {
    guest_session: i32,
    /// What descends from the guest. Orphans become its children, so everything else does not
    /// concern it.
    all: Vec<Process>,
    /// Those that belong to other programs of the host.
    foreign: BTreeSet<i32>,
}

impl Descendants {
    fn of(all: &[Process], others: &[i32], guest: i32) -> Self {
        let by_parent = |members: &BTreeSet<i32>, one: &Process| members.contains(&one.parent);
        let guest_session = all.iter().find(|one| one.pid == guest).map_or(0, |one| one.session);
        let own = closure(all, |members, one| one.parent == guest || by_parent(members, one));
        let all: Vec<_> = all.iter().filter(|one| own.contains(&one.pid)).copied().collect();
        let foreign = closure(&all, |members, one| {
            others.contains(&one.pid) || others.contains(&one.session) || by_parent(members, one)
        });
        Self { guest_session, all, foreign }
    }

    /// The members of a program's family.
    fn family(&self, process: u32, session: Option<i32>) -> Vec<Process> {
        let mut sessions: BTreeSet<i32> = session.into_iter().collect();
        let mut size = 0;
        loop {
            let members = closure(&self.all, |members, one| {
                let is_own = session == Some(one.pid)
                    || one.tag == Some(process)
                    || sessions.contains(&one.session)
                    || members.contains(&one.parent);
                is_own && !self.foreign.contains(&one.pid)
            });
            let found = self.all.iter().filter(|one| members.contains(&one.pid));
            let found: Vec<_> = found.copied().collect();
            if found.len() == size {
                return found;
            }
            size = found.len();
            // A session cannot be joined from outside, so all its members belong to the family. The
            // session of the guest itself belongs to none.
            let others = found.iter().map(|one| one.session);
            sessions.extend(others.filter(|&id| id != self.guest_session));
        }
    }

    /// Whether a process may turn out to belong to the family, because its mark cannot be read yet.
    fn has_unclear(&self, family: &[Process]) -> bool {
        self.all.iter().any(|one| {
            one.is_starting
                && !self.foreign.contains(&one.pid)
                && !family.iter().any(|member| member.pid == one.pid)
        })
    }
}

/// Adds processes that belong, given those that already do, until none is found.
fn closure(all: &[Process], belongs: impl Fn(&BTreeSet<i32>, &Process) -> bool) -> BTreeSet<i32> {
    let mut members = BTreeSet::new();
    loop {
        let before = members.len();
        for one in all {
            if !members.contains(&one.pid) && belongs(&members, one) {
                members.insert(one.pid);
            }
        }
        if members.len() == before {
            return members;
        }
    }
}

/// Every process. One that ends meanwhile is left out.
fn look_around() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pid_of = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    entries.map_while(Result::ok).filter_map(pid_of).filter_map(look_at).collect()
}

fn look_at(pid: i32) -> Option<Process> {
    let mut process = parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)?;
    if !process.has_ended {
        let environment = read_some(pid, "environ")?;
        process.tag = tag_in(&environment);
        // While an exec replaces its memory, a process has neither an environment nor arguments.
        process.is_starting = environment.is_empty() && read_some(pid, "cmdline")?.is_empty();
    }
    Some(process)
}

/// The name of a program may contain anything, so the fields after it are found from the end.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = str::from_utf8(&stat[after_name..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X" | "x");
    let mut number = || fields.next()?.parse().ok();
    Some(Process {
        pid,
        parent: number()?,
        group: number()?,
        session: number()?,
        has_ended,
        tag: None,
        is_starting: false,
    })
}

/// A file of a process in `/proc`, if the guest may read it; `None` if the process is gone.
fn read_some(pid: i32, name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = match File::open(format!("/proc/{pid}/{name}")) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        // Its memory belongs to another user: it has no readable mark, now or later.
        Err(_) => return Some(vec![0]),
    };
    // A process that can no longer be read is gone by the next round.
    let _ = file.take(MAX_ENVIRONMENT_BYTES).read_to_end(&mut bytes);
    Some(bytes)
}

fn tag_in(environment: &[u8]) -> Option<u32> {
    let value = environment
        .split(|&byte| byte == 0)
        .find_map(|variable| variable.strip_prefix(TAG.as_bytes())?.strip_prefix(b"="))?;
    str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: i32 = 1;

    fn process(pid: i32, parent: i32, session: i32, tag: Option<u32>) -> Process {
        Process { pid, parent, group: session, session, has_ended: false, tag, is_starting: false }
    }

    fn pids(all: &[Process], channel: u32, session: Option<i32>, others: &[i32]) -> Vec<i32> {
        Descendants::of(all, others, GUEST)
            .family(channel, session)
            .iter()
            .map(|one| one.pid)
            .collect()
    }

    #[test]
    fn a_kill_waits_for_a_process_whose_mark_cannot_be_read_yet() {
        let starting = Process { is_starting: true, ..process(40, GUEST, 40, None) };
        let all = [process(GUEST, 0, GUEST, None), starting];
        let around = Descendants::of(&all, &[], GUEST);
        let family = around.family(5, None);
        assert!(family.is_empty() && around.has_unclear(&family));
        assert!(!Descendants::of(&all, &[40], GUEST).has_unclear(&[]), "it is another program's");
        let mut family_signal = FamilySignal::new(5, None, Signal::KILL.as_raw());
        assert_eq!(family_signal.kill(&family, true), Round::Again);
        assert_eq!(family_signal.kill(&family, false), Round::Done);
        family_signal.rounds = MAX_ROUNDS_OF_UNCLEAR + 1;
        assert_eq!(family_signal.kill(&family, true), Round::Done, "it does not wait for ever");
    }

    #[test]
    fn children_sessions_and_marks_lead_to_the_whole_family() {
        let all = [
            process(1, 0, 1, None),
            process(10, 1, 10, Some(5)),
            process(11, 10, 10, Some(5)),
            process(12, 1, 10, None),
            process(13, 1, 13, Some(5)),
            process(14, 13, 14, None),
            process(15, 1, 14, None),
            process(20, 1, 20, Some(6)),
            process(21, 20, 20, Some(6)),
            process(30, 1, 30, None),
        ];
        assert_eq!(pids(&all, 5, Some(10), &[20]), [10, 11, 12, 13, 14, 15]);
        assert_eq!(pids(&all, 5, None, &[20]), [10, 11, 12, 13, 14, 15]);
        assert_eq!(pids(&all, 6, Some(20), &[10]), [20, 21]);
        assert_eq!(pids(&all, 7, None, &[10, 20]), [] as [i32; 0]);
    }

    #[test]
    fn order_of_processes_does_not_change_a_family() {
        let all = [
            process(3, 9, 9, None),
            process(9, 40, 9, None),
            process(40, 1, 40, Some(5)),
            process(1, 0, 1, None),
        ];
        assert_eq!(pids(&all, 5, Some(40), &[]), [3, 9, 40]);
    }

    #[test]
    fn a_family_never_includes_other_programs_nor_the_guest() {
        let all = [
            process(1, 0, 0, Some(5)),
            process(10, 1, 10, None),
            process(20, 1, 20, Some(5)),
            process(21, 20, 21, Some(5)),
            process(22, 1, 0, Some(5)),
            process(23, 1, 0, None),
            process(40, 0, 40, Some(5)),
            process(41, 40, 10, Some(5)),
        ];
        assert_eq!(pids(&all, 5, Some(10), &[20]), [10, 22]);
    }

    #[test]
    fn stat_is_parsed_whatever_the_program_name() {
        let stat = b"42 (a) R 1 (b) S 7 8 9 0 -1";
        let expected = Process { parent: 7, group: 8, ..process(42, 0, 9, None) };
        assert_eq!(parse(42, stat), Some(expected));
        assert!(parse(42, b"42 (x) Z 7 8 9 0").unwrap().has_ended);
        for noise in [&b""[..], b"42", b"42 (x) S", b"42 (x) S a b c", b"42 (x) S 1 2 \xff"] {
            assert_eq!(parse(42, noise), None);
        }
    }
}
