//! Programs: how they are found, what they get, how they end.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use guest_protocol::Env;
use guest_protocol::message::{
    Command, ExitStatus, FaultCode, Pipe, ProcessLimits, Reply, Request, Spawn, Stdio, lane,
};

use crate::host::{
    Host, LANES, OUTPUT, Seen, argv, borrow, is_alive, is_root, pipe, program, read_all, shell,
    shell_on, spawn,
};

const SIGHUP: i32 = 1;
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

fn env(pairs: &[(&str, &str)]) -> Env {
    pairs.iter().copied().collect()
}

#[test]
fn exit_codes_and_signals_are_exact() {
    let mut host = Host::start();
    for code in [0, 1, 42, 127, 255] {
        assert_eq!(host.run(&format!("exit {code}")).status, ExitStatus::Code(code));
    }
    for signal in [SIGHUP, 2, SIGKILL, 11, 13, SIGTERM, 34] {
        let ran = host.run(&format!("kill -{signal} $$"));
        assert_eq!(ran.status, ExitStatus::Signal(signal));
    }
}

#[test]
fn output_comes_before_its_end_and_that_before_the_exit() {
    let mut host = Host::start();
    let channel = host.ask(&shell("echo out; echo err >&2; exit 3"));
    let exited = host.exited(channel);
    assert_eq!(exited.status, ExitStatus::Code(3));
    assert!(exited.max_rss_kb > 0);
    assert_eq!(host.text(channel, lane::STDOUT), "out\n");
    assert_eq!(host.text(channel, lane::STDERR), "err\n");
    let seen = &host.seen[&channel];
    let place = |wanted: &Seen| seen.iter().position(|one| one == wanted).unwrap();
    for lane in [lane::STDOUT, lane::STDERR] {
        assert!(place(&Seen::Data(lane)) < place(&Seen::End(lane)));
        assert!(place(&Seen::End(lane)) < place(&Seen::Reply));
    }
    assert_eq!(seen.last(), Some(&Seen::Reply));
}

