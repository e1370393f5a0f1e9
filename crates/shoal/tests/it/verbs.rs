//! Commands against a real server with real sandboxes.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::shell::{able, eventually, finish};
use crate::test_server::{TestServer, names, output_of};

#[test]
fn programs_run_in_a_warm_sandbox_as_they_would_anywhere() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let cases: &[(&[&str], i32, &str, &str)] = &[
        (&["echo", "hi"], 0, "hi\n", ""),
        (&["sh", "-c", "echo out; echo err >&2; exit 42"], 42, "out\n", "err\n"),
        (&["sh", "-c", "kill -TERM $$"], 143, "", ""),
        (&["pwd"], 0, "/workspace\n", ""),
        (&["id", "-u"], 0, "1000\n", ""),
    ];
    for (words, code, stdout, stderr) in cases {
        let said = served.run(&[&["exec", "--stdin=no", "--"], *words].concat());
        assert_eq!((said.code, said.text()), (Some(*code), *stdout), "{words:?} {said:?}");
        assert_eq!(said.stderr, *stderr, "{words:?}");
    }
    assert_eq!(served.run(&["exec", "--stdin=no", "--", "no-such-program"]).code, Some(127));
    assert_eq!(served.run(&["exec", "--stdin=no", "--", "/etc/passwd"]).code, Some(126));
    let slow = served.run(&["exec", "--stdin=no", "--timeout", "200ms", "--", "sleep", "30"]);
    assert_eq!(slow.code, Some(137));
    assert!(slow.stderr.contains("timed out"), "{}", slow.stderr);
    let env = ["exec", "--stdin=no", "-e", "A=b", "--cwd", "/tmp", "--shell", "echo $A $(pwd)"];
    assert_eq!(served.text(&env), "b /tmp");
    eventually("every sandbox was given back", || {
        served.json(&["stats", "--json"])["pools"][0]["leased"] == json!(0)
    });
}

#[test]
fn bytes_pass_through_unchanged_in_both_directions() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let mut bytes = Vec::with_capacity(3 << 20);
    let mut state = 1_u32;
    while bytes.len() < 3 << 20 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.push((state >> 24) as u8);
    }
    let said = served.run_with_input(&["exec", "--", "cat"], Some(&bytes));
    assert_eq!((said.code, said.stdout == bytes), (Some(0), true), "{}", said.stderr);
    let kept = served.run_with_input(&["exec", "--json", "--", "cat"], Some("grün".as_bytes()));
    let kept: serde_json::Value = serde_json::from_str(kept.text()).unwrap();
    assert_eq!((&kept["exit_code"], &kept["stdout"]), (&json!(0), &json!("grün")));
}

#[test]
fn an_interrupted_exec_gives_its_sandbox_back() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let line = "echo begun; sleep 60";
    let mut child = served.command(&["exec", "--stdin=no", "--shell", line]).spawn().unwrap();
    let mut seen = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut seen).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(output_of(finish(child, &[])).code, Some(130));
    let leased = served.json(&["pools", "--json"])["pools"][0]["leased"].clone();
    assert_eq!(leased, json!(0), "it was given back before the command ended");
}

#[test]
fn a_sandbox_stays_until_it_is_removed_and_says_why() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let id = served.text(&["create", "--ttl", "1h", "-l", "user=ada", "-e", "TOKEN=t"]);
    assert_eq!(served.text(&["exec", &id, "--stdin=no", "--shell", "echo $TOKEN > f; cat f"]), "t");
    assert_eq!(served.text(&["exec", &id, "--stdin=no", "--", "cat", "/workspace/f"]), "t");
    assert_eq!(served.text(&["ps", "-q", "-l", "user=ada"]), id);
    assert_eq!(served.text(&["ps", "-q", "-l", "user=eve"]), "");
    let table = served.text(&["ps"]);
    assert!(table.contains(&id) && table.contains("user=ada"), "{table}");
    assert!(served.text(&["why", &id]).contains("under a lease"));
    assert_eq!(served.text(&["rm", &id]), id);
    assert!(served.text(&["why", &id]).contains("deleted by its user"));
    let gone = served.run(&["exec", &id, "--stdin=no", "--", "true"]);
    assert!(gone.code == Some(125) && gone.stderr.contains("sandbox_gone"), "{gone:?}");
    let unknown = "0192f3a0-0000-7000-8000-000000000001";
    let said = served.run(&["rm", unknown]);
    assert!(said.code == Some(1) && said.stderr.contains("sandbox_unknown"), "{said:?}");
}

