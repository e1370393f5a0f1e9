//! Agents: deployed from files and from directories, changed, removed, and seen by their key alone.

use std::fs;

use model::Role;
use serde_json::{Value, json};

use super::{call, deploy, get, stage, stage_with};
use crate::stage::{Stage, text};

fn base64(text: &str) -> String {
    wire::to_base64(text.as_bytes())
}

#[tokio::test]
async fn an_agent_is_deployed_again_under_its_id_and_a_higher_version() {
    let stage = stage().await;
    let files = json!([{"path": "CLAUDE.md", "content": base64("# hi")},
                       {"path": "lib/a.sh", "content": base64("true")}]);
    let body = json!({"name": "a", "files": files, "env": {"TOKEN": "hunter2"}});
    let made = call(&stage, "POST", "/api/agents", body).await.expect(201)["agent"].clone();
    assert_eq!((made["name"].as_str(), made["version"].as_u64()), (Some("a"), Some(1)));
    assert_eq!(made["env"], json!({"TOKEN": "***"}));
    let listed = get(&stage, "/api/agents/a/files").await.expect(200);
    let paths: Vec<_> = listed["files"].as_array().unwrap().iter().map(|f| &f["path"]).collect();
    assert_eq!(paths, ["CLAUDE.md", "lib/a.sh"]);

    let body = json!({"name": "a", "systemPrompt": "Be brief."});
    let again = call(&stage, "POST", "/api/agents", body).await.expect(201)["agent"].clone();
    assert_eq!((&again["id"], &again["createdAt"]), (&made["id"], &made["createdAt"]));
    assert_eq!((again["version"].as_u64(), &again["env"]), (Some(2), &made["env"]));
    let read = get(&stage, "/api/agents/a/files/CLAUDE.md").await.expect(200);
    assert_eq!(read, json!({"path": "CLAUDE.md", "content": "Be brief.", "size": 9}));
    let raw = get(&stage, "/api/agents/a/files/CLAUDE.md?format=raw").await;
    assert_eq!((raw.status, &raw.body[..]), (200, &b"Be brief."[..]));
    assert_eq!(get(&stage, "/api/agents/a/files/lib/a.sh").await.status, 404);
}

#[tokio::test]
async fn files_environment_and_configuration_of_an_agent_are_changed() {
    let stage = stage().await;
    deploy(&stage, "a").await;
    let files = json!([{"path": "b/c", "content": base64("x")}]);
    let path = "/api/agents/a/files";
    let written = call(&stage, "POST", path, json!({"files": files})).await.expect(200);
    assert_eq!(written, json!({"written": 1}));
    assert_eq!(get(&stage, "/api/agents/a/files/b/c").await.expect(200)["content"], "x");
    let removed = call(&stage, "DELETE", "/api/agents/a/files/b/c", Value::Null).await;
    assert_eq!(removed.expect(200), json!({"deleted": true}));
    assert_eq!(get(&stage, "/api/agents/a/files/b/c").await.status, 404);

    let config = "/api/agents/a/config";
    call(&stage, "PATCH", config, json!({"x": 1, "y": {"z": 2}})).await.expect(200);
    call(&stage, "PATCH", "/api/agents/a", json!({"env": {}, "version": 9})).await.expect(400);
    let body = json!({"env": {"A": "1"}, "config": {"y": 3}, "version": null});
    let patched = call(&stage, "PATCH", "/api/agents/a", body).await.expect(200);
    assert_eq!(patched["agent"]["env"], json!({"A": "***"}));
    assert_eq!(patched["agent"]["version"], 1);
    assert_eq!(get(&stage, config).await.expect(200), json!({"config": {"x": 1, "y": 3}}));
    let gone = call(&stage, "DELETE", "/api/agents/a", Value::Null).await.expect(200);
    assert_eq!(gone, json!({"ok": true}));
    assert_eq!(get(&stage, "/api/agents").await.expect(200), json!({"agents": []}));
}

#[tokio::test]
async fn an_agent_is_deployed_from_a_directory_that_is_allowed_and_from_no_other() {
    let scratch = std::env::temp_dir().join(format!("shoal-ash-agents-{}", std::process::id()));
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(scratch.join("roots/one")).unwrap();
    fs::write(scratch.join("roots/one/CLAUDE.md"), "# one").unwrap();
    fs::create_dir_all(scratch.join("other")).unwrap();
    fs::write(scratch.join("other/CLAUDE.md"), "# other").unwrap();
    let roots = vec![scratch.join("roots")];
    let stage = stage_with(|_, _, ash| ash.agent_roots = roots).await;
    let path = scratch.join("roots/one");
    let body = json!({"name": "one", "path": path});
    let made = call(&stage, "POST", "/api/agents", body).await.expect(201);
    assert_eq!(text(&made["agent"]["path"]), path.canonicalize().unwrap().to_string_lossy());
    let body = json!({"name": "other", "path": scratch.join("other")});
    let refused = call(&stage, "POST", "/api/agents", body).await.expect(400);
    assert!(text(&refused["error"]).contains("ash.agent_roots"), "{refused}");
    let stranger = stage.key(Role::Use).await;
    let body = json!({"name": "mine", "path": path});
    let route = "/compat/ash/api/agents";
    let refused = stage.call_as(&stranger, "POST", route, body).await.expect(403);
    assert!(text(&refused["error"]).contains("role admin"), "{refused}");
    fs::remove_dir_all(&scratch).unwrap();
}

