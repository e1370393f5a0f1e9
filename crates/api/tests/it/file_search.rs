//! Finding, searching and watching files, and their metadata.

use serde_json::{Value, json};

use crate::raw_client::Connection;
use crate::stage::{Stage, request, text};

async fn put(stage: &Stage, id: &str, path: &str, body: &str) {
    let path = format!("/v1/sandboxes/{id}/files?path={path}");
    let sent = request(&stage.admin, "PUT", &path, "", body.as_bytes());
    stage.raw(&sent).await.expect(200);
}

async fn furnished(stage: &Stage) -> String {
    let (_, id) = stage.checkout().await;
    let directory = json!({"path": "/workspace/src/deep"});
    let path = format!("/v1/sandboxes/{id}/files/directory");
    assert_eq!(stage.call("POST", &path, directory).await.status, 204);
    put(stage, &id, "/workspace/src/a.rs", "fn main() {\n    let needle = 1;\n}\n").await;
    put(stage, &id, "/workspace/src/deep/b.rs", "NEEDLE\n").await;
    put(stage, &id, "/workspace/c.txt", "nothing\n").await;
    id
}

fn of(list: &Value, field: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|one| text(&one[field])).collect()
}

#[tokio::test]
async fn files_are_found_by_name_shown_as_a_tree_and_searched() {
    let stage = Stage::start().await;
    let id = furnished(&stage).await;
    let files = format!("/v1/sandboxes/{id}/files");
    let tree = stage.get(&format!("{files}/tree?path=/workspace")).await.expect(200);
    assert_eq!(of(&tree["entries"], "name"), ["c.txt", "src"]);
    let src = &tree["entries"][1]["entries"];
    assert_eq!(of(src, "name"), ["a.rs", "deep"]);
    assert_eq!(of(&src[1]["entries"], "name"), ["b.rs"]);
    let flat = stage.get(&format!("{files}/tree?path=/workspace&depth=1")).await.expect(200);
    assert_eq!(flat["entries"][1].get("entries"), None);
    let found =
        stage.get(&format!("{files}/find?path=/workspace&name=*.rs&kind=file")).await.expect(200);
    assert_eq!(of(&found["files"], "path"), ["src/a.rs", "src/deep/b.rs"]);
    let found = stage.get(&format!("{files}/find?path=/workspace&limit=1")).await.expect(200);
    assert_eq!((found["files"].as_array().unwrap().len(), &found["truncated"]), (1, &true.into()));
    let found = stage.get(&format!("{files}/find?path=/workspace&exclude=src")).await.expect(200);
    assert_eq!(of(&found["files"], "path"), ["c.txt"]);
    let search = format!("{files}/search?path=/workspace&text=needle");
    let hits = stage.get(&search).await.expect(200);
    let first = &hits["matches"][0];
    assert_eq!(
        (&first["path"], &first["line"], &first["column"]),
        (&"src/a.rs".into(), &2.into(), &9.into())
    );
    let hits = stage.get(&format!("{search}&ignore_case")).await.expect(200);
    assert_eq!(of(&hits["matches"], "path"), ["src/a.rs", "src/deep/b.rs"]);
    for (path, code, field) in [
        ("/tree?path=/workspace&depth=0", "bad_request", "depth"),
        ("/find?path=/workspace&kind=socket", "bad_request", "kind"),
        ("/find?path=/workspace&name=a/b", "bad_request", "name"),
        ("/find?path=/workspace&limit=10001", "bad_request", "limit"),
        ("/search?path=/workspace", "bad_request", "text"),
        ("/search?path=/workspace&text=", "invalid_argument", "text"),
        ("/search?path=/workspace&text=a%0Ab", "invalid_argument", "text"),
        ("/watch", "bad_request", "path"),
    ] {
        let problem = stage.get(&format!("{files}{path}")).await.problem(code);
        assert_eq!(problem["field"], field, "{path}: {problem}");
    }
    stage.get(&format!("{files}/find?path=/nosuch")).await.problem("path_not_found");
}

async fn watching(stage: &Stage, id: &str, accept: &str) -> Connection {
    let mut connection = stage.connect().await;
    let path = format!("/v1/sandboxes/{id}/files/watch?path=/workspace&recursive");
    let headers = format!("accept: {accept}\r\n");
    connection.send(request(&stage.admin, "GET", &path, &headers, b"")).await;
    assert_eq!(connection.head().await.status, 200);
    connection
}

