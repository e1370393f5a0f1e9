//! Files of the host that a template shows, by paths: whole names and no others, as the engine sees
//! them where that is elsewhere, and nothing that lies outside of what the server allows, however
//! it is written.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use client::ClientError;
use model::Template;
use serde_json::{Value, json};
use wire::ExecRequest;

use super::stage::{Kind, POOL, Stage};
use crate::test_server::Scratch;

on_every_runtime!(mount_paths_match_whole_names, mount_of_a_forbidden_path_is_refused_by_name);

/// Directories, in each file its own path: `data` is allowed, and the engine is said to see it at
/// `seen`, but `data/hot` at `hot`.
struct Files(Scratch);

impl Files {
    fn make() -> Self {
        let files = Self(Scratch::new());
        for path in [
            "data/file",
            "data/hot/file",
            "data/hotter/file",
            "data/late/file",
            "database/file",
            "seen/file",
            "seen/hot/file",
            "seen/hotter/file",
            "seen/late/file",
            "hot/file",
            "elsewhere/file",
            "elsewhere2/file",
        ] {
            let at = files.path(path);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(at, path).unwrap();
        }
        for late in ["data/late", "seen/late"] {
            // What programs write to belongs to the user that they are.
            std::os::unix::fs::chown(files.path(late), Some(1000), Some(1000)).unwrap();
        }
        symlink("/etc", files.path("data/out")).unwrap();
        files
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.0.join(path)
    }

    fn text(&self, path: &str) -> String {
        self.path(path).to_str().unwrap().to_owned()
    }

    /// The server's configuration: everything that is not named is seen where it is.
    fn config(&self, kind: Kind) -> String {
        let map = match kind {
            Kind::Native => String::new(),
            Kind::Docker => format!(
                "host_path_map = [\"/=/\", \"{data}/hot={hot}\", \"{data}={seen}\"]\n",
                data = self.text("data"),
                seen = self.text("seen"),
                hot = self.text("hot"),
            ),
        };
        let (roots, docker_roots) = (self.text("data"), self.text("elsewhere"));
        format!("{map}[mounts]\nroots = [\"{roots}\"]\ndocker_roots = [\"{docker_roots}\"]\n")
    }
}

async fn put(stage: &Stage, mounts: Value) -> Result<(), ClientError> {
    let pool = json!({ "pool_size": 1, "max_overflow": 0 });
    let runtime = stage.kind.word();
    let wish = json!({ "name": POOL, "runtime": runtime, "pool": pool, "mounts": mounts });
    let template: Template = serde_json::from_value(wish).unwrap();
    stage.client().put_template(&template).await.map(drop)
}

fn mount_paths_match_whole_names(kind: Kind) {
    let files = Files::make();
    let Some(stage) = Stage::start_with(kind, "shown", &files.config(kind)) else { return };
    stage.act(async {
        let mut mounts = vec![
            json!({ "host_path": files.text("data/file"), "path": "/mnt/file" }),
            json!({ "host_path": files.text("data/file"), "path": "/mnt/again" }),
            json!({ "host_path": files.text("data/hot"), "path": "/mnt/hot" }),
            json!({ "host_path": files.text("data/hotter"), "path": "/mnt/hotter" }),
            json!({ "host_path": files.text("data/late"), "path": "/mnt/late", "read_only": false }),
        ];
        let expected = match kind {
            Kind::Native => "data/file data/file data/hot/file data/hotter/file",
            Kind::Docker => {
                mounts.push(json!({
                    "host_path": files.text("data/hot/file"),
                    "docker_host_path": files.text("elsewhere/file"),
                    "path": "/mnt/overruled",
                }));
                "seen/file seen/file hot/file seen/hotter/file elsewhere/file"
            }
        };
        put(&stage, json!(mounts)).await.unwrap();
        stage.full().await;
        let lease = stage.checkout().await;
        let line = "cd /mnt; for f in file again hot/file hotter/file overruled; do \
                    test -e $f && echo $(cat $f); done | xargs echo";
        let seen = lease.exec(ExecRequest::shell(line)).await.unwrap();
        assert_eq!(seen.stdout, Some(format!("{expected}\n")), "{seen:?}");
        let line = "for f in /mnt/file /mnt/hot/new; do echo x > $f && echo written; done; \
                    echo mine > /mnt/late/mine && echo shared";
        let wrote = lease.exec(ExecRequest::shell(line)).await.unwrap();
        assert_eq!(wrote.stdout.as_deref(), Some("shared\n"), "{wrote:?}");
        let (here, there) = match kind {
            Kind::Native => ("data/late/mine", "seen/late/mine"),
            Kind::Docker => ("seen/late/mine", "data/late/mine"),
        };
        assert_eq!(fs::read_to_string(files.path(here)).unwrap(), "mine\n");
        assert!(!Path::new(&files.path(there)).exists());
        lease.give_back().await.unwrap();
        stage.full().await;
    });
    stage.end();
}

