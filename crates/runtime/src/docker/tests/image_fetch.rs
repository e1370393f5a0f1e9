//! Images that the engine does not have: fetched once for all waiting launches; failures are
//! reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::fake_engine::{FakeEngine, Odd};
use crate::docker::engine::Engine;
use crate::docker::images::Images;
use crate::error::RuntimeErrorCode;
use crate::spec::Root;

const PATIENCE: Duration = Duration::from_secs(10);

fn images(fake: &FakeEngine) -> Arc<Images> {
    Arc::new(Images::new(Arc::new(Engine::new(fake.config().endpoint)), None))
}

fn root() -> Root {
    Root::Named { name: "image".to_owned(), stored: None }
}

const PULL: &str = "POST /images/create";

#[tokio::test]
async fn an_image_that_the_engine_has_is_used_as_it_is() {
    let fake = FakeEngine::start();
    let found = images(&fake).find(&root(), PATIENCE).await.unwrap();
    assert_eq!(found.id, "sha256:1", "by what no other image is called");
    assert!(fake.asked(PULL).is_empty());
}

#[tokio::test]
async fn twenty_launches_pull_an_image_once() {
    let fake = FakeEngine::start();
    fake.forget_image();
    fake.odd(|asked| asked.what.starts_with(PULL).then_some(Odd::Late(Duration::from_millis(100))));
    let images = images(&fake);
    let wanting: Vec<_> = (0..20)
        .map(|_| {
            let images = Arc::clone(&images);
            tokio::spawn(async move { images.find(&root(), PATIENCE).await })
        })
        .collect();
    for one in wanting {
        assert_eq!(one.await.unwrap().unwrap().id, "sha256:1");
    }
    let pulls = fake.asked(PULL);
    assert_eq!(pulls.len(), 1);
    assert!(pulls[0].query.contains("fromImage=image%3Alatest"), "{}", pulls[0].query);
}

#[tokio::test]
async fn a_launch_that_gives_up_does_not_end_an_image_pull() {
    let fake = FakeEngine::start();
    fake.forget_image();
    fake.odd(|asked| asked.what.starts_with(PULL).then_some(Odd::Late(Duration::from_millis(300))));
    let images = images(&fake);
    let refused = images.find(&root(), Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(refused.cause, "the image image is being pulled by the engine");
    assert!(refused.retryable());
    assert_eq!(images.find(&root(), PATIENCE).await.unwrap().id, "sha256:1");
    assert_eq!(fake.asked(PULL).len(), 1, "the same pull");
}

#[tokio::test]
async fn failed_image_pull_is_reported_and_not_retried_at_once() {
    let fake = FakeEngine::start();
    fake.forget_image();
    let pulls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&pulls);
    fake.odd(move |asked| {
        asked.what.starts_with(PULL).then(|| {
            counted.fetch_add(1, Ordering::Relaxed);
            Odd::Refuse(404, "pull access denied for image")
        })
    });
    let images = images(&fake);
    for _ in 0..5 {
        let refused = images.find(&root(), PATIENCE).await.unwrap_err();
        assert_eq!(refused.code, RuntimeErrorCode::LaunchFailed);
        assert!(refused.cause.contains("pull access denied for image"), "{refused}");
        assert!(refused.retryable());
    }
    assert_eq!(pulls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn image_of_a_missing_store_is_unknown() {
    let fake = FakeEngine::start();
    let id = model::ImageId::from_bytes([7; 32]);
    let refused = images(&fake).find(&Root::Image(id), PATIENCE).await.unwrap_err();
    assert_eq!(refused.code, RuntimeErrorCode::RootUnknown);
}
