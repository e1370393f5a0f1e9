//! The bytes of every message. A change here is a change of the protocol: raise its version.

use std::fmt::Debug;

use guest_protocol::message::{
    Command, Entry, EntryKind, ExitStatus, Exited, Fault, FaultCode, Pipe, Port, ProcessLimits,
    Reply, Request, RunningProcess, Spawn, Stdio, TerminalSize, VERSION,
};
use guest_protocol::{Env, decode};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Asserts that a message has these bytes, and that they are read as it.
pub(crate) fn pin<M: Serialize + DeserializeOwned + PartialEq + Debug>(message: &M, hex: &str) {
    let bytes = postcard::to_allocvec(message).unwrap();
    let found = bytes.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    assert_eq!(found, hex, "{message:?}");
    assert_eq!(&decode::<M>(&bytes).unwrap(), message);
}

fn env() -> Env {
    [("A", "1"), ("B", "")].into_iter().collect()
}

#[test]
fn requests() {
    let path = || "/w".to_owned();
    pin(&Request::Ping, "00");
    pin(&Request::Claim { env: env() }, "010201410131014200");
    pin(&Request::Signal { process: 300, signal: 15, tree: true }, "03ac021e01");
    pin(&Request::Resize { process: 1, size: TerminalSize { rows: 24, columns: 80 } }, "04011850");
    pin(&Request::ReadFile { path: path(), offset: 0, length: None }, "05022f770000");
    pin(&Request::ReadFile { path: path(), offset: 128, length: Some(5) }, "05022f7780010105");
    pin(&Request::WriteFile { path: path(), mode: None, parents: true }, "06022f770001");
    pin(
        &Request::WriteFile { path: path(), mode: Some(0o600), parents: false },
        "06022f7701800300",
    );
    pin(&Request::List { path: path(), after: None, limit: 100 }, "07022f770064");
    pin(&Request::List { path: path(), after: Some(b"x".to_vec()), limit: 1 }, "07022f7701017801");
    pin(&Request::Stat { path: path() }, "08022f77");
    pin(&Request::MakeDirectory { path: path(), parents: true }, "09022f7701");
    pin(&Request::Move { from: path(), to: "b".into(), overwrite: true }, "0a022f77016201");
    pin(&Request::Remove { path: path(), recursive: true }, "0b022f7701");
    pin(&Request::Dial { port: 8080 }, "0c903f");
    pin(&Request::Ports, "0d");
    pin(&Request::Processes, "0e");
    pin(&Request::MakeLink { path: path(), target: "../b".into() }, "0f022f77042e2e2f62");
    pin(&Request::DialUnix { path: path() }, "10022f77");
    pin(&Request::LinkFile { path: path(), target: "b".into() }, "11022f770162");
    pin(
        &Request::SetAbout { path: path(), mode: Some(0o700), modified_ms: Some(-1) },
        "12022f7701c0030101",
    );
    pin(&Request::SetAbout { path: path(), mode: None, modified_ms: None }, "12022f770000");
    pin(&Request::ScaleHeard { seq: 300 }, "14ac02");
    pin(&Request::ShowHolds { processes: 2, seen: 1 }, "150201");
    pin(&Request::EndAll, "16");
    pin(&Request::BeginAgain, "17");
}

#[test]
fn spawns() {
    let plain = Spawn {
        command: Command::Argv(vec!["echo".into(), "hi".into()]),
        env: env(),
        cwd: None,
        stdio: Stdio::Pipes { stdin: Pipe::Null, stdout: Pipe::Passed, stderr: Pipe::Lane },
        limits: ProcessLimits::default(),
        announce: false,
    };
    let full = Spawn {
        command: Command::Shell("ls".into()),
        env: Env::default(),
        cwd: Some("/tmp".into()),
        stdio: Stdio::Terminal(TerminalSize { rows: 24, columns: 200 }),
        limits: ProcessLimits {
            cpu_s: Some(1),
            file_bytes: Some(2),
            descriptors: Some(3),
            address_space_bytes: Some(1 << 30),
        },
        announce: true,
    };
    pin(
        &Request::Spawn(Box::new(plain)),
        "020002046563686f026869020141013101420000000001020000000000",
    );
    pin(
        &Request::Spawn(Box::new(full)),
        "0201026c730001042f746d700118c80101010102010301808080800401",
    );
    let channel = Spawn {
        command: Command::Shell("ls".into()),
        env: Env::default(),
        cwd: None,
        stdio: Stdio::Channel { stdout: Pipe::Passed, stderr: Pipe::Lane },
        limits: ProcessLimits::default(),
        announce: false,
    };
    pin(&Request::Spawn(Box::new(channel)), "0201026c7300000201020000000000");
}