#[test]
fn files_and_directories_are_copied_both_ways() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let id = served.text(&["create"]);
    let here = served.scratch.0.join("here");
    std::fs::create_dir_all(here.join("project/deep/empty")).unwrap();
    std::fs::write(here.join("project/run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(here.join("project/run.sh"), executable).unwrap();
    std::fs::write(here.join("project/deep/data"), vec![7; 300_000]).unwrap();
    std::os::unix::fs::symlink("deep/data", here.join("project/link")).unwrap();
    let path = |name: &str| here.join(name).to_str().unwrap().to_owned();

    served.text(&["cp", &path("project"), &format!("{id}:")]);
    let line = "/workspace/project/run.sh; wc -c < project/link; readlink project/link";
    let seen = served.text(&["exec", &id, "--stdin=no", "--shell", line]);
    assert_eq!(seen, "ran\n300000\ndeep/data");

    served.text(&["cp", &format!("{id}:project"), &path("back")]);
    assert_eq!(names(&here.join("back")), ["deep", "link", "run.sh"]);
    assert_eq!(std::fs::read(here.join("back/deep/data")).unwrap(), vec![7; 300_000]);
    let mode = std::fs::metadata(here.join("back/run.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o111, 0o111);
    assert_eq!(std::fs::read_link(here.join("back/link")).unwrap().to_str(), Some("deep/data"));
    served.text(&["cp", &format!("{id}:project"), &path("back")]);
    assert!(here.join("back/project/run.sh").exists(), "into a directory that exists");

    let said =
        served.run_with_input(&["cp", "-", &format!("{id}:/workspace/in")], Some(b"from stdin"));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(served.text(&["cp", &format!("{id}:in"), "-"]), "from stdin");
    served.text(&["cp", &path("project/run.sh"), &format!("{id}:/tmp/")]);
    assert_eq!(served.text(&["exec", &id, "--stdin=no", "--", "/tmp/run.sh"]), "ran");

    let missing = served.run(&["cp", &format!("{id}:nothing"), "-"]);
    assert!(missing.code == Some(1) && missing.stderr.contains("path_not_found"), "{missing:?}");
    assert_eq!(served.run(&["cp", "a", "b"]).code, Some(2));
    assert_eq!(served.run(&["cp", "/no/such", &format!("{id}:")]).code, Some(125));
}

#[test]
fn pools_and_templates_are_changed_and_seen() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let file = served.scratch.0.join("t.json");
    std::fs::write(&file, r#"{"name":"tiny","limits":{"memory_mb":64}}"#).unwrap();
    assert_eq!(served.text(&["templates", "put", file.to_str().unwrap()]), "tiny");
    assert!(served.text(&["templates"]).contains("64 MB"));
    let toml = served.text(&["templates", "get", "tiny"]);
    assert!(toml.contains("memory_mb = 64"), "{toml}");
    let copy = toml.replace("\"tiny\"", "\"copy\"");
    let said = served.run_with_input(&["templates", "put", "-"], Some(copy.as_bytes()));
    assert_eq!((said.code, said.text()), (Some(0), "copy\n"), "{said:?}");
    assert_eq!(served.text(&["exec", "-T", "tiny", "--stdin=no", "--", "echo", "x"]), "x");

    let resize = ["pools", "resize", "tiny", "--size", "1", "--overflow", "0", "--json"];
    assert_eq!(served.json(&resize)["slots"], json!(1));
    assert!(served.text(&["pools", "drain", "tiny"]).contains("draining"));
    let refused = served.run(&["exec", "-T", "tiny", "--stdin=no", "--", "true"]);
    assert_eq!(refused.code, Some(125), "{refused:?}");
    assert!(served.text(&["pools", "resume", "tiny"]).contains("active"));
    assert_eq!(served.text(&["pools", "rm", "tiny"]), "tiny");
    assert_eq!(served.text(&["templates", "rm", "copy"]), "copy");
    assert_eq!(served.run(&["templates", "get", "tiny"]).code, Some(1));
    std::fs::write(&file, r#"{"name":"tiny","limit":{}}"#).unwrap();
    let wrong = served.run(&["templates", "put", file.to_str().unwrap()]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("limit"), "{wrong:?}");
}

#[test]
fn keys_are_made_used_and_revoked() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let made = served.json(&["key", "create", "ci", "--role", "use", "--json"]);
    let secret = made["secret"].as_str().unwrap();
    let with_key = |words: &[&str]| {
        output_of(finish(served.command(words).env("SHOAL_KEY", secret).spawn().unwrap(), &[]))
    };
    let own = with_key(&["create"]);
    assert_eq!(own.code, Some(0), "{own:?}");
    let foreign = served.text(&["create"]);
    assert_eq!(with_key(&["ps", "-q"]).text(), own.text(), "only its own");
    assert_eq!(with_key(&["why", &foreign]).code, Some(1));
    let refused = with_key(&["key", "ls"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("forbidden"), "{refused:?}");
    assert!(served.text(&["key"]).contains("ci"));
    served.text(&["key", "revoke", made["id"].as_str().unwrap()]);
    let revoked = with_key(&["ps"]);
    assert!(revoked.code == Some(1) && revoked.stderr.contains("SHOAL_KEY"), "{revoked:?}");
}

#[test]
fn events_are_listed_and_followed() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let follow = ["events", "--follow", "--after", "0", "--json"];
    let mut child = served.command(&follow).spawn().unwrap();
    let id = served.text(&["create"]);
    served.text(&["rm", &id]);
    let ended = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        event["type"] == "sandbox_terminated" && event["sandbox_id"] == json!(id)
    };
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let (found, watched) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let _ = found.send(line);
        }
    });
    let patience = std::time::Duration::from_secs(20);
    while !ended(&watched.recv_timeout(patience).unwrap()) {}
    child.kill().unwrap();
    child.wait().unwrap();
    let listed = served.text(&["events", "--sandbox", &id]);
    assert!(listed.contains("sandbox_active") && listed.contains("sandbox_terminated"), "{listed}");
    assert_eq!(served.text(&["events", "--sandbox", &id, "--limit", "1"]).lines().count(), 1);
}

#[test]
fn another_server_can_be_named() {
    if !able() {
        return;
    }
    let served = TestServer::start();
    let url = std::fs::read_to_string(served.data().join("address")).unwrap();
    let key = std::fs::read_to_string(served.data().join("admin.key")).unwrap();
    let mut command =
        crate::test_server::isolated_command(&["stats", "--json", "--server", url.trim()]);
    let said = output_of(finish(command.env("SHOAL_KEY", key.trim()).spawn().unwrap(), &[]));
    assert_eq!(said.code, Some(0), "{said:?}");
}
