//! Files by every path that clients send, forms, trees and large files in parts.

use model::Role;
use serde_json::{Value, json};

use super::Sandbox;
use crate::stage::text;

#[tokio::test]
async fn every_form_of_a_path_leads_to_its_file() {
    let sandbox = Sandbox::new().await;
    for (at, content) in [("/workspace/a/b", "relative"), ("/a/b", "absolute")] {
        let path = format!("/filesystem/{at}");
        sandbox.call("PUT", &path, json!({"content": content})).await.expect(200);
    }
    for (path, content) in [
        ("/filesystem/a/b", "relative"),
        ("/filesystem//a/b", "absolute"),
        ("/filesystem/%2Fa%2Fb", "absolute"),
        ("/filesystem%2Fa/b", "absolute"),
        ("/filesystem/a%2Fb", "absolute"),
        ("/filesystem/a%2fb", "relative"),
        ("/filesystem/~/a/b", "relative"),
        ("/filesystem//a/../a/./b", "absolute"),
    ] {
        let read = sandbox.get(path).await.expect(200);
        assert_eq!(read["content"], content, "{path}");
    }
    let listed = sandbox.get("/filesystem/").await.expect(200);
    assert_eq!(listed["path"], "/workspace");
    assert_eq!(listed["subdirectories"], json!([{"path": "/workspace/a", "name": "a"}]));
    let listed = sandbox.get("/filesystem/a").await.expect(200);
    assert_eq!(listed["files"][0]["path"], "a/b", "relative stays relative");
    let missing = sandbox.get("/filesystem/nosuch").await;
    assert!(Sandbox::refused(&missing, 404).contains("nosuch"));
}

/// The ninth of what Blaxel was seen to do wrong.
#[tokio::test]
async fn bug_09_a_file_whose_name_begins_like_a_route_is_a_file() {
    let sandbox = Sandbox::new().await;
    for name in ["treehouse.txt", "tree"] {
        let path = format!("/filesystem/{name}");
        sandbox.call("PUT", &path, json!({"content": name})).await.expect(200);
        assert_eq!(sandbox.get(&path).await.expect(200)["content"], name);
    }
    let tree = sandbox.get("/filesystem/tree/workspace").await.expect(200);
    assert_eq!(tree["files"].as_array().unwrap().len(), 2, "{tree}");
    let no_directory = sandbox.get("/filesystem/tree/workspace/tree").await;
    Sandbox::refused(&no_directory, 400);
}

/// The last of what Blaxel was seen to do wrong, as far as it is about files.
#[tokio::test]
async fn bug_11_a_file_that_is_missing_is_not_found_by_head_either() {
    let sandbox = Sandbox::new().await;
    sandbox.call("PUT", "/filesystem/a", json!({"content": "12345"})).await.expect(200);
    let ask = async |path: &str| {
        let mut connection = sandbox.stage.connect().await;
        let path = format!("/compat/blaxel/box{path}");
        let bytes = crate::stage::request(&sandbox.stage.admin, "HEAD", &path, "", b"");
        connection.send(bytes).await;
        connection.head().await
    };
    let there = ask("/filesystem/a").await;
    assert_eq!((there.status, there.headers["x-file-type"].as_str()), (200, "file"));
    assert_eq!(there.headers["content-length"], "5");
    assert_eq!(ask("/filesystem/").await.headers["x-file-type"], "directory");
    let missing = ask("/filesystem/nosuch").await;
    assert_eq!(missing.status, 404);
    assert!(!missing.headers.contains_key("x-file-type"));
}