#[test]
fn replies() {
    let entry = |kind, target| Entry {
        name: b"n\xff".to_vec(),
        kind,
        size: 4096,
        mode: 0o644,
        modified_ms: -1,
        target,
        shared: None,
    };
    pin(&Reply::Ready { version: 1 }, "0001");
    pin(&Reply::Ready { version: VERSION }, "0006");
    pin(&Reply::SetupFailed { step: "root".into(), errno: 2 }, "0104726f6f7404");
    pin(&Reply::Done, "02");
    pin(&Reply::Scale { seq: 1, scale: 300, drops: true }, "0a01ac0201");
    pin(&Reply::Started { pid: None }, "0300");
    pin(&Reply::Started { pid: Some(7) }, "030107");
    let usage = |status| Exited { status, user_us: 1000, system_us: 2, max_rss_kb: 3 };
    pin(&Reply::Exited(usage(ExitStatus::Code(0))), "040000e8070203");
    pin(&Reply::Exited(usage(ExitStatus::Signal(9))), "040112e8070203");
    pin(&Reply::Entry(entry(EntryKind::File, None)), "05026eff008020a403010000");
    pin(&Reply::Entry(entry(EntryKind::Directory, None)), "05026eff018020a403010000");
    pin(&Reply::Entry(entry(EntryKind::Link, Some(b"t".to_vec()))), "05026eff028020a4030101017400");
    let shared = Entry { shared: Some(300), ..entry(EntryKind::File, None) };
    pin(&Reply::Entry(shared), "05026eff008020a403010001ac02");
    pin(&Reply::Entry(entry(EntryKind::Other, None)), "05026eff038020a403010000");
    pin(
        &Reply::Entries { entries: vec![entry(EntryKind::File, None)], more: true },
        "0601026eff008020a40301000001",
    );
    pin(&Reply::Ports(vec![Port { port: 80, loopback_only: true }]), "07015001");
    pin(&Reply::Processes(vec![RunningProcess { process: 1, pid: 2 }]), "08010102");
    let fault = |code| Reply::Failed(Fault { code, errno: 13, message: "m".into() });
    pin(&fault(FaultCode::Invalid), "09001a016d");
    pin(&fault(FaultCode::NotFound), "09011a016d");
    pin(&fault(FaultCode::Exists), "09021a016d");
    pin(&fault(FaultCode::Denied), "09031a016d");
    pin(&fault(FaultCode::WrongKind), "09041a016d");
    pin(&fault(FaultCode::Limit), "09051a016d");
    pin(&fault(FaultCode::System), "09061a016d");
}

/// Does not compile when a variant is added: pin its bytes above, then name it here.
#[test]
fn no_variant_is_missing_above() {
    let _ = |request: Request| match request {
        Request::Ping
        | Request::Claim { .. }
        | Request::Spawn(_)
        | Request::Signal { .. }
        | Request::Resize { .. }
        | Request::ReadFile { .. }
        | Request::WriteFile { .. }
        | Request::List { .. }
        | Request::Stat { .. }
        | Request::MakeDirectory { .. }
        | Request::Move { .. }
        | Request::Remove { .. }
        | Request::Dial { .. }
        | Request::Ports
        | Request::Processes
        | Request::MakeLink { .. }
        | Request::DialUnix { .. }
        | Request::LinkFile { .. }
        | Request::SetAbout { .. }
        | Request::Look { .. }
        | Request::ScaleHeard { .. }
        | Request::ShowHolds { .. }
        | Request::EndAll
        | Request::BeginAgain => {}
    };
    let _ = |reply: Reply| match reply {
        Reply::Ready { .. }
        | Reply::SetupFailed { .. }
        | Reply::Done
        | Reply::Started { .. }
        | Reply::Exited(_)
        | Reply::Entry(_)
        | Reply::Entries { .. }
        | Reply::Ports(_)
        | Reply::Processes(_)
        | Reply::Failed(_)
        | Reply::Scale { .. } => {}
    };
}

#[test]
fn rest_behind_a_message_is_refused() {
    assert!(decode::<Request>(&[0]).is_ok());
    assert!(decode::<Request>(&[0, 0]).is_err());
    assert!(decode::<Request>(&[]).is_err());
    assert!(decode::<Request>(&[0xff, 0xff, 0x03]).is_err());
}
