//! Rootless mode: a user namespace in which an ordinary user is root. The launcher makes it first
//! and then starts itself again inside, because the kernel decides at exec which processes may be
//! inspected. Where the machine gives the user subordinate ids, `newuidmap` and `newgidmap` map
//! them; otherwise the user is the only one in the namespace.

use std::ffi::CStr;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use guest_protocol::launcher::AloneBecause;
use jail::plan::Users;
use jail::sys::clone::{self, Side};
use jail::sys::exec;
use jail::sys::namespaces::{self, Namespace};
use rustix::process::{
    DumpableBehavior, Gid, Pid, Uid, WaitOptions, set_dumpable_behavior, waitpid,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The argument with which the launcher starts itself again.
const SUBORDINATE: &CStr = c"subordinate";
const ALONE: &CStr = c"alone";

/// Directories in which `newuidmap` and `newgidmap` may be.
const PROGRAM_DIRECTORIES: &[&str] = &["/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin"];

/// Which users sandboxes will have, if that is decided: by the user that started us, or by the
/// argument with which we started ourselves again.
pub(super) fn users() -> Option<Users> {
    match std::env::args().nth(2).as_deref() {
        Some("subordinate") => Some(Users::Subordinate),
        Some("alone") => Some(Users::Alone),
        Some(_) | None => rustix::process::geteuid().is_root().then_some(Users::Ranges),
    }
}

/// Gives up root for good.
pub(super) fn become_ordinary(user: u32) -> io::Result<()> {
    if user == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set_thread_groups(&[])?;
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    // Makes us the owner of our files in `/proc`. We hold no secrets.
    Ok(set_dumpable_behavior(DumpableBehavior::Dumpable)?)
}

/// Makes the namespace and starts again in it. Returns only on failure. `wanted` is how many
/// subordinate users are needed; `None` forbids their use.
pub(super) fn enter(wanted: Option<u32>) -> io::Error {
    // Read before the namespace exists: until users are mapped, ids inside mean nothing.
    let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let ranges = wanted.ok_or(AloneBecause::Wanted).and_then(Ranges::find);
    // A namespace can be mapped only once, so a trial uses another one.
    let ranges = ranges.and_then(|ranges| match trial(&ranges, own) {
        Ok(()) => Ok(ranges),
        Err(_) => Err(AloneBecause::MappingRefused),
    });
    let (entered, words) = match ranges {
        Ok(ranges) => (with_ranges(&ranges, own), [SUBORDINATE, NO_REASON]),
        Err(reason) => (alone(own), [ALONE, argument_for(reason)]),
    };
    match entered {
        Ok(()) => exec::exec_self(&[c"shoal-launcher", c"launcher", words[0], words[1]]),
        Err(error) => error,
    }
}

/// Reasons as arguments.
const REASONS: [(AloneBecause, &CStr); 5] = [
    (AloneBecause::Wanted, c"wanted"),
    (AloneBecause::NoPrograms, c"no-programs"),
    (AloneBecause::NoRange, c"no-range"),
    (AloneBecause::RangeTooShort, c"range-too-short"),
    (AloneBecause::MappingRefused, c"mapping-refused"),
];
const NO_REASON: &CStr = c"-";

fn argument_for(reason: AloneBecause) -> &'static CStr {
    REASONS.iter().find(|(one, _)| *one == reason).map_or(NO_REASON, |(_, word)| word)
}

/// Why there are no subordinate users: the argument from our first start.
pub(super) fn alone_because() -> Option<AloneBecause> {
    let argument = std::env::args().nth(3)?;
    REASONS
        .iter()
        .find(|(_, word)| word.to_bytes() == argument.as_bytes())
        .map(|(reason, _)| *reason)
}

/// Subordinate users and groups of the current user.
struct Ranges {
    uid: (u32, u32),
    gid: (u32, u32),
    programs: [String; 2],
}

impl Ranges {
    fn find(wanted: u32) -> Result<Self, AloneBecause> {
        let program = |name: &str| {
            let places = PROGRAM_DIRECTORIES.iter().map(|place| format!("{place}/{name}"));
            let found = places.into_iter().find(|path| Path::new(path).exists());
            found.ok_or(AloneBecause::NoPrograms)
        };
        let uid = rustix::process::getuid().as_raw();
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let name = name_of(uid, &passwd);
        let range = |path: &str| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            match range_in(&text, uid, name) {
                None => Err(AloneBecause::NoRange),
                Some((_, count)) if count < wanted => Err(AloneBecause::RangeTooShort),
                Some(range) => Ok(range),
            }
        };
        Ok(Self {
            uid: range("/etc/subuid")?,
            gid: range("/etc/subgid")?,
            programs: [program("newuidmap")?, program("newgidmap")?],
        })
    }
}

