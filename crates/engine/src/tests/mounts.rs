//! What of the host templates may mount, when they are put and when they are launched.

use std::os::unix::fs::symlink;
use std::time::Duration;

use model::template::RuntimeKind;
use model::{ErrorCode, Mount, Template};
use runtime::Runtime as _;

use super::node::{ADMIN, Node, Place, config, name, template};
use crate::{EngineConfig, Mounts};

/// A directory with something to mount, and something that must not be mounted.
fn place() -> Place {
    let place = Place::new();
    for name in ["allowed/data/deep", "allowed-not", "secret"] {
        std::fs::create_dir_all(place.0.join(name)).unwrap();
    }
    std::fs::write(place.0.join("allowed/file"), "").unwrap();
    symlink("allowed", place.0.join("root")).unwrap();
    symlink("data", place.0.join("allowed/within")).unwrap();
    symlink("../secret", place.0.join("allowed/out")).unwrap();
    place
}

fn allowing(place: &Place) -> EngineConfig {
    let mut config = config();
    let roots = vec![place.0.join("root"), place.0.join("not-there")];
    config.mounts = Mounts { roots, docker_roots: vec!["/far/data".into()] };
    config
}

fn showing(place: &Place, runtime: RuntimeKind, path: &str, elsewhere: Option<&str>) -> Template {
    let mut template = template("shows");
    template.runtime = runtime;
    template.pool.pool_size = 1;
    template.mounts = vec![Mount {
        host_path: place.0.join(path).to_string_lossy().into_owned(),
        path: "/data".to_owned(),
        read_only: true,
        docker_host_path: elsewhere.map(str::to_owned),
    }];
    template
}

#[tokio::test(start_paused = true)]
async fn mount_is_accepted_only_beneath_a_root() {
    let place = place();
    let node = Node::start(allowing(&place)).await;
    let fake = RuntimeKind::Fake;
    let docker = RuntimeKind::Docker;
    let beneath = Err("host_path");
    for (runtime, path, elsewhere, expected) in [
        (fake, "allowed/data", None, Ok("allowed/data")),
        (fake, "root/data/deep", None, Ok("allowed/data/deep")),
        (fake, "root", None, Ok("allowed")),
        (fake, "allowed/file", None, Ok("allowed/file")),
        (fake, "allowed/within/deep", None, Ok("allowed/data/deep")),
        (fake, "allowed/out", None, beneath),
        (fake, "allowed/out/x", None, beneath),
        (fake, "allowed-not", None, beneath),
        (fake, "secret", None, beneath),
        (fake, "nowhere", None, beneath),
        (fake, "root/missing", None, Err("No such file")),
        (fake, "allowed/data", Some("/far/data/x"), Err("docker_host_path: fake")),
        (docker, "allowed/data", Some("/far/data/x"), Ok("allowed/data")),
        (docker, "allowed/data", Some("/far/database"), Err("mounts.docker_roots")),
        (docker, "root/missing", Some("/far/data"), Ok("root/missing")),
        (docker, "allowed/out", Some("/far/data"), beneath),
        (docker, "missing", Some("/far/data"), beneath),
    ] {
        let put = node.engine.put_template(showing(&place, runtime, path, elsewhere)).await;
        match expected {
            Err(word) => {
                let refused = put.unwrap_err();
                assert_eq!(refused.code, ErrorCode::TemplateInvalid, "{path}");
                let named = refused.cause.starts_with("mounts[0].");
                assert!(named && refused.cause.contains(word), "{path}: {refused}");
            }
            Ok(real) => {
                put.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
                let views = node.engine.sandboxes(ADMIN);
                let view = views.iter().find(|view| view.template == name("shows")).unwrap();
                let kept = if runtime == docker { &node.docker } else { &node.runtime };
                let made = kept.sandbox(view.instance.unwrap()).unwrap();
                let real = place.0.join(real).to_string_lossy().into_owned();
                assert_eq!(made.spec().mounts[0].host_path, real, "{path}");
                assert_eq!(made.spec().mounts[0].docker_host_path.as_deref(), elsewhere);
                node.engine.destroy_pool(&name("shows"), true).await.unwrap();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn mount_is_refused_where_no_root_is_configured() {
    let place = place();
    let node = Node::start(config()).await;
    let put = node.engine.put_template(showing(&place, RuntimeKind::Fake, "allowed/data", None));
    let refused = put.await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unsupported);
    assert!(refused.cause.contains("mounts.roots"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn mount_whose_link_leads_out_by_now_is_not_launched() {
    let place = place();
    let node = Node::start(allowing(&place)).await;
    let mut template = showing(&place, RuntimeKind::Fake, "allowed/data", None);
    template.pool.pool_size = 0;
    node.engine.put_template(template).await.unwrap();
    std::fs::rename(place.0.join("allowed/data"), place.0.join("allowed/was")).unwrap();
    symlink("../secret", place.0.join("allowed/data")).unwrap();
    let asked = crate::CheckoutRequest::of(name("shows"));
    let refused = node.engine.checkout(ADMIN, asked).await.map(|_| ()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::LaunchFailed);
    assert!(refused.cause.contains("mounts[0].host_path"), "{refused}");
    assert_eq!(node.runtime.alive().sandboxes, 2, "only those of the other pool");
}
