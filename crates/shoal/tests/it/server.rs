//! `shoal serve` as its operators meet it: one at a time, found by itself, stopped in order, its
//! first key kept by its owner.

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;

use crate::acceptance::machine::launcher;
use crate::shell::{able, eventually, finish};
use crate::test_server::{Scratch, TestServer, isolated_command, names, output_of};

#[test]
fn without_a_server_commands_say_how_to_start_one() {
    let scratch = Scratch::new();
    let data = scratch.0.to_str().unwrap();
    // No program listens on port 1.
    let cases: [(&[&str], i32); 4] = [
        (&["ps"], 3),
        (&["create"], 3),
        (&["events", "--follow"], 3),
        (&["exec", "--stdin=no", "--", "true"], 125),
    ];
    for (words, code) in cases {
        let mut command = isolated_command(words);
        command.env("SHOAL_URL", "http://127.0.0.1:1").env("SHOAL_DATA_DIR", data);
        let said = output_of(finish(command.spawn().unwrap(), &[]));
        assert_eq!(said.code, Some(code), "{words:?} {said:?}");
        assert!(said.stderr.contains("no server at http://127.0.0.1:1"), "{}", said.stderr);
        assert!(said.stderr.contains("shoal serve"), "{}", said.stderr);
    }
}

/// A program that stands for another server: it must never get the key of a data directory.
#[test]
fn key_of_a_stopped_server_is_sent_to_no_other_server() {
    let scratch = Scratch::new();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let address = format!("http://{}", other.local_addr().unwrap());
    let listen = other.local_addr().unwrap().to_string();
    let data = scratch.0.join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("admin.key"), "secret-of-another\n").unwrap();
    let data = data.to_str().unwrap();
    let named = ["ps", "--data-dir", data];
    let refused = |words: &[&str], variables: &[(&str, &str)]| {
        let mut command = isolated_command(words);
        command.envs(variables.iter().copied());
        let said = output_of(finish(command.spawn().unwrap(), &[]));
        assert_eq!(said.code, Some(3), "{said:?}");
        let parts = [&*format!("no server for {data}"), "shoal serve --data-dir", "--server"];
        assert!(parts.iter().all(|part| said.stderr.contains(part)), "{}", said.stderr);
        let came = other.accept().map(|_| ()).map_err(|error| error.kind());
        assert_eq!(came, Err(std::io::ErrorKind::WouldBlock), "nothing was sent");
    };
    // At the address where a server listens by default, as the configuration has it.
    refused(&named, &[("SHOAL_LISTEN", &listen)]);
    // At the address in the environment, which is not that of this data directory.
    refused(&named, &[("SHOAL_URL", &address)]);
    refused(&["ps"], &[("SHOAL_LISTEN", &listen), ("SHOAL_DATA_DIR", data)]);
    // At the address that a killed server left.
    std::fs::write(scratch.0.join("data/address"), &address).unwrap();
    std::fs::write(scratch.0.join("data/lock"), "1\n").unwrap();
    refused(&named, &[]);
}

#[test]
fn log_of_a_launcher_that_dies_is_one_line() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let data = served.data();
    let key_file = format!("key_file=\"{}\"", data.join("admin.key").display());
    assert!(served.log().contains(&key_file), "{}", served.log());
    let server = served.pid().as_raw_nonzero().get().cast_unsigned();
    let killed = launcher(server);
    killed.signal(Signal::KILL);
    eventually("a sandbox can be made again", || {
        let is_new = served.log().contains("a new launcher was started");
        is_new && served.run(&["exec", "--stdin=no", "--", "true"]).code == Some(0)
    });
    let log = served.log();
    let died: Vec<_> = log.lines().filter(|line| line.contains("the launcher died")).collect();
    assert_eq!(died.len(), 1, "{log}");
    let pid = format!("pid={}", killed.pid);
    assert!(died[0].contains(&pid) && died[0].contains("signal=9"), "{log}");
    assert!(!log.contains("launch_failed"), "{log}");
}

#[test]
fn a_configuration_that_cannot_be_used_is_refused_by_line() {
    let scratch = Scratch::new();
    let file = scratch.0.join("shoal.toml");
    std::fs::write(&file, "[node]\nmax_lve = 3\n").unwrap();
    let file = file.to_str().unwrap();
    for words in [["config", "--check", file], ["serve", "--config", file]] {
        let said = output_of(finish(isolated_command(&words).spawn().unwrap(), &[]));
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stderr.contains(&format!("{file}:2:1: node.max_lve")), "{}", said.stderr);
        assert!(said.stderr.contains("node.max_live?"), "{}", said.stderr);
    }
}

