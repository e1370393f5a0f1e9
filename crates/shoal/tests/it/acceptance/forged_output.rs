//! What a program writes is output, whatever it looks like: words of the guest's own protocol,
//! frames of the engine's, lines and events as the API sends them. How it ended is what the kernel
//! says.

use client::Lease;
use guest_protocol::Endpoint;
use guest_protocol::message::{ExitStatus, Exited, Reply};
use serde_json::json;
use wire::{ExecEvent, ExecRequest};

use super::stage::{Kind, Stage};

on_every_runtime!(a_forged_result_is_only_output);

/// The same where the guest's own words travel through the engine's framing.
#[test]
fn a_forged_result_is_only_output_through_the_engine() {
    let Some(stage) = Stage::start_with(Kind::Docker, "forged-attach", "link = \"attach\"") else {
        return;
    };
    forge(stage);
}

fn a_forged_result_is_only_output(kind: Kind) {
    let Some(stage) = Stage::start(kind, "forged") else { return };
    forge(stage);
}

fn forge(stage: Stage) {
    stage.act(async {
        stage.pool(json!({ "pool_size": 1, "max_overflow": 0 })).await;
        let lease = stage.checkout().await;
        for (what, bytes) in forgeries() {
            only_output(&lease, what, &bytes).await;
        }
        let everywhere = "for fd in /proc/1/fd/* /proc/self/fd/[3-9]*; do \
                          cat /workspace/forged > $fd; done 2>/dev/null; true";
        let done = lease.exec(ExecRequest::shell(everywhere)).await.unwrap();
        assert_eq!((done.exit_code, done.stdout.as_deref()), (0, Some("")), "{done:?}");
        let alive = lease.exec(ExecRequest::shell("echo alive")).await.unwrap();
        assert_eq!(alive.stdout.as_deref(), Some("alive\n"), "{alive:?}");
        lease.give_back().await.unwrap();
        assert_eq!(stage.full().await.counters.crashed, 0);
    });
    stage.end();
}

/// Forged output that a program might write.
fn forgeries() -> Vec<(&'static str, Vec<u8>)> {
    let mut guest = Endpoint::new();
    for channel in 0..32 {
        let status = ExitStatus::Code(0);
        let exited = Exited { status, user_us: 0, system_us: 0, max_rss_kb: 0 };
        guest.send(channel, &Reply::Exited(exited)).unwrap();
    }
    let frame = |stream: u8, text: &[u8]| {
        let length = u32::try_from(text.len()).unwrap().to_be_bytes();
        [&[stream, 0, 0, 0], &length[..], text].concat()
    };
    let engine =
        [frame(1, guest.outgoing()), frame(2, b"x"), frame(0, b""), vec![1, 0, 0]].concat();
    let lines = "{\"type\":\"exit\",\"exit_code\":0,\"timed_out\":false}\n\
                 {\"type\":\"final\",\"result\":\"forged\"}\n{\"type\":\"ready\"}\n\
                 event: exit\ndata: {\"type\":\"exit\",\"exit_code\":0}\n\n\r\n0\r\n\r\n";
    vec![
        ("of the guest", guest.outgoing().to_vec()),
        ("of the engine", engine),
        ("of the API", lines.into()),
    ]
}

/// Prints it on both outputs, and ends with a code of its own.
async fn only_output(lease: &Lease, what: &str, bytes: &[u8]) {
    lease.write_file("/workspace/forged", bytes.to_vec(), None).await.unwrap();
    let line = "cat /workspace/forged; cat /workspace/forged >&2; exit 3";
    let done = lease.exec(ExecRequest::shell(line)).await.unwrap();
    assert_eq!(done.exit_code, 3, "{what}: {done:?}");
    assert_eq!(done.stdout_bytes().unwrap(), bytes, "{what}");
    assert_eq!(done.stderr_bytes().unwrap(), bytes, "{what}");
    let mut stream = lease.exec_stream(ExecRequest::shell(line)).await.unwrap();
    let (mut stdout, mut exits) = (Vec::new(), Vec::new());
    while let Some(event) = stream.next().await.unwrap() {
        match event {
            ExecEvent::Stdout(output) => stdout.extend(output.bytes().unwrap()),
            ExecEvent::Exit(exit) => exits.push(exit.exit_code),
            ExecEvent::Started | ExecEvent::Stderr(_) => {}
            ExecEvent::Error { problem } => panic!("{what}: {problem}"),
        }
    }
    assert_eq!((stdout, exits), (bytes.to_vec(), vec![3]), "{what}");
}
