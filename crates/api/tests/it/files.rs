//! Files, one at a time.

use serde_json::{Value, json};

use crate::raw_client::Answer;
use crate::stage::{Stage, request, text};

struct Files<'a> {
    stage: &'a Stage,
    id: String,
}

impl Files<'_> {
    async fn send(&self, method: &str, rest: &str, headers: &str, body: &[u8]) -> Answer {
        let path = format!("/v1/sandboxes/{}/{rest}", self.id);
        self.stage.raw(&request(&self.stage.admin, method, &path, headers, body)).await
    }

    async fn put(&self, path: &str, body: &[u8]) -> Value {
        self.send("PUT", &format!("files?path={path}"), "", body).await.expect(200)
    }

    async fn get(&self, path: &str, headers: &str) -> Answer {
        self.send("GET", &format!("files?path={path}"), headers, b"").await
    }

    async fn post(&self, rest: &str, body: Value) -> Answer {
        self.send("POST", rest, "", body.to_string().as_bytes()).await
    }
}

#[tokio::test]
async fn bytes_come_back_as_they_were_written() {
    let stage = Stage::start().await;
    let files = Files { stage: &stage, id: stage.checkout().await.1 };
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    for (path, bytes) in
        [("/workspace/a.txt", &b"hello"[..]), ("/workspace/d/e/b", &large), ("/workspace/0", b"")]
    {
        let entry = files.put(path, bytes).await;
        assert_eq!((&entry["size"], &entry["kind"]), (&bytes.len().into(), &"file".into()));
        let read = files.get(path, "").await;
        assert_eq!(read.status, 200);
        assert_eq!(read.headers["content-type"], "application/octet-stream");
        assert_eq!(read.headers["x-content-type-options"], "nosniff");
        assert!(read.body == bytes, "{path}");
    }
    let mut connection = stage.connect().await;
    let path = format!("/v1/sandboxes/{}/files?path=/workspace/a.txt", files.id);
    connection.send(request(&stage.admin, "HEAD", &path, "", b"")).await;
    let head = connection.head().await;
    assert_eq!((head.status, head.headers["content-length"].as_str()), (200, "5"));
    let mode = files.send("PUT", "files?path=/workspace/x&mode=0755", "", b"#!").await;
    assert_eq!(mode.expect(200)["mode"], "0755");
    files.get("/workspace/nosuch", "").await.problem("path_not_found");
    files.get("/workspace/d", "").await.problem("path_wrong_kind");
}

#[tokio::test]
async fn parts_of_a_file_are_read_by_range() {
    let stage = Stage::start().await;
    let files = Files { stage: &stage, id: stage.checkout().await.1 };
    files.put("/workspace/a", b"0123456789").await;
    for (range, status, body, content_range) in [
        ("bytes=0-3", 206, "0123", "bytes 0-3/10"),
        ("bytes=8-", 206, "89", "bytes 8-9/10"),
        ("bytes=8-100", 206, "89", "bytes 8-9/10"),
        ("bytes=-3", 206, "789", "bytes 7-9/10"),
        ("bytes=-100", 206, "0123456789", "bytes 0-9/10"),
        ("bytes=0-1,4-5", 200, "0123456789", ""),
        ("pages=1", 200, "0123456789", ""),
    ] {
        let read = files.get("/workspace/a", &format!("range: {range}\r\n")).await;
        assert_eq!(read.status, status, "{range}");
        assert_eq!(String::from_utf8_lossy(&read.body), body, "{range}");
        let given = read.headers.get("content-range").map_or("", String::as_str);
        assert_eq!(given, content_range, "{range}");
    }
    for range in ["bytes=10-", "bytes=-0", "bytes=100-200"] {
        let read = files.get("/workspace/a", &format!("range: {range}\r\n")).await;
        read.problem("range_not_satisfiable");
    }
}

#[tokio::test]
async fn directories_are_listed_in_pages() {
    let stage = Stage::start().await;
    let files = Files { stage: &stage, id: stage.checkout().await.1 };
    for n in 0..5 {
        files.put(&format!("/workspace/d/{n}"), b"x").await;
    }
    let mut names = Vec::new();
    let mut after = String::new();
    loop {
        let path = format!("files/list?path=/workspace/d&limit=2{after}");
        let page = files.send("GET", &path, "", b"").await.expect(200);
        names.extend(page["entries"].as_array().unwrap().iter().map(|entry| text(&entry["name"])));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={}", next.replace('=', "%3D"));
    }
    assert_eq!(names, ["0", "1", "2", "3", "4"]);
    let all = files.send("GET", "files/list?path=/workspace/d", "", b"").await.expect(200);
    assert_eq!(all["entries"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn files_are_described_moved_and_removed() {
    let stage = Stage::start().await;
    let files = Files { stage: &stage, id: stage.checkout().await.1 };
    files.put("/workspace/a", b"1").await;
    files.put("/workspace/b", b"2").await;
    let stat = files.send("GET", "files/stat?path=/workspace/a", "", b"").await.expect(200);
    assert_eq!((&stat["name"], &stat["size"]), (&"a".into(), &1.into()));
    assert!(text(&stat["modified_at"]).ends_with('Z'));
    let to_b = json!({"from": "/workspace/a", "to": "/workspace/b"});
    files.post("files/move", to_b.clone()).await.problem("path_exists");
    let mut over = to_b;
    over["overwrite"] = true.into();
    files.post("files/move", over).await.expect(204);
    assert_eq!(files.get("/workspace/b", "").await.body, b"1");
    files.post("files/directory", json!({"path": "/workspace/x/y"})).await.expect(204);
    files.send("DELETE", "files?path=/workspace/b", "", b"").await.expect(204);
    files.get("/workspace/b", "").await.problem("path_not_found");
    files.send("DELETE", "files?path=/workspace/x&recursive", "", b"").await.expect(204);
    let gone = files.send("GET", "files/stat?path=/workspace/x", "", b"").await;
    gone.problem("path_not_found");
}

#[tokio::test]
async fn a_file_that_does_not_arrive_whole_leaves_nothing() {
    let stage = Stage::start().await;
    let files = Files { stage: &stage, id: stage.checkout().await.1 };
    let path = format!("/v1/sandboxes/{}/files?path=/workspace/half", files.id);
    let mut connection = stage.connect().await;
    let mut bytes = request(&stage.admin, "PUT", &path, "", &[b'x'; 1000]);
    bytes.truncate(bytes.len() - 500);
    connection.send(bytes).await;
    stage.until("begun", |stage| stage.runtime.alive().streams == 1).await;
    drop(connection);
    stage.until("given up", |stage| stage.runtime.alive().streams == 0).await;
    files.get("/workspace/half", "").await.problem("path_not_found");
}
