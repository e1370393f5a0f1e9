//! Reports of deaths of sandboxes.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::timeout;

use super::stage::PATIENCE;
use super::{CaseResult, Stage};
use crate::spec::{LaunchSpec, Root};

const QUIET: Duration = Duration::from_millis(200);

pub(super) async fn every_death_is_reported_once(stage: &Stage) -> CaseResult {
    let (mut one, mut two) = (stage.runtime.events(), stage.runtime.events());
    let mut expected = BTreeSet::new();
    for n in 0..6 {
        let sandbox = stage.launch().await;
        expected.insert(sandbox.instance());
        if n % 2 == 0 {
            let (a, b) = tokio::join!(sandbox.kill(), stage.runtime.kill(sandbox.instance()));
            a.and(b).expect("killed");
        } else {
            sandbox.kill().await.expect("killed");
            sandbox.kill().await.expect("killed");
        }
        let died = sandbox.ended().expect("it has ended");
        assert_eq!((died.instance, died.out_of_memory), (sandbox.instance(), false));
    }
    for deaths in [&mut one, &mut two] {
        let mut reported = BTreeSet::new();
        while reported.len() < expected.len() {
            let died = timeout(PATIENCE, deaths.next()).await.expect("in time").expect("a death");
            assert!(reported.insert(died.instance), "reported twice: {died:?}");
        }
        assert_eq!(reported, expected);
        let more = timeout(QUIET, deaths.next()).await;
        assert!(more.is_err(), "nothing else is reported: {more:?}");
    }
    Ok(())
}

pub(super) async fn failed_launches_are_not_deaths(stage: &Stage) -> CaseResult {
    let mut deaths = stage.runtime.events();
    let sandbox = stage.launch().await;
    let again = stage.runtime.launch(sandbox.spec().clone()).await;
    assert!(again.is_err());
    let nowhere = Root::Directory("no-such-root".to_owned());
    let unknown = stage.runtime.launch(LaunchSpec { root: nowhere, ..stage.spec() }).await;
    // A runtime may make anything from any name, but then it is one more to kill.
    let made = unknown.ok();
    let quiet = timeout(QUIET, deaths.next()).await;
    assert!(quiet.is_err(), "nothing died: {quiet:?}");
    if let Some(made) = made {
        made.kill().await.expect("killed");
    }
    Ok(())
}
