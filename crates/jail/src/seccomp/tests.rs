//! The compiled filter agrees with the policy, for every call and for arguments on every side of a
//! clause; and the policy agrees with what was decided.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::interpreter::{Data, run};
use super::{
    ARCHITECTURE, Arguments, Clause, Group, Policy, Program, Rule, Test, Verdict, allowed,
    arguments, compile, refused,
};

const EPERM: Verdict = Verdict::PERM;
const ENOSYS: Verdict = Verdict::NOSYS;

fn sandbox() -> Program {
    compile(&Policy::sandbox()).unwrap()
}

fn ask(program: &Program, architecture: u32, number: u32, arguments: [u64; 6]) -> Verdict {
    let (answer, _) = run(program.instructions(), &Data { number, architecture, arguments });
    match answer {
        0x7fff_0000 => Verdict::Allow,
        0x8000_0000 => Verdict::Kill,
        errno if errno & 0xffff_0000 == 0x0005_0000 => Verdict::Errno(errno as u16),
        other => panic!("unexpected answer {other:#x}"),
    }
}

fn number(call: libc::c_long) -> u32 {
    u32::try_from(call).unwrap()
}

fn decide(policy: &Policy, number: u32, arguments: &[u64; 6]) -> Verdict {
    match policy.rule(number) {
        Rule::Always(verdict) => verdict,
        Rule::Arguments(clauses) => clauses.verdict(arguments),
    }
}

/// Every argument value that a clause could be about, its neighbours, and values with a dirty upper
/// half.
fn interesting(arguments: &Arguments) -> Vec<u64> {
    let tests = arguments
        .clauses
        .iter()
        .flat_map(|Clause { test, also, .. }| [Some(*test), also.map(|(_, test)| test)]);
    let named = tests.flatten().flat_map(|test| match test {
        Test::Is(number) => vec![number],
        Test::Bits { mask, are } => vec![are, mask & !are, are | !mask],
        Test::AnyOf(bits) => (0..32).map(|bit| 1 << bit & bits).chain([bits, !bits]).collect(),
        Test::NoneOf(numbers) => numbers.to_vec(),
    });
    let mut values: Vec<u64> = named
        .flat_map(|value| [value, value.wrapping_add(1), value.wrapping_sub(1)])
        .flat_map(|value| [u64::from(value), u64::from(value) | 0xdead_beef_0000_0000])
        .chain([0, u64::MAX])
        .collect();
    values.sort_unstable();
    values.dedup();
    values
}

#[test]
fn every_system_call_gets_the_verdict_of_the_policy() {
    for policy in [Policy::sandbox(), Policy::lending(), Policy::same_user_as_guest()] {
        check_every_call(&policy, &compile(&policy).unwrap());
    }
}

fn check_every_call(policy: &Policy, program: &Program) {
    let numbers = (0..600).chain([1023, 0x3fff_ffff, 0x7fff_ffff, 0x8000_0000, u32::MAX]);
    for number in numbers {
        let values = match policy.rule(number) {
            Rule::Always(_) => vec![0, 1, u64::MAX],
            Rule::Arguments(clauses) => interesting(clauses),
        };
        for value in values {
            for position in 0..6 {
                // Zero in the others, and something harmless that is not zero.
                for rest in [0, 1] {
                    let mut arguments = [rest; 6];
                    arguments[position] = value;
                    assert_eq!(
                        ask(program, ARCHITECTURE, number, arguments),
                        decide(policy, number, &arguments),
                        "call {number} with {arguments:x?}"
                    );
                }
            }
        }
    }
}

