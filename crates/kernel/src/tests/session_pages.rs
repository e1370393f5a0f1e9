//! Sessions in pages, newest first, and what can be changed about one.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{ErrorCode, KeyId, SessionId, SessionStatus};

use super::rig::{NATIVE, Rig, name, template};
use crate::{DeadlineChange, Event, SessionFilter, SessionSettings};

fn rig() -> (Rig, Vec<SessionId>) {
    let mut rig = Rig::with_pool(template(0, 10), NATIVE);
    let mut sessions = Vec::new();
    for n in 0..5_u128 {
        let session = SessionId::from_u128(100 - n);
        let settings =
            SessionSettings { tenant: KeyId::from_u128(n % 2 + 1), ..SessionSettings::default() };
        rig.ask(|request| Event::SessionCreated {
            request,
            session,
            template: name(),
            settings,
            wait_ms: None,
        });
        rig.run();
        rig.pass(1);
        sessions.push(session);
    }
    (rig, sessions)
}

fn found(rig: &Rig, filter: &SessionFilter, limit: usize) -> Vec<SessionId> {
    rig.kernel.sessions(filter, limit).iter().map(|view| view.id).collect()
}

#[test]
fn session_pages_are_newest_first_and_continue_where_the_last_ended() {
    let (mut rig, all) = rig();
    let newest: Vec<_> = all.iter().rev().copied().collect();
    assert_eq!(found(&rig, &SessionFilter::default(), 10), newest);
    let page = rig.kernel.sessions(&SessionFilter::default(), 2);
    let after = page.last().map(|view| (view.created_at, view.id));
    let rest = SessionFilter { after, ..SessionFilter::default() };
    assert_eq!(found(&rig, &rest, 10), newest[2..]);
    // One that is gone meanwhile leaves no hole.
    rig.end(newest[1]);
    rig.run();
    assert_eq!(found(&rig, &rest, 10), newest[2..]);
    let tenant = Some(KeyId::from_u128(1));
    let of_one = SessionFilter { tenant, ..SessionFilter::default() };
    assert_eq!(found(&rig, &of_one, 10), [all[4], all[2], all[0]]);
    let status = Some(SessionStatus::Active);
    let active = SessionFilter { status, ..SessionFilter::default() };
    assert_eq!(found(&rig, &active, 10).len(), 4);
    assert_eq!(rig.kernel.sessions_by_status(), [0, 4, 0, 0, 0], "an ended one is not kept");
}

#[test]
fn labels_and_harness_configuration_can_change_and_survive_a_restart() {
    let (mut rig, all) = rig();
    let session = all[0];
    let words = BTreeMap::from([("team".to_owned(), "x".to_owned())]);
    let mut change = |labels, config: Option<&str>| {
        rig.apply(Event::SessionChanged {
            session,
            labels,
            config: config.map(Arc::from),
            deadline: DeadlineChange::Keep,
        })
    };
    change(Some(words.clone()), None).unwrap();
    change(None, Some(r#"{"a":1}"#)).unwrap();
    let labels = vec![("team".to_owned(), "x".to_owned())];
    let by_word = SessionFilter { labels, ..SessionFilter::default() };
    rig.run();
    rig.restart(&[]);
    rig.run();
    assert_eq!(found(&rig, &by_word, 10), [session]);
    let claim = rig.of(session).claim.unwrap();
    assert_eq!((&claim.labels, claim.config.as_deref()), (&words, Some(r#"{"a":1}"#)));
    let mut change = |labels, config: Option<&str>| {
        rig.apply(Event::SessionChanged {
            session,
            labels,
            config: config.map(Arc::from),
            deadline: DeadlineChange::Keep,
        })
    };
    change(Some(BTreeMap::new()), Some("null")).unwrap();
    assert_eq!(rig.of(session).claim, None, "nothing is left to bind");
    rig.end(session);
    rig.run();
    let refused = rig.apply(Event::SessionChanged {
        session,
        labels: None,
        config: None,
        deadline: DeadlineChange::Keep,
    });
    assert_eq!(refused.unwrap_err().code, ErrorCode::SessionEnded);
}

#[test]
fn last_use_of_a_session_is_known_after_its_sandbox_is_gone() {
    let (mut rig, all) = rig();
    let before = rig.of(all[0]).last_active_at;
    rig.pass(10_000);
    rig.whole_turn(all[0]);
    let used = rig.of(all[0]).last_active_at;
    assert!(used > before);
    rig.pass(5_000);
    rig.stop(all[0]);
    rig.run();
    assert_eq!(rig.of(all[0]).last_active_at, used);
}
