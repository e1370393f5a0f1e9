//! The keeper and real containers: what it renews, what it finds, and what it never touches.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use guest_protocol::keeper::{
    Ask, Fact, FromKeeper, KeeperRefusal, KeeperRefusalCode, MAX_PACKET_BYTES, ToKeeper,
    WritableMountSpec,
};
use guest_protocol::message::{ExitStatus, Reply, Request, VERSION, lane};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};

use crate::container::on_stdin;
use crate::host::{Host, shell};

/// A keeper, and its host's end.
struct Keeper {
    pid: Pid,
    socket: OwnedFd,
    last_ticket: u64,
}

impl Keeper {
    fn start() -> Self {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let patience = std::time::Duration::from_secs(20);
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(patience)).unwrap();
        let image = File::open(env!("CARGO_BIN_EXE_guest")).unwrap();
        let arguments = [c"shoal-keeper", c"keeper"];
        let pid = jail::sys::exec::start(image.as_fd(), &arguments, &[theirs.as_fd()]).unwrap();
        let mut keeper = Self { pid, socket, last_ticket: 0 };
        assert!(matches!(keeper.heard(), FromKeeper::Up { .. }));
        keeper
    }

    fn heard(&mut self) -> FromKeeper {
        let mut buffer = vec![0; MAX_PACKET_BYTES];
        let packet = jail::packet::receive(&self.socket, &mut buffer).unwrap();
        assert!(packet.bytes > 0, "the keeper is gone");
        postcard::from_bytes(&buffer[..packet.bytes]).unwrap()
    }

    fn ask(&mut self, ask: Ask, process: &OwnedFd, places: &[WritableMountSpec]) -> FromKeeper {
        self.last_ticket += 1;
        let asked = ToKeeper { ticket: self.last_ticket, ask, places: places.to_vec() };
        let bytes = postcard::to_allocvec(&asked).unwrap();
        jail::packet::send(&self.socket, &bytes, &[process.as_fd()]).unwrap();
        self.heard()
    }

    /// Asks for what must be refused.
    fn refusal(
        &mut self,
        ask: &Ask,
        process: &OwnedFd,
        places: &[WritableMountSpec],
    ) -> KeeperRefusal {
        match self.ask(ask.clone(), process, places) {
            FromKeeper::Refused { refusal, .. } => refusal,
            other => panic!("{ask:?} should be refused and gives {other:?}"),
        }
    }

    fn facts(&mut self, ask: Ask, process: &OwnedFd, places: &[WritableMountSpec]) -> Vec<Fact> {
        match self.ask(ask, process, places) {
            FromKeeper::Seen { facts, .. } => facts,
            other => panic!("{other:?}"),
        }
    }

    fn renew(&mut self, process: &OwnedFd, places: &[WritableMountSpec]) {
        let renewed = self.ask(Ask::Renew, process, places);
        assert_eq!(renewed, FromKeeper::Renewed { ticket: self.last_ticket });
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

const MIB: u64 = 1 << 20;

fn places() -> Vec<WritableMountSpec> {
    let place = |path: &str, bytes, mode, uid| WritableMountSpec {
        path: path.to_owned(),
        bytes,
        mode,
        uid,
        no_programs: matches!(path, "/run/shoal" | "/run/secrets"),
    };
    vec![
        place("/workspace", 600 * MIB, 0o755, 1000),
        place("/tmp", 64 * MIB, 0o1777, 0),
        place("/dev/shm", 64 * MIB, 0o1777, 0),
        place("/run/shoal", 64 * 1024, 0o755, 1000),
        place("/run/secrets", 8 << 20, 0o700, 1000),
    ]
}

/// The first process of a container, by its id on this machine.
fn first_process(host: &Host) -> Pid {
    let path = format!("/proc/{0}/task/{0}/children", host.guest.id());
    let children = std::fs::read_to_string(path).unwrap();
    Pid::from_raw(children.trim().parse().unwrap()).unwrap()
}

/// A container, its keeper, and its facts when it was new.
struct Stage {
    host: Host,
    keeper: Keeper,
    process: OwnedFd,
    baseline: Vec<Fact>,
}

impl Stage {
    fn new() -> Option<Self> {
        if !std::path::Path::new("/usr/bin/python3").exists() {
            crate::host::skip("no python3");
            return None;
        }
        let mut host = on_stdin()?;
        assert_eq!(host.call(&Request::Ping), Reply::Done);
        let mut keeper = Keeper::start();
        let process = pidfd_open(first_process(&host), PidfdFlags::empty()).unwrap();
        let baseline = keeper.facts(Ask::Look, &process, &places());
        let secrecy = baseline.iter().find(|fact| fact.name == "secrecy").unwrap();
        assert_eq!(secrecy.value, "0", "no other process can look into it");
        Some(Self { host, keeper, process, baseline })
    }

    /// Ends a use and begins the next.
    fn wipe(&mut self) {
        assert_eq!(self.host.call(&Request::EndAll), Reply::Done);
        self.renew_and_begin();
    }

    fn renew_and_begin(&mut self) {
        self.keeper.renew(&self.process, &places());
        let (ours, theirs) = UnixStream::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        self.host.ask_with(&Request::BeginAgain, &[theirs.as_fd()]);
        drop(theirs);
        assert_eq!(self.host.switch(ours), Reply::Ready { version: VERSION });
        assert_eq!(self.host.call(&Request::Ping), Reply::Done);
    }

    /// What the proof finds, if anything.
    fn problem(&mut self) -> Option<String> {
        match self.keeper.ask(Ask::Prove, &self.process, &places()) {
            FromKeeper::Refused { refusal, .. } => {
                assert_eq!(refusal.code, KeeperRefusalCode::Left, "{refusal:?}");
                Some(refusal.step)
            }
            FromKeeper::Seen { facts, .. } => {
                let changed = facts.iter().zip(&self.baseline).find(|(now, then)| now != then);
                changed.map(|(now, then)| format!("{now:?} was {then:?}"))
            }
            other => panic!("{other:?}"),
        }
    }

    fn run(&mut self, line: &str) -> String {
        let ran = self.host.run(line);
        assert_eq!(ran.status, ExitStatus::Code(0), "{line}: {ran:?}");
        // The end of a program is reported before it is collected.
        assert_eq!(self.host.call(&Request::Ping), Reply::Done);
        ran.stdout
    }

    /// Starts a program that stays.
    fn leave_running(&mut self, line: &str) {
        let channel = self.host.ask(&shell(line));
        self.host.until("it is up", |host| !host.data(channel, lane::STDOUT).is_empty());
    }
}

/// Python code that makes System V and POSIX objects, which a shell cannot.
fn python(code: &str) -> String {
    format!("python3 -c 'import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\n{code}'")
}

/// What a use may leave behind, one by one, and what the proof reports.
fn leftovers() -> Vec<(String, &'static str)> {
    let line = |line: &str| line.to_owned();
    vec![
        (line("echo x > /workspace/file"), "/workspace/file exists"),
        (line("mkdir -p /tmp/a/b/c"), "/tmp/a exists"),
        (line("echo x > /dev/shm/segment"), "/dev/shm/segment exists"),
        (line("ln -s / /tmp/link"), "/tmp/link exists"),
        (line("mkfifo /workspace/pipe"), "/workspace/pipe exists"),
        (line("echo x > /run/shoal/other"), "/run/shoal/other exists"),
        (line("ln /run/shoal/scale /run/shoal/twice"), "/run/shoal/"),
        (line("chmod 700 /workspace"), "/workspace has another owner or other permissions"),
        (python("os.setxattr(b\"/workspace\", b\"user.x\", b\"secret\")"), "the attribute user.x"),
        (line("(setsid sleep 1000 >/dev/null 2>&1 &)"), "process"),
        (python("assert c.shmget(7, 4096, 0o1666) >= 0"), "Memory"),
        (python("assert c.semget(7, 2, 0o1666) >= 0"), "Semaphores"),
        (python("assert c.msgget(7, 0o1666) >= 0"), "Queue"),
        (
            python("assert c.mq_open(b\"/secret\", os.O_RDWR | os.O_CREAT, 0o600, None) >= 0"),
            "the queue secret",
        ),
        (
            line(
                "python3 -c 'import socket, time\nl = socket.create_server((\"127.0.0.1\", 8080))\n\
                 c = socket.create_connection((\"127.0.0.1\", 8080)); s, _ = l.accept()\n\
                 c.close(); s.close(); l.close()'",
            ),
            "0 sockets are left, and 1 connections remembered",
        ),
    ]
}

#[test]
fn each_leftover_is_found_and_goes() {
    let Some(mut stage) = Stage::new() else { return };
    stage.wipe();
    assert_eq!(stage.problem(), None);
    for (line, found) in leftovers() {
        stage.run(&line);
        // A running process is found before anything else; the process that started it must be
        // gone.
        let problem = stage.problem();
        assert!(
            problem.as_ref().is_some_and(|problem| problem.contains(found)),
            "{line}: {problem:?}"
        );
        stage.wipe();
        assert_eq!(stage.problem(), None, "{line}");
    }
}

#[test]
fn flow_labels_that_outlive_their_sockets_are_found() {
    let Some(mut stage) = Stage::new() else { return };
    let label = "import socket, struct\n\
                 one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n\
                 there = socket.inet_pton(socket.AF_INET6, \"::1\")\n\
                 asked = struct.pack(\"=16sIBBHHHI\", there, 0, 0, 255, 1, 150, 150, 0)\n\
                 one.setsockopt(41, 32, asked); print(\"labelled\")";
    assert_eq!(stage.run(&python(label)), "labelled\n");
    stage.wipe();
    let problem = stage.problem();
    assert!(problem.as_ref().is_some_and(|it| it.contains("flow labels")), "{problem:?}");
}

#[test]
fn all_leftovers_at_once_go() {
    let Some(mut stage) = Stage::new() else { return };
    for round in 0..3 {
        for (line, _) in leftovers() {
            stage.run(&line);
        }
        stage.leave_running("exec 9>/workspace/open; rm /workspace/open; cd /tmp; echo up; while :; do (sleep 1 &); sleep 0.1; done");
        stage.leave_running("trap '' TERM HUP INT; echo up; while :; do sleep 1; done");
        stage.wipe();
        assert_eq!(stage.problem(), None, "round {round}");
        assert_eq!(
            stage.run(
                "ls -A /workspace /tmp /dev/shm; cat /run/shoal/scale; ipcs | grep -c 0x || true"
            ),
            "/dev/shm:\n\n/tmp:\n\n/workspace:\n=0\n0\n"
        );
    }
}

#[test]
fn a_renewed_mount_is_like_the_first() {
    let Some(mut stage) = Stage::new() else { return };
    let look = "stat -c '%n %a %u %g' /workspace /tmp /dev/shm /run/shoal; grep -E ' (/workspace|/tmp|/dev/shm|/run/shoal) ' /proc/self/mountinfo | cut -d' ' -f 4-6 | sort; ls /proc/self/fd | wc -l";
    let before = stage.run(look);
    stage.wipe();
    assert_eq!(stage.run(look), before);
    stage.run("echo 'echo run' > /tmp/program && chmod +x /tmp/program && /tmp/program && cp /tmp/program /workspace && /workspace/program");
    stage.run("! (cp /tmp/program /run/shoal/program && /run/shoal/program 2>/dev/null)");
    let size = stage.run("df -B1 --output=size /workspace /run/shoal | tail -n 2");
    assert_eq!(size.split_whitespace().collect::<Vec<_>>(), ["629145600", "65536"]);
    // Its limits hold as before.
    stage.run("! head -c 100k /dev/zero > /run/shoal/big");
}

#[test]
fn renew_does_not_wait_until_old_files_are_freed() {
    let Some(mut stage) = Stage::new() else { return };
    let children = format!("/proc/{0}/task/{0}/children", stage.keeper.pid.as_raw_nonzero());
    let disposer = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    let disposer = Pid::from_raw(disposer).unwrap();
    kill_process(disposer, Signal::STOP).unwrap();
    for _ in 0..3 {
        stage.run("mkdir /workspace/many && cd /workspace/many && seq 1 2000 | xargs touch");
        stage.wipe();
        assert_eq!(stage.problem(), None);
    }
    kill_process(disposer, Signal::CONT).unwrap();
    // Without the disposer everything works, only slower.
    kill_process(disposer, Signal::KILL).unwrap();
    for _ in 0..2 {
        stage.run("touch /workspace/file");
        stage.wipe();
        assert_eq!(stage.problem(), None);
    }
}

#[test]
fn facts_show_changes_of_the_first_process() {
    let Some(mut stage) = Stage::new() else { return };
    stage.wipe();
    assert_eq!(stage.problem(), None);
    let pid = first_process(&stage.host).as_raw_nonzero().to_string();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let nice = stat.split(' ').nth(18).unwrap().to_owned();
    for (change, back, found) in [
        (
            "setpriv --reuid=1000 --regid=1000 --clear-groups prlimit --nofile=512: --pid PID",
            "setpriv --reuid=1000 --regid=1000 --clear-groups prlimit --nofile=1024: --pid PID",
            "limits",
        ),
        ("renice -n 7 -p PID", "renice -n NICE -p PID", "scheduling"),
        ("ionice -c 3 -p PID", "ionice -c 0 -p PID", "io priority"),
        ("echo 77 > /proc/PID/oom_score_adj", "echo 0 > /proc/PID/oom_score_adj", "oom score"),
        (
            "nsenter -m -t PID mount -t tmpfs -o size=4k more /usr/share",
            "nsenter -m -t PID umount /usr/share",
            "mounts",
        ),
        (
            "nsenter -n -t PID ip address add 198.18.0.1/32 dev lo",
            "nsenter -n -t PID ip address del 198.18.0.1/32 dev lo",
            "network",
        ),
        (
            "nsenter -n -t PID ip -6 route add unreachable default dev lo",
            "nsenter -n -t PID ip -6 route del unreachable default dev lo",
            "network",
        ),
    ] {
        let outside = |line: &str| {
            let line = line.replace("PID", &pid).replace("NICE", &nice);
            let status =
                std::process::Command::new("/bin/sh").args(["-c", &line]).output().unwrap();
            assert!(status.status.success(), "{line}: {status:?}");
        };
        outside(change);
        let problem = stage.problem();
        assert!(
            problem.as_ref().is_some_and(|problem| problem.contains(found)),
            "{change}: {problem:?}"
        );
        outside(back);
        assert_eq!(stage.problem(), None, "{back}");
    }
}

#[test]
fn the_keeper_refuses_processes_that_are_no_container() {
    let Some(mut stage) = Stage::new() else { return };
    let me = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
    for ask in [Ask::Look, Ask::Renew, Ask::Prove] {
        let refusal = stage.keeper.refusal(&ask, &me, &places());
        assert_eq!(refusal.code, KeeperRefusalCode::Foreign, "{refusal:?}");
    }
    // Something else than a handle.
    let null = OwnedFd::from(File::open("/dev/null").unwrap());
    assert_eq!(stage.keeper.refusal(&Ask::Renew, &null, &[]).code, KeeperRefusalCode::Foreign);
    // A program of the container that is not its first process.
    let channel = stage.host.ask(&shell("echo up; exec sleep 1000"));
    stage.host.until("it is up", |host| !host.data(channel, lane::STDOUT).is_empty());
    let first = first_process(&stage.host).as_raw_nonzero();
    let program = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap();
    let program =
        Pid::from_raw(program.split_whitespace().next().unwrap().parse().unwrap()).unwrap();
    let program = pidfd_open(program, PidfdFlags::empty()).unwrap();
    let refusal = stage.keeper.refusal(&Ask::Renew, &program, &places());
    assert_eq!(refusal.code, KeeperRefusalCode::Foreign, "{refusal:?}");
    // Paths that are no writable mounts: nothing of the container is removed.
    for path in ["/usr", "/", "/proc", "/workspace/../usr", "/nowhere", "/bin", "/dev"] {
        let place = WritableMountSpec { path: path.to_owned(), ..places().remove(0) };
        stage.keeper.refusal(&Ask::Renew, &stage.process, &[place]);
    }
    stage.run("ls /usr/bin/env /proc/1 /dev/null");
    stage.wipe();
    assert_eq!(stage.problem(), None);
}

#[test]
fn the_keeper_follows_no_link_inside() {
    let Some(mut stage) = Stage::new() else { return };
    // A mount path that a program replaced by a link. On the host there is a directory of that
    // name.
    stage.run("rm -rf /tmp/a && ln -s /usr /tmp/a");
    let place = WritableMountSpec { path: "/tmp/a".to_owned(), ..places().remove(0) };
    let refusal = stage.keeper.refusal(&Ask::Renew, &stage.process, &[place]);
    assert_eq!(refusal.code, KeeperRefusalCode::System, "{refusal:?}");
    stage.run("ls /usr/bin/env");
}

#[test]
fn the_keeper_reports_a_container_that_has_ended() {
    let Some(mut stage) = Stage::new() else { return };
    drop(stage.host);
    let mut ended = [PollFd::new(&stage.process, PollFlags::IN)];
    let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut ended, Some(&patience)), Ok(1));
    for ask in [Ask::Look, Ask::Renew, Ask::Prove] {
        let refusal = stage.keeper.refusal(&ask, &stage.process, &places());
        assert_eq!(refusal.code, KeeperRefusalCode::Gone, "{refusal:?}");
    }
}