#[tokio::test]
async fn files_are_read_as_json_or_as_bytes() {
    let sandbox = Sandbox::new().await;
    let put = sandbox.call("PUT", "/filesystem/a.txt", json!({"content": "0123456789"})).await;
    let done = json!({"path": "a.txt", "message": "File created/updated successfully"});
    assert_eq!(put.expect(200), done);
    let json = sandbox.get("/filesystem/a.txt").await.expect(200);
    assert_eq!((&json["size"], &json["permissions"]), (&json!(10), &json!("644")));
    for (headers, path) in [
        ("accept: application/octet-stream\r\n", "/filesystem/a.txt"),
        ("accept: text/plain\r\n", "/filesystem/a.txt"),
        ("", "/filesystem/a.txt?download=true"),
    ] {
        let read = sandbox.send("GET", path, headers, b"").await;
        assert_eq!((read.status, &read.body[..]), (200, &b"0123456789"[..]), "{headers}{path}");
        assert_eq!(read.headers["content-type"], "text/plain");
        assert!(read.headers["content-disposition"].contains("filename=\"a.txt\""));
    }
    let part = "accept: application/octet-stream\r\nrange: bytes=2-4\r\n";
    let read = sandbox.send("GET", "/filesystem/a.txt", part, b"").await;
    assert_eq!((read.status, &read.body[..]), (206, &b"234"[..]));
    assert_eq!(read.headers["content-range"], "bytes 2-4/10");
}

#[tokio::test]
async fn directories_are_made_and_removed() {
    let sandbox = Sandbox::new().await;
    let make = json!({"isDirectory": true, "permissions": "0700"});
    let made = sandbox.call("PUT", "/filesystem/d/e", make).await.expect(200);
    assert_eq!(made["message"], "Directory created successfully");
    let bad = json!({"isDirectory": true, "permissions": "rwx"});
    Sandbox::refused(&sandbox.call("PUT", "/filesystem/x", bad).await, 400);
    Sandbox::refused(&sandbox.call("DELETE", "/filesystem/d", Value::Null).await, 422);
    let gone = sandbox.call("DELETE", "/filesystem/d?recursive=true", Value::Null).await;
    assert_eq!(gone.expect(200)["message"], "Directory deleted successfully");
    Sandbox::refused(&sandbox.call("DELETE", "/filesystem/d", Value::Null).await, 404);
    let tree = json!({"files": {"a.txt": "a", "sub/b.txt": "b", "../up.txt": "c"}});
    let made = sandbox.call("PUT", "/filesystem/tree/workspace/t", tree).await.expect(200);
    let names: Vec<_> =
        made["files"].as_array().unwrap().iter().map(|file| &file["name"]).collect();
    assert_eq!(names, ["a.txt", "up.txt"], "nothing leads above it");
    assert_eq!(made["subdirectories"][0]["name"], "sub");
}