fn name_of(uid: u32, passwd: &str) -> Option<&str> {
    let uid = uid.to_string();
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(uid.as_str()))?;
    line.split(':').next()
}

/// The largest range that a file gives to a user, by number or by name.
fn range_in(text: &str, uid: u32, name: Option<&str>) -> Option<(u32, u32)> {
    let uid = uid.to_string();
    let ranges = text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let who = fields.next()?;
        let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (who == uid || Some(who) == name).then_some((first, count))
    });
    ranges.max_by_key(|(_, count)| *count)
}

/// Lets a child make a namespace, and maps users into it.
fn trial(ranges: &Ranges, own: (u32, u32)) -> io::Result<()> {
    let (made, mut say_made) = io::pipe()?;
    let (enough, say_enough) = io::pipe()?;
    match clone::copy()? {
        Side::Child => {
            drop((made, say_enough));
            if namespaces::make(&[Namespace::User]).is_ok() && say_made.write_all(b"M").is_ok() {
                // Returns when our parent has mapped the users, or has died.
                let _ = await_byte(enough);
            }
            clone::exit_now(0);
        }
        Side::Parent(child) => {
            drop((say_made, enough));
            let mapped = await_byte(made).and_then(|()| map(ranges, own, child));
            drop(say_enough);
            waitpid(Some(child), WaitOptions::empty())?;
            mapped
        }
    }
}

/// Makes the namespace and lets a child, which is still outside, map users into it.
fn with_ranges(ranges: &Ranges, own: (u32, u32)) -> io::Result<()> {
    let us = rustix::process::getpid();
    let (reader, writer) = io::pipe()?;
    match clone::copy()? {
        Side::Child => {
            drop(writer);
            let mapped = await_byte(reader).and_then(|()| map(ranges, own, us));
            clone::exit_now(i32::from(mapped.is_err()));
        }
        Side::Parent(child) => {
            drop(reader);
            let made = namespaces::make(&[Namespace::User]);
            // Without this byte the child does nothing.
            let signalled = if made.is_ok() { (&writer).write_all(b"M") } else { Ok(()) };
            drop(writer);
            let ended = waitpid(Some(child), WaitOptions::empty())?;
            made?;
            signalled?;
            match ended {
                Some((_, status)) if status.exit_status() == Some(0) => become_first(),
                Some(_) | None => Err(io::ErrorKind::PermissionDenied.into()),
            }
        }
    }
}

fn await_byte(mut reader: io::PipeReader) -> io::Result<()> {
    reader.read_exact(&mut [0])
}

fn map(ranges: &Ranges, own: (u32, u32), of: Pid) -> io::Result<()> {
    let ids = [(own.0, ranges.uid), (own.1, ranges.gid)];
    for (program, (own, (first, count))) in ranges.programs.iter().zip(ids) {
        let numbers = [0, own, 1, 1, first, count].map(|number| number.to_string());
        let pid = of.as_raw_nonzero().to_string();
        let status = Command::new(program).arg(pid).args(numbers).env_clear().status()?;
        if !status.success() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
    }
    Ok(())
}

/// Makes a namespace with this user alone.
fn alone((uid, gid): (u32, u32)) -> io::Result<()> {
    namespaces::make(&[Namespace::User])?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

/// A user with subordinate groups can drop its other groups.
fn become_first() -> io::Result<()> {
    Ok(set_thread_groups(&[])?)
}

/// Keeps a descriptor open across our next start.
pub(super) fn keep(descriptor: &OwnedFd) -> io::Result<()> {
    Ok(rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_by_number_and_by_name() {
        let text = "root:1:9\nann:100000:65536\n# x\n1001:200000:10\n1001:300000:70000\nbad:x:y\n";
        let cases = [
            (1000, Some("ann"), Some((100_000, 65_536))),
            (1001, None, Some((300_000, 70_000))),
            (1002, Some("bob"), None),
        ];
        for (uid, name, expected) in cases {
            assert_eq!(range_in(text, uid, name), expected, "{uid}");
        }
        assert_eq!(name_of(1000, "root:x:0:0::/:\nann:x:1000:1000::/:\n"), Some("ann"));
        assert_eq!(name_of(100, "ann:x:1000:1000::/:\n"), None);
    }
}
