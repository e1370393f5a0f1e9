//! Clients that go away at any moment of what they asked for: while they wait for a sandbox, while
//! a program runs, while they return it. Afterwards nothing is leased, nothing is counted that is
//! not there, and nothing is there that is not counted.

use std::sync::Arc;
use std::time::Duration;

use client::Client;
use model::ErrorCode;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;
use wire::ExecRequest;

use super::stage::{Kind, Stage};

on_every_runtime!(client_disconnect_leaves_nothing);

const VISITS: u32 = 200;
const CLIENTS: u32 = 4;

fn client_disconnect_leaves_nothing(kind: Kind) {
    let Some(stage) = Stage::start(kind, "dropped") else { return };
    // About as long as each step takes, so that some are cut short and some are not.
    let step_us = match kind {
        Kind::Native => 20_000,
        Kind::Docker => 60_000,
    };
    let stage = Arc::new(stage);
    stage.act_for(Duration::from_secs(150), async {
        stage.pool(json!({ "pool_size": 2, "max_overflow": 0 })).await;
        let mut clients = JoinSet::new();
        for n in 0..CLIENTS {
            let client = stage.client();
            clients.spawn(async move {
                let mut dice = Dice(u64::from(n) + 1);
                for _ in 0..VISITS / CLIENTS {
                    visit(&client, &mut dice, step_us).await;
                }
            });
        }
        while let Some(one) = clients.join_next().await {
            one.unwrap();
        }
        stage.full().await;
        let listed = stage.listed().await;
        assert!(listed.iter().all(|one| one.lease.is_none()), "{listed:?}");
        assert_eq!((listed.len(), stage.found()), (2, 2), "{listed:?}");
        // What is left works.
        let lease = stage.checkout().await;
        let worked = lease.exec(ExecRequest::shell("ls -A /workspace; echo works")).await.unwrap();
        assert_eq!(worked.stdout.as_deref(), Some("works\n"), "{worked:?}");
        lease.give_back().await.unwrap();
        stage.full().await;
    });
    Arc::into_inner(stage).unwrap().end();
}

/// Numbers by chance, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % bound
    }

    fn moment(&mut self, step_us: u64) -> Duration {
        Duration::from_micros(self.below(step_us))
    }
}

/// One client's way, left wherever it happens to be.
async fn visit(client: &Client, dice: &mut Dice, step_us: u64) {
    let asked = client.checkout(Stage::wish());
    let waits = if dice.below(3) == 0 { 100 * step_us } else { step_us };
    let Ok(lease) = timeout(dice.moment(waits), asked).await else { return };
    let lease = lease.unwrap();
    if dice.below(3) > 0 {
        let line = "echo mine > /workspace/mine; sleep 0.02; echo more > /tmp/more";
        let ran = timeout(dice.moment(step_us), lease.exec(ExecRequest::shell(line)));
        if let Ok(ran) = ran.await {
            assert_eq!(ran.unwrap().exit_code, 0);
        }
    }
    match dice.below(3) {
        0 => drop(lease),
        1 => drop(timeout(dice.moment(step_us / 4), lease.give_back()).await),
        _ => {
            let id = lease.keep().id;
            let cut = timeout(dice.moment(step_us / 4), client.return_lease(id)).await;
            // The client does not know whether it arrived, so it sends it again.
            if cut.is_err() {
                let again = client.return_lease(id).await;
                let code = again.as_ref().err().and_then(client::ClientError::code);
                let over = matches!(code, Some(ErrorCode::LeaseLost | ErrorCode::LeaseUnknown));
                assert!(again.is_ok() || over, "{again:?}");
            }
        }
    }
}