#[tokio::test]
async fn watch_reports_changes_from_when_it_is_armed() {
    let stage = Stage::start().await;
    let id = furnished(&stage).await;
    let mut events = watching(&stage, &id, "text/event-stream").await;
    let (_, name, data) = events.event().await.unwrap();
    assert_eq!((name.as_str(), data), ("armed", json!({"type": "armed"})));
    put(&stage, &id, "/workspace/src/deep/new.txt", "x").await;
    let (_, name, data) = events.event().await.unwrap();
    assert_eq!((name.as_str(), &data["path"]), ("created", &"/workspace/src/deep/new.txt".into()));
    let mut lines = watching(&stage, &id, "application/x-ndjson").await;
    let armed = lines.chunk().await.unwrap();
    assert_eq!(armed, b"{\"type\":\"armed\"}\n");
}

#[tokio::test]
async fn permissions_and_links_are_changed_and_made() {
    let stage = Stage::start().await;
    let id = furnished(&stage).await;
    let files = format!("/v1/sandboxes/{id}/files");
    let path = format!("{files}?path=/workspace/c.txt");
    let changed = stage.call("PATCH", &path, json!({"mode": "0755"})).await.expect(200);
    assert_eq!(changed["mode"], "0755");
    for (body, field) in
        [(json!({}), "mode"), (json!({"mode": "9"}), "mode"), (json!({"owner": 0}), "owner")]
    {
        let answer = stage.call("PATCH", &path, body).await;
        assert_eq!(answer.json()["field"], field);
    }
    let link = json!({"path": "/workspace/link", "target": "../../etc/passwd"});
    let made = stage.call("POST", &format!("{files}/link"), link.clone()).await;
    assert_eq!(made.status, 204);
    let stat = stage.get(&format!("{files}/stat?path=/workspace/link")).await.expect(200);
    assert_eq!((&stat["kind"], &stat["target"]), (&"link".into(), &"../../etc/passwd".into()));
    stage.call("POST", &format!("{files}/link"), link).await.problem("path_exists");
}

fn form(parts: &[(&str, &str)]) -> Vec<u8> {
    let part = |(head, content): &(&str, &str)| {
        format!("--edge\r\ncontent-disposition: form-data; {head}\r\n\r\n{content}\r\n")
    };
    let body: String = parts.iter().map(part).chain(["--edge--\r\n".to_owned()]).collect();
    body.into_bytes()
}

#[tokio::test]
async fn several_files_come_in_one_form() {
    let stage = Stage::start().await;
    let id = furnished(&stage).await;
    let path = format!("/v1/sandboxes/{id}/files/multipart?path=/workspace/up&mode=0600");
    let kind = "content-type: multipart/form-data; boundary=edge\r\n";
    let large = "x".repeat(300_000);
    let body = form(&[
        ("name=\"note\"", "no file"),
        ("name=\"f\"; filename=\"a.txt\"", "first"),
        ("name=\"f\"; filename=\"dir/b.bin\"", &large),
    ]);
    let made = stage.raw(&request(&stage.admin, "POST", &path, kind, &body)).await.expect(201);
    assert_eq!(of(&made["files"], "path"), ["a.txt", "dir/b.bin"]);
    assert_eq!(
        (&made["files"][1]["size"], &made["files"][0]["mode"]),
        (&300_000.into(), &"0600".into())
    );
    let read = stage.get(&format!("/v1/sandboxes/{id}/files?path=/workspace/up/dir/b.bin")).await;
    assert_eq!(read.body.len(), 300_000);
    let out = form(&[("name=\"f\"; filename=\"../../etc/x\"", "evil")]);
    let refused = stage.raw(&request(&stage.admin, "POST", &path, kind, &out)).await;
    assert_eq!(refused.problem("invalid_argument")["field"], "filename");
    let refused = stage
        .raw(&request(&stage.admin, "POST", &path, "content-type: text/plain\r\n", b"x"))
        .await;
    refused.problem("unsupported_media_type");
    let cut = &form(&[("name=\"f\"; filename=\"c\"", "cut")])[..60];
    let refused = stage.raw(&request(&stage.admin, "POST", &path, kind, cut)).await;
    assert_eq!(refused.problem("bad_request")["field"], "body");
}