fn mount_of_a_forbidden_path_is_refused_by_name(kind: Kind) {
    let files = Files::make();
    let Some(stage) = Stage::start_with(kind, "not-shown", &files.config(kind)) else { return };
    let one = |host: &str, path: &str| json!([{ "host_path": host, "path": path }]);
    let good = json!({ "host_path": files.text("data/file"), "path": "/mnt/a" });
    let elsewhere = |path: &str| json!([{ "host_path": files.text("data/file"), "path": "/mnt/a", "docker_host_path": path }]);
    let outside = json!({ "host_path": "/etc/passwd", "path": "/mnt/b" });
    let cases = [
        ("boundary", one(&files.text("database/file"), "/mnt/a"), "mounts[0].host_path"),
        ("above", one(&files.text(""), "/mnt/a"), "mounts"),
        ("dots", one(&files.text("data/../database/file"), "/mnt/a"), "mounts"),
        ("dots within", one(&files.text("data/hot/../file"), "/mnt/a"), "mounts"),
        ("last slash", one(&files.text("data/hot/"), "/mnt/a"), "mounts"),
        ("two slashes", one(&files.text("data//hot"), "/mnt/a"), "mounts"),
        ("relative", one("data/file", "/mnt/a"), "mounts"),
        ("outside", one("/etc/passwd", "/mnt/a"), "mounts[0].host_path"),
        ("by a link", one(&files.text("data/out/passwd"), "/mnt/a"), "mounts[0].host_path"),
        ("missing", one(&files.text("data/none"), "/mnt/a"), "mounts[0].host_path"),
        ("the second", json!([good, outside]), "mounts[1].host_path"),
        ("twice", json!([good, good]), "mounts"),
        ("ours", one(&files.text("data/file"), "/workspace/a"), "mounts"),
        ("the kernel's", one(&files.text("data/file"), "/proc/a"), "mounts"),
        ("at last slash", one(&files.text("data/file"), "/mnt/a/"), "mounts"),
        ("at dots", one(&files.text("data/file"), "/mnt/../proc/a"), "mounts"),
        ("elsewhere", elsewhere("/etc/passwd"), "mounts[0].docker_host_path"),
        (
            "elsewhere, boundary",
            elsewhere(&files.text("elsewhere2/file")),
            "mounts[0].docker_host_path",
        ),
        ("elsewhere, dots", elsewhere(&files.text("elsewhere/../data/file")), "mounts"),
    ];
    stage.act(async {
        for (what, mounts, field) in cases {
            let refused = put(&stage, mounts).await.expect_err(what);
            let problem = refused.problem().unwrap_or_else(|| panic!("{what}: {refused:?}"));
            assert_eq!(problem.status, 422, "{what}: {problem:?}");
            let named = problem.field.as_deref().is_some_and(|name| name.starts_with(field));
            assert!(named || problem.detail.contains(field), "{what}: {problem:?}");
        }
    });
    stage.end();
}