fn form(parts: &[(&str, Option<&str>, &[u8])]) -> (String, Vec<u8>) {
    let mut body = Vec::new();
    for (name, file, bytes) in parts {
        let file = file.map_or_else(String::new, |file| format!("; filename=\"{file}\""));
        body.extend_from_slice(b"--xYx\r\n");
        let head = format!("Content-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--xYx--\r\n");
    ("content-type: multipart/form-data; boundary=xYx\r\n".to_owned(), body)
}

#[tokio::test]
async fn forms_carry_files_and_their_permissions_before_or_after_them() {
    let sandbox = Sandbox::new().await;
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let (file, mode) = (("file", Some("x.bin"), &bytes[..]), ("permissions", None, &b"0600"[..]));
    for (name, parts) in [("a", vec![mode, file]), ("b", vec![file, mode])] {
        let (headers, body) = form(&parts);
        let put = sandbox.send("PUT", &format!("/filesystem/{name}"), &headers, &body).await;
        assert_eq!(put.expect(200)["message"], "Binary file uploaded successfully");
        let path = format!("/filesystem/{name}?download=true");
        assert!(sandbox.get(&path).await.body == bytes);
        let about = sandbox.get("/filesystem/").await.expect(200);
        let files = about["files"].as_array().unwrap();
        let found = files.iter().find(|file| file["name"] == name).unwrap();
        assert_eq!(found["permissions"], "600");
    }
    let (headers, body) = form(&[("other", None, b"x")]);
    let missing = sandbox.send("PUT", "/filesystem/c", &headers, &body).await;
    assert_eq!(Sandbox::refused(&missing, 400), "missing 'file' field in multipart form");
}

#[tokio::test]
async fn a_large_file_comes_in_parts_in_any_order() {
    let sandbox = Sandbox::new().await;
    let begun =
        sandbox.send("POST", "/filesystem-multipart/initiate//workspace/big", "", b"").await;
    let begun = begun.expect(200);
    assert_eq!(begun["path"], "/workspace/big");
    let id = begun["uploadId"].as_str().unwrap();
    let part = async |number: &str, bytes: &[u8]| {
        let (headers, body) = form(&[("file", Some("part"), bytes)]);
        let path = format!("/filesystem-multipart/{id}/part?partNumber={number}");
        sandbox.send("PUT", &path, &headers, &body).await
    };
    let two = part("2", b"world").await.expect(200);
    let one = part("1", b"hello ").await.expect(200);
    assert_eq!((&one["partNumber"], &one["size"]), (&json!(1), &json!(6)));
    for bad in ["0", "10001", "x"] {
        Sandbox::refused(&part(bad, b"").await, 400);
    }
    let (headers, body) = form(&[("file", Some("part"), b"x")]);
    let unknown = "/filesystem-multipart/nosuch/part?partNumber=1";
    let unknown = sandbox.send("PUT", unknown, &headers, &body).await;
    assert_eq!(Sandbox::refused(&unknown, 404), "upload nosuch not found");
    let seen = sandbox.get("/filesystem/").await.expect(200);
    assert_eq!(seen["subdirectories"], json!([]), "parts are not among the files");
    let parts = sandbox.get(&format!("/filesystem-multipart/{id}/parts")).await.expect(200);
    assert_eq!(parts["parts"].as_array().unwrap().len(), 2);
    let uploads = sandbox.get("/filesystem-multipart").await.expect(200);
    assert_eq!(uploads["uploads"][0]["uploadId"], id);
    let listed = sandbox.stage.get("/v1/sessions").await.expect(200);
    let by_id = format!("/compat/blaxel/{}", text(&listed["sessions"][0]["sandbox_id"]));
    let paths = [
        format!("{by_id}/filesystem-multipart"),
        format!("{by_id}/filesystem-multipart/{id}/parts"),
    ];
    let stranger = sandbox.stage.key(Role::Use).await;
    for path in &paths {
        sandbox.stage.get(path).await.expect(200);
        let refused = sandbox.stage.call_as(&stranger, "GET", path, Value::Null).await;
        assert_eq!(refused.status, 404, "{path}: what is another's does not exist");
    }
    let complete = format!("/filesystem-multipart/{id}/complete");
    Sandbox::refused(&sandbox.call("POST", &complete, json!({"parts": []})).await, 400);
    let wrong = json!({"parts": [{"partNumber": 1, "etag": "no"}]});
    Sandbox::refused(&sandbox.call("POST", &complete, wrong).await, 400);
    let all = json!({"parts": [two, one]});
    let done = sandbox.call("POST", &complete, all.clone()).await.expect(200);
    assert_eq!(done["message"], "Multipart upload completed successfully");
    let read = sandbox.get("/filesystem/big").await.expect(200);
    assert_eq!(read["content"], "hello world");
    Sandbox::refused(&sandbox.call("POST", &complete, all).await, 404);
    let left = sandbox.get("/filesystem/").await.expect(200);
    assert_eq!(left["subdirectories"], json!([]), "nothing of it is left");
    let begun = sandbox.send("POST", "/filesystem-multipart/initiate/b", "", b"").await.expect(200);
    let abort = format!("/filesystem-multipart/{}/abort", begun["uploadId"].as_str().unwrap());
    sandbox.call("DELETE", &abort, Value::Null).await.expect(200);
    Sandbox::refused(&sandbox.call("DELETE", &abort, Value::Null).await, 404);
}