#[test]
fn server_is_found_stops_in_order_and_keeps_its_data() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let data = served.data();
    let mode = |name: &str| std::fs::metadata(data.join(name)).unwrap().permissions().mode();
    assert_eq!((mode("") & 0o777, mode("admin.key") & 0o777), (0o700, 0o600));
    let key = std::fs::read_to_string(data.join("admin.key")).unwrap();
    assert!(!served.log().contains(key.trim()), "a secret in the log");
    let second = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
    let second = output_of(finish(isolated_command(&second).spawn().unwrap(), &[]));
    assert_eq!(second.code, Some(2));
    let first = format!("process {}", served.pid().as_raw_nonzero());
    assert!(second.stderr.contains(&first), "{}", second.stderr);

    let id = served.text(&["create", "-l", "who=me"]);
    served.text(&["templates", "put", template(&served, "small").to_str().unwrap()]);
    let (code, scratch) = served.stop(Signal::TERM);
    assert_eq!(code, Some(0));
    assert!(!names(&data).contains(&"address".to_owned()));

    let again = TestServer::start_on(scratch, &[]);
    assert_eq!(std::fs::read_to_string(data.join("admin.key")).unwrap(), key, "the same key");
    assert_eq!(again.json(&["templates", "get", "small", "--json"])["name"], "small");
    assert_eq!(again.json(&["why", &id, "--json"])["status"], "ended");
    assert!(again.text(&["why", &id]).contains("server stopped"), "{}", again.text(&["why", &id]));
}

#[test]
fn a_lost_key_is_replaced_when_asked_for() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let key = served.data().join("admin.key");
    let old = std::fs::read_to_string(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    assert_eq!(served.run(&["ps"]).code, Some(1), "without a key");
    let (_, scratch) = served.stop(Signal::INT);
    let served = TestServer::start_on(scratch, &["--new-admin-key"]);
    let new = std::fs::read_to_string(&key).unwrap();
    assert_ne!(new, old);
    let keys = served.json(&["key", "ls", "--json"]);
    assert_eq!(keys["keys"].as_array().unwrap().len(), 2, "{keys}");
}

#[test]
fn after_kill_9_the_next_start_goes_on() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let id = served.text(&["create"]);
    let (_, scratch) = served.stop(Signal::KILL);
    let again = TestServer::start_on(scratch, &[]);
    let why = again.json(&["why", &id, "--json"]);
    assert_eq!((&why["status"], &why["cause"]), (&"ended".into(), &"restart".into()));
    let gone = again.run(&["exec", &id, "--stdin=no", "--", "true"]);
    assert_eq!(gone.code, Some(125));
    assert!(gone.stderr.contains("sandbox_gone"), "{}", gone.stderr);
}

#[test]
fn what_runs_may_finish_and_a_second_signal_does_not_wait() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let finishing = ["exec", "--stdin=no", "--shell", "echo begun; sleep 1; echo done"];
    let mut child = served.command(&finishing).spawn().unwrap();
    read_line(&mut child, "begun\n");
    let (code, scratch) = served.stop(Signal::TERM);
    let said = output_of(finish(child, &[]));
    assert_eq!((said.code, said.text()), (Some(0), "done\n"), "{said:?}");
    assert_eq!(code, Some(0));

    let served = TestServer::start_on(scratch, &[]);
    let endless = ["exec", "--stdin=no", "--shell", "echo begun; sleep 60"];
    let mut child = served.command(&endless).spawn().unwrap();
    read_line(&mut child, "begun\n");
    let pid = served.pid();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    eventually("it stops", || served.log().contains("stopping: running work may finish"));
    let (_, _scratch) = served.stop(Signal::TERM);
    assert_eq!(output_of(finish(child, &[])).code, Some(125));
}

fn read_line(child: &mut std::process::Child, expected: &str) {
    let mut seen = vec![0; expected.len()];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut seen).unwrap();
    assert_eq!(seen, expected.as_bytes());
}

fn template(served: &TestServer, name: &str) -> std::path::PathBuf {
    let path = served.scratch.0.join("template.toml");
    std::fs::write(&path, format!("name = \"{name}\"\n[pool]\npool_size = 1\n")).unwrap();
    path
}