#[tokio::test]
async fn agents_are_seen_by_their_key_alone_and_survive_a_crash() {
    let stage = stage().await;
    let (one, other) = (stage.key(Role::Use).await, stage.key(Role::Use).await);
    let path = "/compat/ash/api/agents";
    let body = json!({"name": "a", "env": {"A": "one"}});
    stage.call_as(&one, "POST", path, body).await.expect(201);
    let seen = stage.call_as(&other, "GET", path, Value::Null).await.expect(200);
    assert_eq!(seen, json!({"agents": []}));
    let unknown = stage.call_as(&other, "GET", &format!("{path}/a"), Value::Null).await;
    assert_eq!(unknown.expect(404), json!({"error": "Agent not found", "statusCode": 404}));
    let mine = stage.call_as(&other, "POST", path, json!({"name": "a"})).await.expect(201);
    assert_eq!(mine["agent"]["version"], 1, "names are per key");
    let stage = stage.kill_and_start().await;
    let kept = stage.call_as(&one, "GET", &format!("{path}/a"), Value::Null).await.expect(200);
    assert_eq!(kept["agent"]["env"], json!({"A": "***"}));
}

#[tokio::test]
async fn two_deploys_at_once_get_two_versions() {
    let stage = stage().await;
    let deploys = (0..10).map(|_| call(&stage, "POST", "/api/agents", json!({"name": "a"})));
    let made = futures_util::future::join_all(deploys).await;
    let mut versions: Vec<_> = made
        .iter()
        .map(|answer| answer.expect(201)["agent"]["version"].as_u64().unwrap())
        .collect();
    versions.sort_unstable();
    assert_eq!(versions, (1..=10).collect::<Vec<_>>());
}

#[tokio::test]
async fn stored_agents_are_bounded() {
    let stage = stage().await;
    deploy(&stage, "a").await;
    let large = json!({"A": "x".repeat(200_000)});
    let wrong = json!({"A=": "x"});
    for env in [&large, &wrong] {
        let body = json!({"name": "b", "env": env});
        let refused = call(&stage, "POST", "/api/agents", body).await.expect(400);
        assert!(text(&refused["error"]).contains("env:"), "{refused}");
        let refused = call(&stage, "PATCH", "/api/agents/a", json!({"env": env})).await;
        assert!(text(&refused.expect(400)["error"]).contains("env:"));
    }
    let listed = get(&stage, "/api/agents").await.expect(200)["agents"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    // A hundred and sixty of these are too much, also for who replaces some.
    let env = json!({"A": "x".repeat(100_000)});
    let config = json!({"c": "x".repeat(150_000)});
    let mut refused = None;
    for n in 0..200 {
        let (name, path) = (format!("n{n}"), format!("/api/agents/n{n}"));
        let made = call(&stage, "POST", "/api/agents", json!({"name": name, "env": env})).await;
        let body = json!({"config": config});
        let status = if made.status == 201 {
            call(&stage, "PATCH", &path, body).await.status
        } else {
            made.status
        };
        if status != 200 {
            refused = Some((n, status));
            break;
        }
    }
    let (n, status) = refused.unwrap_or_else(|| panic!("nothing was refused"));
    assert!((100..200).contains(&n) && status == 400, "{n} {status}");
    call(&stage, "DELETE", "/api/agents/n0", Value::Null).await.expect(200);
    call(&stage, "POST", "/api/agents", json!({"name": "n0", "env": env})).await.expect(201);
}

#[tokio::test]
async fn agents_get_as_many_warm_sandboxes_as_they_ask_for_together() {
    let stage = stage().await;
    let name = model::TemplateName::new("ash").unwrap();
    let size = |stage: &Stage| stage.engine.pool(&name).unwrap().pool_size;
    let patch = async |path: &str, body: Value| call(&stage, "PATCH", path, body).await;
    deploy(&stage, "a").await;
    deploy(&stage, "b").await;
    assert_eq!(size(&stage), 1, "what the template says");
    patch("/api/agents/a/config", json!({"preWarmCount": 3})).await.expect(200);
    assert_eq!(size(&stage), 3);
    stage.until("three are warm", |stage| stage.engine.stats().warm == 3).await;
    patch("/api/agents/b", json!({"config": {"preWarmCount": 2}})).await.expect(200);
    assert_eq!(size(&stage), 5);
    for wrong in [json!(-1), json!(101), json!("2"), json!(0.5)] {
        patch("/api/agents/b/config", json!({"preWarmCount": wrong})).await.expect(400);
    }
    // A deploy keeps what the agent asks for.
    deploy(&stage, "a").await;
    assert_eq!(size(&stage), 5);
    call(&stage, "DELETE", "/api/agents/b", Value::Null).await.expect(200);
    assert_eq!(size(&stage), 3);
    // What the operator sets is the least.
    stage.engine.resize_pool(&name, Some(7), None).await.unwrap();
    patch("/api/agents/a/config", json!({"preWarmCount": 9})).await.expect(200);
    assert_eq!(size(&stage), 9);
    let stage = stage.kill_and_start().await;
    stage.until("the start sizes the pool again", |stage| size(stage) == 9).await;
    let none = json!({"preWarmCount": 0});
    call(&stage, "PATCH", "/api/agents/a/config", none).await.expect(200);
    assert_eq!(size(&stage), 1);
}
