//! Whole directories, up and down.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};

use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use crate::raw_client::Answer;
use crate::stage::{Plan, Stage, request};

async fn upload(stage: &Stage, id: &str, headers: &str, body: &[u8]) -> Answer {
    let path = format!("/v1/sandboxes/{id}/archive?path=/workspace/up");
    stage.raw(&request(&stage.admin, "PUT", &path, headers, body)).await
}

async fn download(stage: &Stage, id: &str, headers: &str) -> Answer {
    let path = format!("/v1/sandboxes/{id}/archive?path=/workspace/up");
    stage.raw(&request(&stage.admin, "GET", &path, headers, b"")).await
}

fn long() -> String {
    format!("{}file.txt", "a-rather-long-directory/".repeat(12))
}

/// An entry without the checks that a writer of archives makes.
fn raw(kind: u8, name: &str, target: &str, body: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::new(kind));
    header.set_mode(0o644);
    header.set_size(body.len() as u64);
    let old = header.as_old_mut();
    old.name[..name.len()].copy_from_slice(name.as_bytes());
    old.linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn archive() -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let header = |size: usize, mode: u32| {
        let mut header = Header::new_gnu();
        header.set_size(size as u64);
        header.set_mode(mode);
        header
    };
    let big = vec![7; 100_000];
    builder.append_data(&mut header(5, 0o640), "./a.txt", &b"hello"[..]).unwrap();
    builder.append_data(&mut header(big.len(), 0o755), "d/big", big.as_slice()).unwrap();
    builder.append_data(&mut header(4, 0o644), long(), &b"deep"[..]).unwrap();
    builder.append_data(&mut header(0, 0o644), "empty", &b""[..]).unwrap();
    let mut link = header(0, 0o777);
    link.set_entry_type(EntryType::Symlink);
    builder.append_link(&mut link, "link", "d/big").unwrap();
    let mut hard = header(0, 0o640);
    hard.set_entry_type(EntryType::Link);
    builder.append_link(&mut hard, "copy", "a.txt").unwrap();
    builder.into_inner().unwrap()
}

fn contents(bytes: &[u8]) -> BTreeMap<String, (EntryType, Vec<u8>, u32)> {
    let mut found = BTreeMap::new();
    for entry in tar::Archive::new(bytes).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let kind = entry.header().entry_type();
        let mode = entry.header().mode().unwrap();
        let mut body =
            entry.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default();
        entry.read_to_end(&mut body).unwrap();
        found.insert(path, (kind, body, mode));
    }
    found
}

#[tokio::test]
async fn an_archive_goes_in_and_comes_out_again() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let tar = "content-type: application/x-tar\r\n";
    let done = upload(&stage, &id, tar, &archive()).await.expect(200);
    assert_eq!(done["files"], 5, "{done}");
    assert_eq!(done["links"], 1, "{done}");
    let back = download(&stage, &id, "").await;
    assert_eq!((back.status, back.headers["content-type"].as_str()), (200, "application/x-tar"));
    let found = contents(&back.body);
    assert_eq!(found["a.txt"], (EntryType::Regular, b"hello".to_vec(), 0o640));
    assert_eq!(found["copy"].1, b"hello");
    assert_eq!(found["d/big"], (EntryType::Regular, vec![7; 100_000], 0o755));
    assert_eq!(found[&long()].1, b"deep");
    assert_eq!(found["empty"].1, b"");
    assert_eq!((found["link"].0, found["link"].1.as_slice()), (EntryType::Symlink, &b"d/big"[..]));
    assert_eq!(found["d/"].0, EntryType::Directory);
    // Once more, over what is there.
    upload(&stage, &id, tar, &archive()).await.expect(200);
}

#[tokio::test]
async fn archives_may_be_compressed_both_ways() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&archive()).unwrap();
    let gzip = gzip.finish().unwrap();
    upload(&stage, &id, "content-encoding: gzip\r\n", &gzip).await.expect(200);
    upload(&stage, &id, "content-type: application/gzip\r\n", &gzip).await.expect(200);
    let back = download(&stage, &id, "accept: application/gzip\r\n").await;
    assert_eq!(back.headers["content-type"], "application/gzip");
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(back.body.as_slice()).read_to_end(&mut plain).unwrap();
    assert_eq!(contents(&plain)["d/big"].1.len(), 100_000);
    let cut = &gzip[..gzip.len() / 2];
    let cut = upload(&stage, &id, "content-encoding: gzip\r\n", cut).await;
    cut.problem("invalid_argument");
    let zip = upload(&stage, &id, "content-type: application/zip\r\n", b"PK").await;
    zip.problem("unsupported_media_type");
}

#[tokio::test]
async fn archive_entries_that_leave_the_directory_are_refused_by_name() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    for (bytes, name) in [
        (raw(b'0', "/etc/passwd", "", b"x"), "/etc/passwd"),
        (raw(b'0', "a/../../b", "", b"x"), "a/../../b"),
        (raw(b'5', "..", "", b""), ".."),
        (raw(b'3', "device", "", b""), "device"),
        (raw(b'6', "pipe", "", b""), "pipe"),
        (raw(b'1', "hard", "../../etc/passwd", b""), "hard"),
        (raw(b'1', "hard", "/etc/passwd", b""), "hard"),
        (raw(b'0', "ok", "", b"x")[..900].to_vec(), "ok"),
    ] {
        let problem = upload(&stage, &id, "", &bytes).await.problem("invalid_argument");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(name), "{problem}");
    }
    for garbage in [&b"not an archive"[..], &[1; 512], &[0xff; 2048]] {
        upload(&stage, &id, "", garbage).await.problem("invalid_argument");
    }
    upload(&stage, &id, "", b"").await.expect(200);
    upload(&stage, &id, "", &[0; 1024]).await.expect(200);
    let listed = stage.get(&format!("/v1/sandboxes/{id}/files/list?path=/workspace")).await;
    let names: Vec<_> = listed.expect(200)["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["name"].clone())
        .collect();
    assert_eq!(names, [Value::from("up")]);
}

#[tokio::test]
async fn archives_have_bounds() {
    let mut plan = Plan::default();
    plan.settings.web.archive_entries_max = 3;
    plan.settings.web.archive_bytes_max = 1000;
    let stage = Stage::with(plan).await;
    let (_, id) = stage.checkout().await;
    let many: Vec<u8> = (0..4).flat_map(|n| raw(b'0', &n.to_string(), "", b"")).collect();
    upload(&stage, &id, "", &many).await.problem("too_large");
    let large = raw(b'0', "large", "", &[0; 1001]);
    upload(&stage, &id, "", &large).await.problem("too_large");
    // A header that promises more than comes.
    let mut lying = raw(b'0', "lying", "", b"");
    let mut header = Header::from_byte_slice(&lying[..512]).clone();
    header.set_size(u64::MAX / 2);
    header.set_cksum();
    lying[..512].copy_from_slice(header.as_bytes());
    upload(&stage, &id, "", &lying).await.problem("too_large");
}

#[tokio::test]
async fn only_a_directory_is_an_archive() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let get =
        async |path: &str| stage.get(&format!("/v1/sandboxes/{id}/archive?path={path}")).await;
    get("/workspace/nosuch").await.problem("path_not_found");
    let exec = format!("/v1/sandboxes/{id}/exec");
    let body = json!({"command": "echo x > /workspace/file"});
    stage.call("POST", &exec, body).await.expect(200);
    get("/workspace/file").await.problem("path_wrong_kind");
    let whole = get("/workspace").await;
    assert_eq!(contents(&whole.body)["file"].1, b"x\n");
}
