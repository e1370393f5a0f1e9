//! `serve --templates`: the pools of some templates only. Nothing else changes: the others are
//! known, and there again when the server is started without it.

use rustix::process::Signal;

use crate::shell::{able, eventually, finish};
use crate::test_server::{Scratch, TestServer, isolated_command, output_of};

const CONFIG: &str = r#"
[docker]
enabled = "no"
[oci]
programs = []
[[templates]]
name = "web"
pool = { pool_size = 1 }
[[templates]]
name = "batch"
pool = { pool_size = 1 }
[[templates]]
name = "rare"
pool = { pool_size = 1 }
"#;

fn idle(served: &TestServer, name: &str) -> u64 {
    let pools = served.json(&["pools", "--json"]);
    let pools = pools["pools"].as_array().cloned().unwrap_or_default();
    let pool = pools.iter().find(|pool| pool["template"] == name);
    pool.unwrap_or_else(|| panic!("{name} is among {pools:?}"))["idle"].as_u64().unwrap()
}

#[test]
fn serve_refuses_an_unknown_template_and_lists_the_known_ones() {
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.0.join("shoal.toml");
    std::fs::write(&file, CONFIG).unwrap();
    let (file, data) = (file.to_str().unwrap(), scratch.0.join("data"));
    let data = data.to_str().unwrap();
    for names in ["wbe", "web,wbe", "web,batch,wbe,rare"] {
        let words = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data];
        let words = [&words[..], &["--config", file, "--templates", names]].concat();
        let said = output_of(finish(isolated_command(&words).spawn().unwrap(), &[]));
        assert_eq!(said.code, Some(2), "{names}: {said:?}");
        for part in ["wbe", "batch", "rare", "web"] {
            assert!(said.stderr.contains(part), "{names}: {part} in {}", said.stderr);
        }
    }
    let words = ["config", "--config", file, "--templates", "web,No such"];
    let said = output_of(finish(isolated_command(&words).spawn().unwrap(), &[]));
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("No such"), "{}", said.stderr);
}

#[test]
fn serve_starts_only_the_selected_pools() {
    if !able() {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.0.join("shoal.toml");
    std::fs::write(&file, CONFIG).unwrap();
    let file = file.to_str().unwrap().to_owned();
    let served = TestServer::start_on(scratch, &["--config", &file, "--templates", "web,batch"]);
    for name in ["web", "batch"] {
        eventually("it is ready", || idle(&served, name) == 1);
        let worked = ["exec", "--template", name, "--stdin=no", "--", "echo", "works"];
        assert_eq!(served.text(&worked), "works");
    }
    let wanted = ["exec", "--template", "rare", "--stdin=no", "--", "true"];
    let refused = served.run(&wanted);
    assert_eq!(refused.code, Some(125), "{refused:?}");
    for part in ["template_unknown", "rare", "--templates"] {
        assert!(refused.stderr.contains(part), "{part} in {}", refused.stderr);
    }
    let session = served.run(&["session", "create", "--template", "rare"]);
    assert_ne!(session.code, Some(0), "{session:?}");
    assert!(session.stderr.contains("template_unknown"), "{}", session.stderr);
    assert_eq!(served.json(&["templates", "get", "rare", "--json"])["name"], "rare");
    // What was used is replaced.
    eventually("no other pool is filled", || {
        served.json(&["ps", "--json"])["sandboxes"].as_array().unwrap().len() == 2
    });
    let (code, scratch) = served.stop(Signal::TERM);
    assert_eq!(code, Some(0));
    let served = TestServer::start_on(scratch, &["--config", &file]);
    eventually("all are ready", || {
        ["web", "batch", "rare"].iter().all(|name| idle(&served, name) == 1)
    });
    assert_eq!(served.run(&wanted).code, Some(0));
}
