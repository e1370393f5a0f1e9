//! Futures that are dropped at every await: nothing is lost that was not dropped, and of what was
//! dropped nothing is left.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use harness::{HarnessEnd, HarnessEvent};
use model::template::Harness;
use serde_json::Value;

use crate::stage::{Stage, binding, bridge, jsonl, turn_id};

/// How often a future is polled before the test assumes that it has no further await.
const MOST_POLLS: usize = 30;

/// Polls a future at most this many times and then drops it.
async fn cut<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polled = 0;
    poll_fn(|cx| {
        if polled == polls {
            return Poll::Ready(None);
        }
        polled += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polled == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

fn kinds() -> [Harness; 3] {
    [Harness::Shell, jsonl(&["harness"]), bridge(&["bridge"])]
}

#[tokio::test(start_paused = true)]
async fn a_dropped_harness_start_leaves_nothing() {
    for kind in kinds() {
        let stage = Stage::new().await;
        for polls in 1..MOST_POLLS {
            let binding = binding();
            drop(cut(polls, stage.start(&kind, Some(&binding))).await);
            stage.until_nothing_runs().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_turn_leaves_nothing() {
    for kind in kinds() {
        let stage = Stage::new().await;
        for polls in 1..MOST_POLLS {
            let binding = binding();
            let link = stage.start(&kind, Some(&binding)).await.unwrap();
            let text = Value::from("say a; say b; sleep 1000000").to_string();
            let turn = async {
                let mut turn = link.turn(turn_id(1), &text, None).await.unwrap();
                turn.next().await;
                turn.cancel(Duration::from_secs(1)).await;
            };
            cut(polls, turn).await;
            drop(link);
            stage.until_nothing_runs().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_loses_nothing() {
    for kind in [jsonl(&["harness"]), bridge(&["bridge"])] {
        for polls in 1..4 {
            let stage = Stage::new().await;
            let link = stage.start(&kind, Some(&binding())).await.unwrap();
            let script: Vec<_> = (0..40).map(|n| format!("say {n}; sleep {}", n % 3)).collect();
            let input = Value::from(script.join(";")).to_string();
            let mut turn = link.turn(turn_id(1), &input, None).await.unwrap();
            let mut said = Vec::new();
            let end = loop {
                match cut(polls, turn.next()).await {
                    None => tokio::time::sleep(Duration::from_micros(200)).await,
                    Some(HarnessEvent::Message(data)) => said.push(data.to_string()),
                    Some(HarnessEvent::Output { .. }) => panic!("there is no output"),
                    Some(HarnessEvent::Ended(end)) => break end,
                }
            };
            assert!(matches!(end, HarnessEnd::Completed { .. }), "{end:?}");
            let expected: Vec<_> = (0..40).map(|n| format!("{{\"text\":\"{n}\"}}")).collect();
            assert_eq!(said[..40], expected);
        }
    }
}