#[test]
fn processor_time_is_reported() {
    let mut host = Host::start();
    let channel = host.ask(&shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"));
    let exited = host.exited(channel);
    assert!(exited.user_us > 1000, "{exited:?}");
}

#[test]
fn programs_are_searched_in_the_path() {
    let mut host = Host::start();
    let mut run = |command: Command, path: Option<&str>| {
        let mut spawn_it = program(command, OUTPUT);
        if let Some(path) = path {
            spawn_it.env = env(&[("PATH", path)]);
        }
        let channel = host.ask(&spawn(spawn_it));
        match host.reply(channel) {
            Reply::Exited(exited) => Ok((exited.status, host.text(channel, lane::STDOUT))),
            Reply::Failed(fault) => Err((fault.code, fault.message)),
            other => panic!("{other:?}"),
        }
    };
    let hi = Ok((ExitStatus::Code(0), "hi\n".to_owned()));
    assert_eq!(run(argv(&["echo", "hi"]), None), hi);
    assert_eq!(run(argv(&["/bin/echo", "hi"]), None), hi);
    assert_eq!(run(argv(&["echo", "hi"]), Some("/nowhere:/dev/null:/usr/bin")), hi);
    let missing = |name: &str| Err((FaultCode::NotFound, format!("no such program: {name}")));
    assert_eq!(run(argv(&["no-such-thing"]), None), missing("no-such-thing"));
    assert_eq!(run(argv(&["echo"]), Some("/nowhere")), missing("echo"));
    assert_eq!(run(argv(&["/nowhere/echo"]), None), missing("/nowhere/echo"));
    assert_eq!(run(argv(&["/etc"]), None).unwrap_err().0, FaultCode::Denied);
    assert_eq!(run(argv(&[]), None).unwrap_err().0, FaultCode::Invalid);
    assert_eq!(run(argv(&[""]), None).unwrap_err().0, FaultCode::NotFound);
    assert_eq!(run(argv(&["echo", "a\0b"]), None).unwrap_err().0, FaultCode::Invalid);
    let long = "x".repeat(140_000);
    assert_eq!(run(argv(&["echo", &long]), None).unwrap_err().0, FaultCode::Limit);
}

#[test]
fn a_script_without_a_first_line_is_for_the_shell() {
    let mut host = Host::start();
    let script = host.path("script");
    fs::write(&script, "echo $1-$2\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let channel = host.ask(&spawn(program(argv(&["./script", "a", "b"]), OUTPUT)));
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    assert_eq!(host.text(channel, lane::STDOUT), "a-b\n");
}

#[test]
fn a_program_starts_where_it_should() {
    let mut host = Host::start();
    fs::create_dir(host.path("sub")).unwrap();
    let workspace = host.workspace.to_str().unwrap().to_owned();
    let mut pwd = |cwd: Option<&str>| {
        let cwd = cwd.map(str::to_owned);
        let channel = host.ask(&spawn(Spawn { cwd, ..program(argv(&["pwd"]), OUTPUT) }));
        match host.reply(channel) {
            Reply::Exited(_) => host.text(channel, lane::STDOUT).trim_end().to_owned(),
            Reply::Failed(fault) => format!("{:?} {}", fault.code, fault.message),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(pwd(None), workspace);
    assert_eq!(pwd(Some("/")), "/");
    assert_eq!(pwd(Some("sub")), format!("{workspace}/sub"));
    assert_eq!(pwd(Some("/nowhere")), "NotFound no such directory: /nowhere");
    assert!(pwd(Some("/etc/passwd")).starts_with("WrongKind"));
}

#[test]
fn the_environment_is_what_was_given_and_nothing_else() {
    let mut host = Host::start();
    let claim = Request::Claim { env: env(&[("TOKEN", "one"), ("MODE", "bound")]) };
    assert_eq!(host.call(&claim), Reply::Done);
    let own = env(&[("MODE", "own"), ("SPACES", "a b\nc")]);
    let channel = host.ask(&spawn(Spawn { env: own, ..program(argv(&["env", "-0"]), OUTPUT) }));
    host.exited(channel);
    let text = host.text(channel, lane::STDOUT);
    let mut found: Vec<_> = text.split_terminator('\0').map(str::to_owned).collect();
    found.sort();
    let mut expected = vec![
        format!("HOME={}", host.workspace.display()),
        "LANG=C.UTF-8".into(),
        "LOGNAME=agent".into(),
        "MODE=own".into(),
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
        "SHELL=/bin/sh".into(),
        format!("SHOAL_PROCESS={channel}"),
        "SPACES=a b\nc".into(),
        "TOKEN=one".into(),
        "USER=agent".into(),
    ];
    expected.sort();
    assert_eq!(found, expected);

    let claim = Request::Claim { env: env(&[("OTHER", "two")]) };
    assert_eq!(host.call(&claim), Reply::Done);
    assert_eq!(host.run("echo ${TOKEN-none} $OTHER").stdout, "none two\n");
    let fault = host.fault(&Request::Claim { env: env(&[("A=B", "secret")]) });
    assert_eq!(fault.code, FaultCode::Invalid);
    assert!(!fault.message.contains("secret"));
    assert_eq!(host.run("echo $OTHER").stdout, "two\n", "a refused claim changes nothing");
}

#[test]
fn nothing_of_the_guest_is_inherited() {
    let mut host = Host::start();
    // Something to inherit: other programs with lanes, a file that is being written.
    let other = host.ask(&shell_on("cat", LANES));
    host.ask(&Request::WriteFile { path: "f".into(), mode: None, parents: false });
    let listed = host.run("ls /proc/self/fd | tr '\\n' ' '").stdout;
    assert_eq!(listed, "0 1 2 3 ", "3 is the directory that is being listed");
    let signals = host.run("grep -E 'SigBlk|SigPnd' /proc/self/status | cut -f2").stdout;
    assert_eq!(signals, "0000000000000000\n0000000000000000\n");
    let ignored = host.run("grep SigIgn /proc/self/status | cut -f2").stdout;
    assert!(ignored.starts_with("0000000") && ignored.ends_with("0000000\n"), "{ignored}");
    assert_eq!(host.run("umask").stdout, "0022\n");
    let session = host.run("ps -o pid=,sid=,pgid= -p $$").stdout;
    let ids: Vec<_> = session.split_whitespace().collect();
    assert!(ids[0] == ids[1] && ids[1] == ids[2], "a session of its own: {session}");
    host.end(other, lane::MAIN);
    assert_eq!(host.exited(other).status, ExitStatus::Code(0));
}

#[test]
fn unconnected_streams_are_dev_null() {
    let mut host = Host::start();
    let null = Stdio::Pipes { stdin: Pipe::Null, stdout: Pipe::Null, stderr: Pipe::Null };
    let line = "cat; echo x; echo y >&2; test $(readlink /proc/$$/fd/0) = /dev/null \
                && test $(readlink /proc/$$/fd/1) = /dev/null \
                && test $(readlink /proc/$$/fd/2) = /dev/null";
    let channel = host.ask(&shell_on(line, null));
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    assert_eq!(host.seen[&channel], [Seen::Reply]);
}

#[test]
fn passed_descriptors_are_the_programs_own() {
    let mut host = Host::start();
    let passed = Stdio::Pipes { stdin: Pipe::Passed, stdout: Pipe::Passed, stderr: Pipe::Passed };
    let (stdin, input) = pipe();
    let (output, stdout) = pipe();
    let (error, stderr) = pipe();
    let request = shell_on("tr a-z A-Z; echo oops >&2; exit 5", passed);
    let ends = [stdin, stdout, stderr];
    let channel = host.ask_with(&request, &borrow(&ends));
    drop(ends);
    rustix::io::write(&input, b"hello").unwrap();
    drop(input);
    assert_eq!(read_all(output), b"HELLO", "and the guest keeps no end open");
    assert_eq!(read_all(error), b"oops\n");
    assert_eq!(host.exited(channel).status, ExitStatus::Code(5));
    assert_eq!(host.seen[&channel], [Seen::Reply]);

    let mixed = Stdio::Pipes { stdin: Pipe::Null, stdout: Pipe::Passed, stderr: Pipe::Lane };
    let (output, stdout) = pipe();
    let ends = [stdout];
    let channel = host.ask_with(&shell_on("echo one; echo two >&2", mixed), &borrow(&ends));
    drop(ends);
    assert_eq!(read_all(output), b"one\n");
    host.exited(channel);
    assert_eq!(host.text(channel, lane::STDERR), "two\n");
}

#[test]
fn descriptors_stay_with_their_requests() {
    let mut host = Host::start();
    let stdout_only = Stdio::Pipes { stdin: Pipe::Null, stdout: Pipe::Passed, stderr: Pipe::Null };
    let fault = host.fault(&shell_on("true", stdout_only.clone()));
    assert_eq!(fault.code, FaultCode::Invalid, "none came along");
    // A failed request must not leave its descriptor to the next.
    let (first, first_end) = pipe();
    let ends = [first_end];
    let missing = spawn(program(argv(&["no-such-thing"]), stdout_only.clone()));
    let channel = host.ask_with(&missing, &borrow(&ends));
    assert!(matches!(host.reply(channel), Reply::Failed(_)));
    drop(ends);
    assert_eq!(read_all(first), b"", "it is closed in the guest too");
    let (second, second_end) = pipe();
    let ends = [second_end];
    let channel = host.ask_with(&shell_on("echo mine", stdout_only), &borrow(&ends));
    drop(ends);
    assert_eq!(read_all(second), b"mine\n");
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
}

#[test]
fn process_limits_are_enforced() {
    let mut host = Host::start();
    let mut run = |line: &str, limits: ProcessLimits| {
        let command = Command::Shell(line.to_owned());
        let channel = host.ask(&spawn(Spawn { limits, ..program(command, OUTPUT) }));
        let status = host.exited(channel).status;
        (status, host.text(channel, lane::STDOUT))
    };
    let none = ProcessLimits::default();
    let (status, _) = run("while :; do :; done", ProcessLimits { cpu_s: Some(1), ..none });
    assert_eq!(status, ExitStatus::Signal(24), "SIGXCPU");
    let files = ProcessLimits { file_bytes: Some(4096), ..none };
    let (status, _) = run("exec head -c 10000 /dev/zero > big", files);
    assert_eq!(status, ExitStatus::Signal(25), "SIGXFSZ");
    let descriptors = ProcessLimits { descriptors: Some(17), ..none };
    assert_eq!(run("ulimit -n", descriptors).1, "17\n");
    let more_than_allowed = ProcessLimits { descriptors: Some(u64::MAX), ..none };
    assert_ne!(run("ulimit -n", more_than_allowed).1, "");
    let space = ProcessLimits { address_space_bytes: Some(64 << 20), ..none };
    assert_eq!(run("ulimit -v", space).1, "65536\n");
    assert_eq!(fs::metadata(host.path("big")).unwrap().len(), 4096);
}

#[test]
fn a_program_start_is_announced_when_asked_for() {
    let mut host = Host::start();
    let command = Command::Shell("echo $$; read line; exit 4".into());
    let channel = host.ask(&spawn(Spawn { announce: true, ..program(command, LANES) }));
    let Reply::Started { pid: Some(pid) } = host.reply(channel) else { panic!() };
    host.until("its output", |host| !host.data(channel, lane::STDOUT).is_empty());
    assert_eq!(host.text(channel, lane::STDOUT), format!("{pid}\n"));
    let Reply::Processes(running) = host.call(&Request::Processes) else { panic!() };
    let ids: Vec<_> = running.iter().map(|one| (one.process, one.pid)).collect();
    assert_eq!(ids, [(channel, pid)]);
    host.end(channel, lane::MAIN);
    assert_eq!(host.exited(channel).status, ExitStatus::Code(4));
    assert_eq!(host.call(&Request::Processes), Reply::Processes(vec![]));
}

#[test]
fn signals_reach_the_program_alone() {
    let mut host = Host::start();
    let line = "trap 'exit 9' TERM; sleep 1000 & echo $!; wait";
    let channel = host.ask(&shell(line));
    host.until("its output", |host| !host.data(channel, lane::STDOUT).is_empty());
    let child: i32 = host.text(channel, lane::STDOUT).trim().parse().unwrap();
    let signal = |process, signal| Request::Signal { process, signal, tree: false };
    assert_eq!(host.call(&signal(channel, SIGTERM)), Reply::Done);
    assert_eq!(host.exited(channel).status, ExitStatus::Code(9));
    assert!(is_alive(child));
    assert_eq!(
        host.call(&signal(channel, SIGKILL)),
        Reply::Done,
        "a program that has ended counts as signalled"
    );
    assert_eq!(host.call(&signal(777, SIGKILL)), Reply::Done);
    for number in [-1, 0, 65, i32::MAX] {
        assert_eq!(host.code(&signal(channel, number)), FaultCode::Invalid);
    }
    let tree = Request::Signal { process: channel, signal: SIGKILL, tree: true };
    assert_eq!(host.call(&tree), Reply::Done);
    assert!(!is_alive(child), "a tree is found by its mark when its root is gone");
}

#[test]
fn a_hundred_programs_run_at_once() {
    let mut host = Host::start();
    let channels: Vec<_> =
        (0..100).map(|n| host.ask(&shell(&format!("sleep 0.2; echo {n}; exit {n}")))).collect();
    for (n, channel) in channels.into_iter().enumerate() {
        let code = i32::try_from(n).unwrap();
        assert_eq!(host.exited(channel).status, ExitStatus::Code(code));
        assert_eq!(host.text(channel, lane::STDOUT), format!("{n}\n"));
    }
}

#[test]
fn orphans_are_collected() {
    let mut host = Host::start();
    let ran = host.run("for i in 1 2 3 4 5; do (sh -c 'sleep 0.05; exit 1' &) ; done");
    assert_eq!(ran.status, ExitStatus::Code(0));
    let guest = host.guest.id();
    host.until("no child is left", |_| {
        let children = fs::read_to_string(format!("/proc/{guest}/task/{guest}/children"));
        children.unwrap().trim().is_empty()
    });
}

#[test]
fn programs_run_as_the_user_they_should() {
    if !is_root() {
        super::host::skip("only root can become another user");
        return;
    }
    let mut host = Host::start_with(&["1000", "1000"]);
    assert_eq!(host.run("id -u; id -g; id -G").stdout, "1000\n1000\n1000\n");
    let status = host.run("grep -E '^(Uid|Gid|Groups|CapEff|CapPrm)' /proc/self/status").stdout;
    assert!(status.contains("Uid:\t1000\t1000\t1000\t1000"), "{status}");
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    assert!(status.contains("CapPrm:\t0000000000000000"), "{status}");
    let write = Request::WriteFile { path: "mine".into(), mode: None, parents: false };
    let channel = host.ask(&write);
    host.send(channel, lane::MAIN, b"x");
    host.end(channel, lane::MAIN);
    assert!(matches!(host.reply(channel), Reply::Entry(_)));
    assert_eq!(fs::metadata(host.path("mine")).unwrap().uid(), 1000);
    let secret = Request::ReadFile { path: "/etc/shadow".into(), offset: 0, length: None };
    assert_eq!(host.code(&secret), FaultCode::Denied, "files are accessed as that user");
    let kill = host.run(&format!("kill -0 {} 2>&1", host.guest.id()));
    assert_ne!(kill.status, ExitStatus::Code(0), "the guest is out of reach");
    let channel = host.ask(&shell("sleep 1000"));
    let tree = Request::Signal { process: channel, signal: SIGKILL, tree: true };
    assert_eq!(host.call(&tree), Reply::Done);
    assert_eq!(host.exited(channel).status, ExitStatus::Signal(SIGKILL));
}

#[test]
fn a_failed_program_start_leaves_nothing_behind() {
    let mut host = Host::start();
    let count =
        |host: &Host| fs::read_dir(format!("/proc/{}/fd", host.guest.id())).unwrap().count();
    assert_eq!(host.call(&Request::Ping), Reply::Done, "it has all that it needs");
    let before = count(&host);
    for _ in 0..20 {
        let request = spawn(program(argv(&["no-such-thing"]), LANES));
        assert_eq!(host.code(&request), FaultCode::NotFound);
    }
    assert_eq!(count(&host), before);
    assert_eq!(host.run("exit 0").status, ExitStatus::Code(0));
    assert_eq!(count(&host), before);
}
