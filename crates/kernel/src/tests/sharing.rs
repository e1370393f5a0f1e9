//! Keys share the places of a node: who is served first, whom eviction takes from, how long a
//! session waits for a place, and what the limits of a key allow.

use model::why::Shortage;
use model::{
    ErrorCode, KeyId, KeyLimits, RequestId, SandboxId, SandboxState, SessionId, TemplateName,
};

use super::rig::{NATIVE, Rig, persist, template};
use super::rig_steps::{other, tight};
use crate::{CheckoutPolicy, Event, Outcome, SessionSettings, UseKind, UseTarget};

const ADA: KeyId = KeyId::from_u128(0xada);
const EVE: KeyId = KeyId::from_u128(0xe5e);

fn checkout_of(rig: &mut Rig, key: KeyId) -> RequestId {
    rig.checkout_with(|checkout| checkout.tenant = key)
}

fn session_of(rig: &mut Rig, key: KeyId) -> (SessionId, RequestId) {
    rig.create_session_with(SessionSettings { tenant: key, ..SessionSettings::default() })
}

/// A session of a key that took a turn and is between uses.
#[track_caller]
fn waiting_session_of(rig: &mut Rig, key: KeyId) -> (SessionId, SandboxId) {
    let (session, request) = session_of(rig, key);
    rig.run();
    let sandbox = rig.session_ready(request).sandbox;
    rig.whole_turn(session);
    rig.pass(1);
    (session, sandbox)
}

fn limit(rig: &mut Rig, key: KeyId, limits: KeyLimits) {
    rig.apply(Event::KeyLimitsSet { key, limits }).unwrap();
}

fn live_limit(rig: &mut Rig, key: KeyId, live_sandboxes: u32) {
    limit(rig, key, KeyLimits { live_sandboxes: Some(live_sandboxes), ..KeyLimits::default() });
}

#[test]
fn returned_sandbox_goes_to_the_key_that_has_fewest() {
    let mut rig = Rig::with_pool(template(3, 0), NATIVE);
    let had: Vec<_> = (0..3).map(|_| checkout_of(&mut rig, EVE)).collect();
    rig.run();
    let greedy: Vec<RequestId> = (0..5).map(|_| checkout_of(&mut rig, EVE)).collect();
    let first = checkout_of(&mut rig, ADA);
    let second = checkout_of(&mut rig, ADA);
    let leases: Vec<_> = had.iter().map(|request| rig.checked_out(*request).lease).collect();
    rig.give_back(leases[0]);
    rig.run();
    rig.checked_out(first);
    assert!(rig.pending(second) && rig.pending(greedy[0]), "now Eve has two and Ada one");
    rig.give_back(leases[1]);
    rig.run();
    assert!(!rig.pending(greedy[0]) || !rig.pending(second), "both have one");
    rig.checked_out(greedy[0]);
    assert!(rig.pending(greedy[1]), "within a key the first is served first");
}

#[test]
fn place_goes_to_the_key_that_has_fewest_for_sessions_too() {
    let mut rig = Rig::with(tight(100, 2), template(0, 9), NATIVE);
    let eve = [checkout_of(&mut rig, EVE), checkout_of(&mut rig, EVE)];
    rig.run();
    let waits: Vec<RequestId> = (0..3).map(|_| session_of(&mut rig, EVE).1).collect();
    let ada = checkout_of(&mut rig, ADA);
    let lease = rig.checked_out(eve[0]).lease;
    rig.give_back(lease);
    rig.run();
    rig.checked_out(ada);
    assert!(waits.iter().all(|request| rig.pending(*request)));
}

#[test]
fn launches_for_one_key_do_not_hold_up_another() {
    let mut rig = Rig::with(tight(100, 4), template(0, 9), NATIVE);
    rig.put(other("u", 0, 5), NATIVE);
    let busy: Vec<RequestId> = (0..4).map(|_| checkout_of(&mut rig, EVE)).collect();
    rig.run();
    let more: Vec<RequestId> = (0..4).map(|_| checkout_of(&mut rig, EVE)).collect();
    let ada = rig.checkout_with(|checkout| {
        checkout.tenant = ADA;
        checkout.template = TemplateName::new("u").unwrap();
    });
    for request in busy.iter().take(2) {
        let lease = rig.checked_out(*request).lease;
        rig.give_back(lease);
    }
    rig.run();
    rig.checked_out(ada);
    let served = more.iter().filter(|request| !rig.pending(**request)).count();
    assert_eq!(served, 1, "Eve gets the other place");
}