#[test]
fn the_keeper_returns_to_its_namespaces_and_ends_with_its_host() {
    let Some(mut stage) = Stage::new() else { return };
    let pid = stage.keeper.pid.as_raw_nonzero();
    let namespaces = |of: &str| {
        ["mnt", "ipc", "net", "pid"]
            .map(|kind| std::fs::read_link(format!("/proc/{of}/ns/{kind}")).unwrap())
    };
    let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    stage.wipe();
    let before = descriptors();
    for _ in 0..5 {
        stage.run("touch /tmp/x");
        assert!(stage.problem().is_some());
        stage.wipe();
        assert_eq!(stage.problem(), None);
    }
    assert_eq!(namespaces(&pid.to_string()), namespaces("self"));
    assert_eq!(descriptors(), before);
    let (socket, _) = UnixStream::pair().unwrap();
    stage.keeper.socket = socket.into();
    let (_, status) = waitpid(Some(stage.keeper.pid), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0));
}

#[test]
fn a_keeper_without_privileges_reports_that() {
    if !crate::host::is_root() {
        return crate::host::skip("only root can give up being root");
    }
    let (socket, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::empty(), None).unwrap();
    let mut child = std::process::Command::new("/usr/bin/setpriv")
        .args(["--reuid=1000", "--regid=1000", "--clear-groups", "/bin/sh", "-c"])
        .arg(format!("exec {} keeper 3<&0 </dev/null", env!("CARGO_BIN_EXE_guest")))
        .stdin(std::process::Stdio::from(theirs))
        .spawn()
        .unwrap();
    let mut buffer = vec![0; MAX_PACKET_BYTES];
    let length = File::from(socket).read(&mut buffer).unwrap();
    let said: FromKeeper = postcard::from_bytes(&buffer[..length]).unwrap();
    let FromKeeper::Refused { ticket: 0, refusal } = said else { panic!("{said:?}") };
    assert_eq!(refusal.code, KeeperRefusalCode::Powerless);
    assert_eq!(child.wait().unwrap().code(), Some(1));
}
