//! Images through the API: in, seen, used by templates, out.

use std::io::Write as _;
use std::path::PathBuf;

use engine::Roots;
use images::Store;
use model::template::RootFs;
use model::{Role, Template};
use serde_json::{Value, json};
use tar::{Builder, Header};

use crate::raw_client::Answer;
use crate::stage::{Plan, Stage, request, template};

/// A stage with a store that is gone afterwards.
struct Scene {
    stage: Stage,
    store: Store,
    path: PathBuf,
}

impl Scene {
    async fn start(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shoal-api-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("roots/some")).unwrap();
        let store = Store::open(&path.join("images")).unwrap();
        let mut plan = Plan::default();
        plan.engine.roots =
            Roots { images: Some(store.clone()), directories: vec![path.join("roots")] };
        Self { stage: Stage::with(plan).await, store, path }
    }

    async fn import(&self, query: &str, body: &[u8]) -> Answer {
        let path = format!("/v1/images?{query}");
        let kind = "content-type: application/x-tar\r\n";
        self.stage.raw(&request(&self.stage.admin, "POST", &path, kind, body)).await
    }

    async fn put(&self, root: RootFs) -> Answer {
        let template = Template { root, ..template("t") };
        self.stage.call("PUT", "/v1/templates/t", serde_json::to_value(template).unwrap()).await
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn archive(contents: &[u8]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(contents.len() as u64);
    header.set_mode(0o4755);
    builder.append_data(&mut header, "bin/sh", contents).unwrap();
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn an_image_is_imported_seen_and_removed() {
    let scene = Scene::start("life").await;
    let stage = &scene.stage;
    assert_eq!(stage.get("/v1/images").await.expect(200), json!({ "images": [] }));
    let body = archive(&vec![1; 300_000]);
    let image = scene.import("name=a:1", &gzip(&body)).await.expect(201);
    assert_eq!((&image["names"], &image["bytes"]), (&json!(["a:1"]), &json!(300_000)));
    assert_eq!(image["layers"][0]["bits_dropped"], 1);
    let again = scene.import("name=b", &body).await.expect(201);
    assert_eq!(again["id"], image["id"], "whatever its compression");
    let listed = stage.get("/v1/images").await.expect(200);
    assert_eq!(listed["images"], json!([again]));
    let id = image["id"].as_str().unwrap();
    for reference in ["a:1", "a%3A1", id, &id[..12]] {
        let found = stage.get(&format!("/v1/images/{reference}")).await.expect(200);
        assert_eq!(found["id"], image["id"], "{reference}");
    }
    let metrics = stage.get("/metrics").await;
    let metrics = String::from_utf8(metrics.body).unwrap();
    for line in [
        "shoal_images 1",
        "shoal_image_bytes 300000",
        "shoal_image_imports_total{outcome=\"imported\"} 2",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let removed = stage.call("DELETE", "/v1/images/b", Value::Null).await.expect(200);
    assert_eq!((&removed["names"], &removed["bytes"]), (&json!(["b"]), &json!(0)));
    let removed = stage.call("DELETE", "/v1/images/a:1", Value::Null).await.expect(200);
    assert_eq!((&removed["layers"], &removed["bytes"]), (&json!(1), &json!(300_000)));
    stage.get("/v1/images/a:1").await.problem("image_unknown");
}

#[tokio::test]
async fn image_that_a_template_names_stays() {
    let scene = Scene::start("used").await;
    let stage = &scene.stage;
    scene.put(RootFs::Image("a".into())).await.problem("image_unknown");
    scene.import("name=a", &archive(b"1")).await.expect(201);
    scene.import("name=spare", &archive(b"1")).await.expect(201);
    scene.put(RootFs::Image("a".into())).await.expect(201);
    let refused = stage.call("DELETE", "/v1/images/a", Value::Null).await;
    let problem = refused.problem("image_in_use");
    assert!(problem["detail"].as_str().unwrap().contains("template \"t\" "), "{problem}");
    stage.call("DELETE", "/v1/images/a?force", Value::Null).await.problem("image_in_use");
    stage.call("DELETE", "/v1/images/spare", Value::Null).await.expect(200);
    let body = json!({ "template": "t" });
    stage.call("POST", "/v1/checkouts", body).await.expect(201);
    scene.put(RootFs::Directory("some".into())).await.expect(200);
    for wrong in ["other", "", "..", "/", "some/../../images"] {
        scene.put(RootFs::Directory(wrong.into())).await.problem("template_invalid");
    }
    stage.call("DELETE", "/v1/images/a", Value::Null).await.expect(200);
    assert_eq!(scene.store.list().unwrap().len(), 0);
}

#[tokio::test]
async fn image_that_a_template_needs_cannot_be_removed() {
    let scene = Scene::start("kept").await;
    let stage = &scene.stage;
    let first = scene.import("name=a", &archive(b"1")).await.expect(201);
    let id = first["id"].as_str().unwrap();
    scene.put(RootFs::Image(id.into())).await.expect(201);
    let in_use = images::ImageErrorCode::InUse;
    assert_eq!(scene.store.remove("a", false).unwrap_err().code, in_use, "by a command");
    scene.import("name=a", &archive(b"2")).await.expect(201);
    stage.get(&format!("/v1/images/{id}")).await.expect(200);
    assert_eq!(scene.store.collect_garbage().unwrap().images, []);
    stage.call("POST", "/v1/checkouts", json!({ "template": "t" })).await.expect(201);
    // One that is needed by its name is let go with the name.
    scene.put(RootFs::Image("a".into())).await.expect(200);
    let third = scene.import("name=a", &archive(b"3")).await.expect(201);
    assert_eq!(stage.get("/v1/images").await.expect(200)["images"], json!([third]));
    stage.call("DELETE", "/v1/templates/t?force", Value::Null).await;
    scene.store.remove("a", false).unwrap();
}

#[tokio::test]
async fn a_short_name_is_not_taken_for_an_id() {
    let scene = Scene::start("short").await;
    let image = scene.import("name=kept", &archive(b"1")).await.expect(201);
    let short = &image["id"].as_str().unwrap()[..1];
    scene.import(&format!("name={short}"), &archive(b"2")).await.expect(201);
    scene.put(RootFs::Image("kept".into())).await.expect(201);
    scene.stage.call("DELETE", &format!("/v1/images/{short}"), Value::Null).await.expect(200);
    assert_eq!(scene.stage.get("/v1/images").await.expect(200)["images"], json!([image]));
}

#[tokio::test]
async fn invalid_image_is_refused_and_leaves_nothing() {
    let scene = Scene::start("refused").await;
    let good = archive(b"x");
    for (query, body, code) in [
        ("name=a", &b"no archive"[..], "image_invalid"),
        ("name=a", b"", "image_invalid"),
        ("name=a", &good[..700], "image_invalid"),
        ("name=A", &good, "invalid_argument"),
        ("name=..%2Fa", &good, "invalid_argument"),
        ("", &good, "bad_request"),
        ("name=a&x=1", &good, "bad_request"),
    ] {
        scene.import(query, body).await.problem(code);
    }
    let mut cut = request(&scene.stage.admin, "POST", "/v1/images?name=a", "", &[7; 5000]);
    cut.truncate(cut.len() - 1000);
    let mut connection = scene.stage.connect().await;
    connection.send(&cut).await;
    drop(connection);
    for reference in ["nothing", "..", "A", &"x".repeat(200), "%2F"] {
        let answer = scene.stage.get(&format!("/v1/images/{reference}")).await;
        assert_eq!(answer.status, 404, "{reference}");
    }
    assert_eq!(scene.store.list().unwrap().len(), 0);
    let tmp = || std::fs::read_dir(scene.store.path().join("tmp")).unwrap().count();
    scene.stage.until("nothing is left", |_| tmp() == 0).await;
}

#[tokio::test]
async fn only_admins_change_images() {
    let scene = Scene::start("roles").await;
    scene.import("name=a", &archive(b"1")).await.expect(201);
    for role in [Role::Use, Role::Read] {
        let key = scene.stage.key(role).await;
        scene.stage.call_as(&key, "GET", "/v1/images", Value::Null).await.expect(200);
        scene.stage.call_as(&key, "GET", "/v1/images/a", Value::Null).await.expect(200);
        let deleted = scene.stage.call_as(&key, "DELETE", "/v1/images/a", Value::Null).await;
        deleted.problem("forbidden");
        let body = request(&key, "POST", "/v1/images?name=b", "", &archive(b"2"));
        scene.stage.raw(&body).await.problem("forbidden");
    }
}

#[tokio::test]
async fn images_without_a_store_are_unsupported() {
    let stage = Stage::start().await;
    stage.get("/v1/images").await.problem("unsupported");
    stage.get("/v1/images/a").await.problem("unsupported");
}
