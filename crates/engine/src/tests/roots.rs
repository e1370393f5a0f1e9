//! What templates are launched from, by runtime, and how a pool reports a missing image.

use std::time::Duration;

use images::Store;
use model::template::{RootFs, RuntimeKind};
use model::{ErrorCode, Template};
use runtime::fake::{Fault, Operation};
use runtime::{Root, Runtime as _, RuntimeError, RuntimeErrorCode};
use tokio::time::sleep;

use super::node::{ADMIN, ALICE, Node, Place, config, name, template};
use crate::{CheckoutPolicy, CheckoutRequest, Roots};

fn of_image(runtime: RuntimeKind, image: &str) -> Template {
    let mut template = template("boxed");
    template.runtime = runtime;
    template.root = RootFs::Image(image.to_owned());
    template.pool.pool_size = 1;
    template
}

#[tokio::test(start_paused = true)]
async fn image_that_only_the_container_engine_may_know_is_left_to_it() {
    for with_store in [false, true] {
        let place = Place::new();
        let mut config = config();
        let images = with_store.then(|| Store::open(&place.0).unwrap());
        config.roots = Roots { images, directories: Vec::new() };
        let node = Node::start(config).await;
        let put = node.engine.put_template(of_image(RuntimeKind::Fake, "alpine:3")).await;
        let expected = if with_store { ErrorCode::ImageUnknown } else { ErrorCode::Unsupported };
        assert_eq!(put.unwrap_err().code, expected, "where only the store has images");
        node.engine.put_template(of_image(RuntimeKind::Docker, "alpine:3")).await.unwrap();
        node.settle().await;
        let view =
            node.engine.sandboxes(ADMIN).into_iter().find(|view| view.template == name("boxed"));
        let made = node.docker.sandbox(view.unwrap().instance.unwrap()).unwrap();
        let named = Root::Named { name: "alpine:3".to_owned(), stored: None };
        assert_eq!(made.spec().root, named);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_without_its_image_is_degraded_says_why_and_recovers() {
    let node = Node::start(config()).await;
    let cause = "image alpine:3 is neither here nor can it be pulled: no such host";
    let failure = RuntimeError::new(RuntimeErrorCode::RootUnknown, "find the image", cause);
    for _ in 0..4 {
        node.docker.inject(Operation::Launch, Fault::Fail(failure.clone()));
    }
    node.engine.put_template(of_image(RuntimeKind::Docker, "alpine:3")).await.unwrap();
    node.settle().await;
    let pool = node.engine.pool(&name("boxed")).unwrap();
    assert!(pool.degraded, "{pool:?}");
    assert!(pool.last_failure.unwrap().contains(cause));
    let health = node.engine.health();
    let received = health.degraded.iter().find(|one| one.what == "pool boxed").unwrap();
    assert!(received.cause.contains(cause), "{received:?}");
    let asked =
        CheckoutRequest { policy: CheckoutPolicy::FailFast, ..CheckoutRequest::of(name("boxed")) };
    let refused = node.engine.checkout(ALICE, asked).await.map(|_| ()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::LaunchFailed);
    assert!(refused.cause.contains(cause), "{refused}");
    sleep(Duration::from_mins(3)).await;
    let pool = node.engine.pool(&name("boxed")).unwrap();
    assert_eq!((pool.degraded, pool.last_failure, pool.idle), (false, None, 1));
}

#[tokio::test(start_paused = true)]
async fn template_that_a_runtime_can_never_launch_is_refused_when_put() {
    let node = Node::start(config()).await;
    let mut template = of_image(RuntimeKind::Docker, "alpine:3");
    template.workspace.aliases = vec!["/app".to_owned()];
    let refused = node.engine.put_template(template).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unsupported);
    assert!(refused.cause.starts_with("workspace.aliases: docker"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn runtime_that_is_not_available_is_refused_with_its_reason() {
    let node = Node::start(config()).await;
    let put = node.engine.put_template(of_image(RuntimeKind::Runc, "alpine:3")).await;
    let refused = put.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unsupported);
    for word in ["runtime: runc", "it is not in PATH", "there is fake, docker"] {
        assert!(refused.cause.contains(word), "{refused}");
    }
}