#[test]
fn eviction_takes_from_the_key_above_its_share_first() {
    let mut rig = Rig::with(tight(100, 4), template(0, 9), NATIVE);
    let (_, oldest) = waiting_session_of(&mut rig, ADA);
    let eve: Vec<SandboxId> = (0..3).map(|_| waiting_session_of(&mut rig, EVE).1).collect();
    let (_, request) = session_of(&mut rig, ADA);
    rig.run();
    rig.session_ready(request);
    assert_eq!(rig.state(oldest), SandboxState::Waiting, "Ada is within her share");
    assert_eq!(rig.state(eve[0]), SandboxState::Cold, "Eve's least recently used one goes");
    assert_eq!(rig.state(eve[1]), SandboxState::Waiting);
}

#[test]
fn within_its_share_each_key_loses_the_least_recently_used() {
    let mut rig = Rig::with(tight(100, 2), template(0, 9), NATIVE);
    let (_, oldest) = waiting_session_of(&mut rig, ADA);
    let (_, newer) = waiting_session_of(&mut rig, EVE);
    let other = KeyId::from_u128(0x0_7e4);
    let (_, request) = session_of(&mut rig, other);
    rig.run();
    rig.session_ready(request);
    assert_eq!(rig.state(oldest), SandboxState::Cold);
    assert_eq!(rig.state(newer), SandboxState::Waiting);
}

#[test]
fn full_queue_takes_a_caller_of_a_key_with_fewer_in_it() {
    let mut with_queue = template(1, 0);
    with_queue.pool.max_waiters = 3;
    let mut rig = Rig::with_pool(with_queue, NATIVE);
    let had = rig.lease();
    let greedy: Vec<RequestId> = (0..3).map(|_| checkout_of(&mut rig, EVE)).collect();
    let one_more = checkout_of(&mut rig, EVE);
    assert_eq!(rig.refused(one_more), ErrorCode::QueueFull);
    let ada = checkout_of(&mut rig, ADA);
    assert!(rig.pending(ada));
    assert_eq!(rig.refused(greedy[2]), ErrorCode::QueueFull, "Eve's latest gives way");
    let second = checkout_of(&mut rig, ADA);
    assert_eq!(rig.refused(second), ErrorCode::QueueFull, "two and two would be no better");
    rig.give_back(had.lease);
    rig.run();
    assert!(!rig.pending(greedy[0]));
}

#[test]
fn session_waits_for_a_place_until_its_wait_is_over() {
    type Ask = fn(&mut Rig, SessionId) -> RequestId;
    let asks: [Ask; 4] = [
        |rig, _| rig.create_session().1,
        |rig, session| rig.resume(session),
        |rig, session| rig.turn(session).0,
        |rig, session| rig.use_of(UseTarget::Session(session), UseKind::Exec).0,
    ];
    for ask in asks {
        let mut rig = Rig::with(tight(100, 1), template(0, 9), NATIVE);
        let (session, _) = rig.slept_session();
        let busy = rig.lease();
        rig.session_wait_ms = Some(5_000);
        let gives_up = ask(&mut rig, session);
        rig.session_wait_ms = None;
        rig.pass(4_999);
        assert!(rig.pending(gives_up));
        rig.pass(1);
        let refusal = rig.answer(gives_up).unwrap().as_ref().unwrap_err().clone();
        assert_eq!(refusal.code, ErrorCode::CapacityExhausted);
        assert!(refusal.to_string().contains("node.max_live"), "{refusal}");
        let waits = ask(&mut rig, session);
        rig.pass(29_000);
        assert!(rig.pending(waits), "30 s is the default");
        rig.give_back(busy.lease);
        rig.run();
        rig.answered(waits);
    }
}

#[test]
fn turn_that_does_not_wait_gets_the_place_of_an_idle_sandbox() {
    let mut rig = Rig::with(tight(100, 1), template(0, 9), super::rig::DOCKER);
    let (session, _) = rig.slept_session();
    rig.waiting_session();
    rig.session_wait_ms = Some(0);
    let (request, _) = rig.turn(session);
    rig.pass(1);
    assert!(rig.pending(request), "the idle one is being saved");
    rig.run();
    rig.session_ready(request);
}

