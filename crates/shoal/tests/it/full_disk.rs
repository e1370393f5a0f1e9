//! A server whose disk has no space left: it starts, serves reads, says that it is degraded and
//! why, recovers by itself, and stops on a signal. On a small file system of memory.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::shell::{able, eventually, skipped};
use crate::test_server::{Scratch, TestServer, isolated_command};

/// Sandboxes are refused before the disk is full otherwise.
const FLOOR: &str = "node.workspace_free_floor_mb=1";

/// A data directory on a file system of its own.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Only root may mount.
    fn under(scratch: &Scratch) -> Option<Self> {
        let data = scratch.0.join("data");
        fs::create_dir_all(&data).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m,mode=700", "none"])
            .arg(&data)
            .status();
        if !mounted.is_ok_and(|status| status.success()) {
            skipped("no root");
            return None;
        }
        Some(Self(data))
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Takes all space that there is.
    fn fill(&self) {
        let mut ballast =
            fs::File::options().create(true).append(true).open(self.ballast()).unwrap();
        for size in [64 << 10, 4 << 10, 1] {
            while ballast.write_all(&vec![1; size]).is_ok() {}
        }
    }

    fn free(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Whatever still has it open keeps it no longer than it lives.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A page as `curl` would get it, with the admin's key.
pub(crate) fn get_from(address: &str, key: &str, path: &str) -> Option<String> {
    let mut connection = TcpStream::connect(address).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\
         Connection: close\r\n\r\n"
    );
    connection.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

pub(crate) fn get(served: &TestServer, path: &str) -> String {
    let read = |name: &str| fs::read_to_string(served.data().join(name)).unwrap();
    let address = read("address");
    let address = address.lines().next().unwrap().trim_start_matches("http://").to_owned();
    get_from(&address, read("admin.key").trim(), path).unwrap()
}

pub(crate) fn health(served: &TestServer) -> Value {
    let body = get(served, "/health");
    json_in(&body)
}

/// The object in a body, which may come in chunks.
fn json_in(body: &str) -> Value {
    let (from, to) = (body.find('{').unwrap(), body.rfind('}').unwrap());
    serde_json::from_str(&body[from..=to]).unwrap()
}

/// A free port, for servers that cannot write their address file.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_start_on_a_full_disk_serves_reads_and_recovers_by_itself() {
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let Some(disk) = SmallDisk::under(&scratch) else { return };
    let address = format!("127.0.0.1:{}", free_port());
    let flags = ["--listen", address.as_str(), "--set", FLOOR];
    let mut served = TestServer::start_plain(scratch, &flags);
    let session = served.json(&["session", "create", "--json"]);
    let session = session["id"].as_str().or_else(|| session["session"]["id"].as_str());
    let session = session.unwrap().to_owned();
    let key = fs::read_to_string(disk.0.join("admin.key")).unwrap();
    for (round, signal) in [(0, Signal::TERM), (1, Signal::KILL), (2, Signal::TERM)] {
        let (code, scratch) = served.stop(signal);
        assert!(signal == Signal::KILL || code == Some(0), "{round}: {code:?}");
        disk.fill();
        served = TestServer::start_without_waiting(scratch, &flags);
        eventually("it serves", || {
            served.assert_alive();
            get_from(&address, key.trim(), "/health").is_some()
        });
        eventually("it says that it is degraded", || {
            served.assert_alive();
            let health = json_in(&get_from(&address, key.trim(), "/health").unwrap());
            let reasons = health["reasons"].to_string();
            // The log that a kill leaves is space enough to write.
            let reason = if round == 1 { "disk: " } else { "store: disk_full" };
            health["status"] == "degraded" && reasons.contains(reason)
        });
        let read = get_from(&address, key.trim(), &format!("/v1/sessions/{session}")).unwrap();
        assert_eq!(json_in(&read)["id"], session.as_str(), "{read}");
        if round == 2 {
            break;
        }
        disk.free();
        eventually("it recovers", || {
            served.assert_alive();
            let health = json_in(&get_from(&address, key.trim(), "/health").unwrap());
            health["status"] == "ok"
        });
        eventually("it says where it is", || disk.0.join("address").exists());
        let create = || served.run(&["create"]).code == Some(0);
        eventually("it hands out sandboxes", create);
    }
    // On a signal while the disk is full the server stops, and reports that it was not in order.
    let (code, _scratch) = served.stop(Signal::TERM);
    assert!(code.is_some(), "it ended by itself");
}

#[test]
fn a_disk_that_becomes_full_does_not_keep_a_server_from_stopping() {
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let Some(disk) = SmallDisk::under(&scratch) else { return };
    let flags = ["--set", "server.shutdown_grace_ms=15000", "--set", FLOOR];
    let served = TestServer::start_plain(scratch, &flags);
    let running = ["exec", "--stdin=no", "--shell", "echo begun; sleep 3; echo done"];
    let mut child = served.command(&running).spawn().unwrap();
    let mut seen = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut seen).unwrap();
    disk.fill();
    eventually("it notices", || {
        let _ = served.run(&["create"]);
        health(&served)["status"] == "degraded"
    });
    // No longer than its grace and what tests wait for anything.
    let (code, _scratch) = served.stop(Signal::TERM);
    assert!(code.is_some());
    let _ = crate::shell::finish(child, &[]);
    drop(disk);
}

#[test]
fn a_first_start_on_a_full_disk_is_refused_with_its_remedy() {
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let Some(disk) = SmallDisk::under(&scratch) else { return };
    disk.fill();
    let data = disk.0.to_str().unwrap();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data];
    let said = crate::test_server::output_of(crate::shell::finish(
        isolated_command(&arguments).spawn().unwrap(),
        &[],
    ));
    assert!(![Some(0), None].contains(&said.code), "{said:?}");
    assert!(said.stderr.contains("space"), "{}", said.stderr);
    assert!(!said.stderr.contains("by itself"), "{}", said.stderr);
    assert!(!Path::new(data).join("admin.key").exists());
}