/// Clauses that look at two arguments: every pair of values that they could be about.
#[test]
fn calls_with_two_judged_arguments_get_the_verdict_of_the_policy() {
    let (policy, program) = (Policy::sandbox(), sandbox());
    let mut pairs = 0;
    for number in 0..600 {
        let Rule::Arguments(arguments) = policy.rule(number) else { continue };
        let values = interesting(arguments);
        for clause in arguments.clauses {
            let Some((other, _)) = clause.also else { continue };
            for first in &values {
                for second in &values {
                    let mut asked = [0; 6];
                    asked[usize::from(clause.argument)] = *first;
                    asked[usize::from(other)] = *second;
                    let verdict = decide(&policy, number, &asked);
                    assert_eq!(ask(&program, ARCHITECTURE, number, asked), verdict, "{asked:x?}");
                    pairs += 1;
                }
            }
        }
    }
    assert!(pairs > 1000, "{pairs}");
}

#[test]
fn another_architecture_is_killed() {
    let program = sandbox();
    // 32-bit x86, 32-bit arm, big-endian arm, and the other of the two we run on.
    for architecture in [0x4000_0003, 0x4000_0028, 0x8000_00b7, ARCHITECTURE ^ 0x89, 0] {
        for number in [0, 1, 20, 59, 120, 231, 460] {
            assert_eq!(ask(&program, architecture, number, [0; 6]), Verdict::Kill);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn calls_of_x32_are_killed() {
    let program = sandbox();
    for number in (0..600).map(|number| number | 0x4000_0000).chain([u32::MAX, 0x8000_0000]) {
        assert_eq!(ask(&program, ARCHITECTURE, number, [0; 6]), Verdict::Kill, "{number:#x}");
    }
}

#[test]
fn arguments_are_judged_as_the_kernel_reads_them() {
    const DIRT: u64 = 0x1_0000_0000;
    let family = |value: libc::c_int| u64::from(value.unsigned_abs());
    let afnosupport = Verdict::Errno(libc::EAFNOSUPPORT as u16);
    let protonosupport = Verdict::Errno(libc::EPROTONOSUPPORT as u16);
    let cases: &[(&str, libc::c_long, [u64; 3], Verdict)] = &[
        ("fork style", libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0], Verdict::Allow),
        ("vfork style", libc::SYS_clone, [0x4111, 0, 0], Verdict::Allow),
        ("a thread", libc::SYS_clone, [0x3d_0f00, 0, 0], Verdict::Allow),
        ("new user", libc::SYS_clone, [0x1000_0000 | 0x11, 0, 0], EPERM),
        ("new user, dirty", libc::SYS_clone, [0x1000_0000 | DIRT, 0, 0], EPERM),
        ("new mount", libc::SYS_clone, [0x0002_0000, 0, 0], EPERM),
        ("new cgroup", libc::SYS_clone, [0x0200_0000, 0, 0], EPERM),
        ("new uts", libc::SYS_clone, [0x0400_0000, 0, 0], EPERM),
        ("new ipc", libc::SYS_clone, [0x0800_0000, 0, 0], EPERM),
        ("new pid", libc::SYS_clone, [0x2000_0000, 0, 0], EPERM),
        ("new net", libc::SYS_clone, [0x4000_0000, 0, 0], EPERM),
        ("clone3", libc::SYS_clone3, [0, 0, 0], ENOSYS),
        ("unix", libc::SYS_socket, [family(libc::AF_UNIX), 1, 0], Verdict::Allow),
        ("tcp", libc::SYS_socket, [family(libc::AF_INET), 1, 6], Verdict::Allow),
        ("tcp, flags", libc::SYS_socket, [family(libc::AF_INET), 0x8_0801, 0], Verdict::Allow),
        ("udp6", libc::SYS_socket, [family(libc::AF_INET6), 2, 17], Verdict::Allow),
        ("unix, dirty", libc::SYS_socket, [family(libc::AF_UNIX) | DIRT, 1, 0], Verdict::Allow),
        ("netlink", libc::SYS_socket, [family(libc::AF_NETLINK), 3, 0], Verdict::Allow),
        (
            "netlink, flags",
            libc::SYS_socket,
            [family(libc::AF_NETLINK), 0x8_0002, 0],
            Verdict::Allow,
        ),
        ("netlink, tables", libc::SYS_socket, [family(libc::AF_NETLINK), 3, 12], afnosupport),
        ("netlink, sockets", libc::SYS_socket, [family(libc::AF_NETLINK), 3, 4], afnosupport),
        ("netlink, dirty", libc::SYS_socket, [family(libc::AF_NETLINK) | DIRT, 3, 16], afnosupport),
        ("packet", libc::SYS_socket, [family(libc::AF_PACKET), 3, 0], afnosupport),
        ("vsock", libc::SYS_socket, [family(libc::AF_VSOCK), 1, 0], afnosupport),
        ("alg", libc::SYS_socket, [family(libc::AF_ALG), 5, 0], afnosupport),
        ("no family", libc::SYS_socket, [0, 1, 0], afnosupport),
        ("raw", libc::SYS_socket, [family(libc::AF_INET), 3, 1], EPERM),
        ("raw, flags", libc::SYS_socket, [family(libc::AF_INET6), 0x8_0003, 58], EPERM),
        ("old packet", libc::SYS_socket, [family(libc::AF_INET), 10, 0], EPERM),
        ("sctp", libc::SYS_socket, [family(libc::AF_INET), 5, 132], protonosupport),
        ("mptcp", libc::SYS_socket, [family(libc::AF_INET), 1, 262], protonosupport),
        ("pair", libc::SYS_socketpair, [1, 1, 0], Verdict::Allow),
        ("pair of tipc", libc::SYS_socketpair, [30, 1, 0], afnosupport),
        ("size of a terminal", libc::SYS_ioctl, [0, 0x5413, 0], Verdict::Allow),
        ("typing", libc::SYS_ioctl, [0, 0x5412, 0], EPERM),
        ("typing, dirty", libc::SYS_ioctl, [0, 0x5412 | DIRT, 0], EPERM),
        ("console", libc::SYS_ioctl, [0, 0x541c | (0xffff << 32), 0], EPERM),
        ("discipline", libc::SYS_ioctl, [0, 0x5423, 0], EPERM),
        ("ask personality", libc::SYS_personality, [0xffff_ffff, 0, 0], Verdict::Allow),
        ("same layout", libc::SYS_personality, [0x4_0000, 0, 0], Verdict::Allow),
        ("executable data", libc::SYS_personality, [0x40_0000, 0, 0], EPERM),
        ("map at zero", libc::SYS_personality, [0x10_0000, 0, 0], EPERM),
        ("name a thread", libc::SYS_prctl, [15, 0, 0], Verdict::Allow),
        ("change memory's description", libc::SYS_prctl, [35, 0, 0], EPERM),
        ("pipe", libc::SYS_mknodat, [0, 0, 0o010_644], Verdict::Allow),
        ("file", libc::SYS_mknodat, [0, 0, 0o644], Verdict::Allow),
        ("character device", libc::SYS_mknodat, [0, 0, 0o020_666], EPERM),
        ("block device", libc::SYS_mknodat, [0, 0, 0o060_666 | DIRT], EPERM),
        ("block device, dirty mode", libc::SYS_mknodat, [0, 0, 0o060_666 | 0xffff_0000], EPERM),
    ];
    let program = sandbox();
    for (name, call, [first, second, third], expected) in cases {
        let arguments = [*first, *second, *third, 0, 0, 0];
        assert_eq!(ask(&program, ARCHITECTURE, number(*call), arguments), *expected, "{name}");
    }
}

#[test]
fn reviewed_verdicts_are_in_the_policy() {
    let policy = Policy::sandbox();
    let never = [
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_setns,
        libc::SYS_unshare,
        libc::SYS_bpf,
        libc::SYS_io_uring_setup,
        libc::SYS_userfaultfd,
        libc::SYS_perf_event_open,
        libc::SYS_keyctl,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_pidfd_getfd,
        libc::SYS_open_by_handle_at,
        libc::SYS_chroot,
        libc::SYS_kexec_load,
        libc::SYS_init_module,
    ];
    for call in never {
        assert_eq!(policy.rule(number(call)), Rule::Always(EPERM), "call {call}");
    }
    // The guest needs these after the filter is loaded; without the last one, processes could never
    // end.
    let guest = [
        libc::SYS_epoll_pwait,
        libc::SYS_signalfd4,
        libc::SYS_recvmsg,
        libc::SYS_setresuid,
        libc::SYS_setgroups,
        libc::SYS_setfsuid,
        libc::SYS_kill,
        libc::SYS_pidfd_send_signal,
        libc::SYS_openat2,
        libc::SYS_renameat2,
        libc::SYS_close_range,
        libc::SYS_prlimit64,
        libc::SYS_execveat,
        libc::SYS_exit_group,
    ];
    for call in guest {
        assert_eq!(policy.rule(number(call)), Rule::Always(Verdict::Allow), "call {call}");
    }
}

#[test]
fn every_call_is_named_once_and_every_group_says_why() {
    let mut seen: BTreeMap<u32, &str> = BTreeMap::new();
    let groups: Vec<&Group> =
        [allowed::GROUPS, arguments::GROUPS, refused::GROUPS].into_iter().flatten().collect();
    for group in groups {
        assert!(group.why.ends_with('.') && group.why.len() > 8, "{}: why?", group.name);
        assert!(!group.calls.is_empty(), "{}: empty", group.name);
        for call in group.calls {
            let twin = seen.insert(call.number(), call.name());
            assert_eq!(twin, None, "{} is named twice", call.name());
            assert!(!call.name().starts_with("SYS_"));
        }
    }
}

/// Loading costs as much as the paths through the filter: a jump in these numbers means slower
/// launches.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_filter_stays_short() {
    let program = sandbox();
    let steps: Vec<usize> = (0..470)
        .map(|number| Data { number, architecture: ARCHITECTURE, arguments: [0; 6] })
        .map(|data| run(program.instructions(), &data).1)
        .collect();
    let longest = steps.iter().max().copied();
    let mean_tenths = steps.iter().sum::<usize>() * 10 / steps.len();
    assert_eq!((program.instructions().len(), longest, mean_tenths), (140, Some(17), 95));
}

const VERDICTS: [Verdict; 4] =
    [Verdict::Allow, EPERM, ENOSYS, Verdict::Errno(libc::EAFNOSUPPORT as u16)];

fn any_rule() -> impl Strategy<Value = Rule> {
    let always = prop::sample::select(&VERDICTS).prop_map(Rule::Always);
    let looks = arguments::GROUPS.iter().map(|group| group.rule).collect::<Vec<_>>();
    prop_oneof![4 => always, 1 => prop::sample::select(looks)]
}

proptest! {
    /// Whatever the policy is, either there is a filter that agrees with it or there is none.
    #[test]
    fn any_policy_is_compiled_exactly(
        rules in prop::collection::btree_map(0_u32..500, any_rule(), 0..120),
        numbers in prop::collection::vec(0_u32..520, 1..40),
        arguments in prop::array::uniform6(prop_oneof![0_u64..40, any::<u64>()]),
        others in prop::sample::select(&VERDICTS),
    ) {
        let policy = Policy { rules, others };
        if let Ok(program) = compile(&policy) {
            for number in numbers {
                prop_assert_eq!(
                    ask(&program, ARCHITECTURE, number, arguments),
                    decide(&policy, number, &arguments)
                );
            }
        }
    }
}

#[test]
fn an_empty_policy_allows_no_call() {
    let program = compile(&Policy::of(&[])).unwrap();
    assert_eq!(ask(&program, ARCHITECTURE, 0, [0; 6]), ENOSYS);
    assert_eq!(ask(&program, 0, 0, [0; 6]), Verdict::Kill);
}

#[test]
fn a_policy_too_wide_for_a_filter_is_refused() {
    let rules = (0..600).step_by(2).map(|number| (number, Rule::Always(Verdict::Allow))).collect();
    assert!(compile(&Policy { rules, others: ENOSYS }).is_err());
}