#[test]
fn key_at_its_limit_is_refused_and_its_idle_sessions_give_way() {
    let mut rig = Rig::with_pool(template(0, 9), NATIVE);
    live_limit(&mut rig, EVE, 2);
    let (_, first) = waiting_session_of(&mut rig, EVE);
    let (_, second) = waiting_session_of(&mut rig, EVE);
    let (_, third) = waiting_session_of(&mut rig, EVE);
    assert_eq!(rig.state(first), SandboxState::Cold, "its own least recently used one");
    let eviction = rig.alive(first).last_end.and_then(|end| end.eviction).unwrap();
    assert_eq!(eviction.shortage, Shortage::KeyLimit);
    assert_eq!(rig.kernel.key_use(EVE).live_sandboxes, 2);
    let running = [second, third].map(|sandbox| rig.exec(sandbox));
    let (_, refused) = session_of(&mut rig, EVE);
    let refusal = rig.answer(refused).unwrap().as_ref().unwrap_err().clone();
    assert_eq!(refusal.code, ErrorCode::QuotaExceeded);
    assert!(refusal.to_string().contains("live_sandboxes of this key is 2"), "{refusal}");
    assert!(refusal.retry_after_ms.is_some());
    let refused = checkout_of(&mut rig, EVE);
    assert_eq!(rig.refused(refused), ErrorCode::QuotaExceeded);
    let other = checkout_of(&mut rig, ADA);
    rig.run();
    rig.checked_out(other);
    for use_id in running {
        rig.use_ended(use_id);
    }
    // The idle one is ended for the next checkout, which finds room when it comes again.
    let refused = checkout_of(&mut rig, EVE);
    assert_eq!(rig.refused(refused), ErrorCode::QuotaExceeded);
    rig.run();
    let again = checkout_of(&mut rig, EVE);
    rig.run();
    rig.checked_out(again);
}

#[test]
fn eviction_within_a_limit_that_is_called_off_refuses_the_one_that_waits() {
    let mut rig = Rig::with_pool(template(0, 9), super::rig::DOCKER);
    live_limit(&mut rig, EVE, 1);
    let (idle, sandbox) = waiting_session_of(&mut rig, EVE);
    let (_, waits) = session_of(&mut rig, EVE);
    assert_eq!(rig.count(persist), 1, "the idle one is being saved");
    assert!(rig.pending(waits), "it has not ended yet");
    let turn = rig.turn(idle).0;
    rig.finish(persist, Outcome::Done);
    rig.run();
    assert_eq!(rig.session_ready(turn).sandbox, sandbox);
    assert_eq!(rig.refused(waits), ErrorCode::QuotaExceeded);
}

#[test]
fn limits_on_memory_sessions_and_stored_bytes_are_kept() {
    let mut rig = Rig::with_pool(template(0, 9), NATIVE);
    let memory_mb = u64::from(template(0, 9).limits.memory_mb);
    limit(&mut rig, EVE, KeyLimits { memory_mb: Some(memory_mb * 2 - 1), ..KeyLimits::default() });
    let first = checkout_of(&mut rig, EVE);
    rig.run();
    rig.checked_out(first);
    let second = checkout_of(&mut rig, EVE);
    assert_eq!(rig.refused(second), ErrorCode::QuotaExceeded);
    assert_eq!(rig.kernel.key_use(EVE).memory_mb, memory_mb);
    limit(&mut rig, EVE, KeyLimits { sessions: Some(1), ..KeyLimits::default() });
    let (session, request) = session_of(&mut rig, EVE);
    rig.run();
    rig.session_ready(request);
    let (_, refused) = session_of(&mut rig, EVE);
    assert_eq!(rig.refused(refused), ErrorCode::QuotaExceeded);
    let (_, refused) = rig.fork(session);
    assert_eq!(rig.refused(refused), ErrorCode::QuotaExceeded);
    rig.end(session);
    rig.run();
    assert_eq!(rig.kernel.key_use(EVE).sessions, 0);
    limit(&mut rig, EVE, KeyLimits { stored_bytes: Some(0), ..KeyLimits::default() });
    let sandbox = rig.checked_out(first).sandbox;
    let refused = rig.kernel.refuse_write_above_limit(sandbox).map_err(|refusal| refusal.code);
    assert_eq!(refused, Err(ErrorCode::QuotaExceeded));
    let (_, refused) = session_of(&mut rig, EVE);
    assert_eq!(rig.refused(refused), ErrorCode::QuotaExceeded);
    limit(&mut rig, EVE, KeyLimits::default());
    assert_eq!(rig.kernel.refuse_write_above_limit(sandbox), Ok(()));
    let (_, request) = session_of(&mut rig, EVE);
    rig.run();
    rig.session_ready(request);
}

#[test]
fn checkout_that_does_not_wait_is_refused_behind_a_key_with_fewer() {
    let mut rig = Rig::with(tight(100, 2), template(0, 9), NATIVE);
    let busy = [checkout_of(&mut rig, EVE), checkout_of(&mut rig, EVE)];
    rig.run();
    rig.use_once(rig.checked_out(busy[0]).sandbox);
    let lease = rig.checked_out(busy[0]).lease;
    rig.give_back(lease);
    let (_, ada) = session_of(&mut rig, ADA);
    let at_once = rig.checkout_with(|checkout| {
        (checkout.tenant, checkout.policy) = (EVE, CheckoutPolicy::FailFast);
    });
    assert_eq!(rig.refused(at_once), ErrorCode::CapacityExhausted, "the place is Ada's");
    rig.run();
    rig.session_ready(ada);
}
