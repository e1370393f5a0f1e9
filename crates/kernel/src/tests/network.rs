//! What sandboxes may reach: narrower than their template, for as long as their owner wants it.

use std::sync::Arc;

use model::{ClaimSettings, ErrorCode, NetworkPolicy, SecretName, SecretUse, Template};

use super::rig::{NATIVE, Rig, claim, template};
use crate::event::{SessionSettings, UseTarget};
use crate::{Event, Reply};

fn policy(rules: &[&str]) -> NetworkPolicy {
    NetworkPolicy::Allow(rules.iter().map(|rule| rule.parse().unwrap()).collect())
}

fn with_network(rules: &[&str]) -> Template {
    Template { network: policy(rules), ..template(1, 1) }
}

fn claimed(network: NetworkPolicy) -> Arc<ClaimSettings> {
    Arc::new(ClaimSettings { network: Some(network), ..ClaimSettings::default() })
}

#[test]
fn claims_that_ask_for_more_than_their_template_are_refused() {
    let mut rig = Rig::with_pool(with_network(&["*.a.test:443"]), NATIVE);
    for (wider, named) in [(NetworkPolicy::Open, "open"), (policy(&["b.test:443"]), "b.test:443")] {
        let request = rig.checkout_with(|checkout| checkout.claim = Some(claimed(wider.clone())));
        let Some(Err(refusal)) = rig.answer(request) else { panic!("{wider:?} was allowed") };
        assert_eq!(refusal.code, ErrorCode::NetworkRefused);
        assert!(refusal.cause.contains(named), "{refusal}");
        let settings =
            SessionSettings { claim: Some(claimed(wider)), ..SessionSettings::default() };
        let (_, request) = rig.create_session_with(settings);
        assert_eq!(rig.refused(request), ErrorCode::NetworkRefused);
    }
    let narrower = policy(&["x.a.test:443"]);
    let request = rig.checkout_with(|checkout| checkout.claim = Some(claimed(narrower.clone())));
    rig.run();
    let out = rig.checked_out(request);
    assert_eq!(rig.kernel.network_of(out.instance).unwrap().policy, narrower);
}

#[test]
fn what_a_lease_may_reach_changes_and_its_next_user_has_the_policy_of_the_template() {
    let mut rig = Rig::with_pool(with_network(&["a.test", "b.test"]), NATIVE);
    let out = rig.lease();
    let target = UseTarget::Sandbox(out.sandbox);
    let change = |network| Event::NetworkChanged { target, network };
    let wider = rig.apply(change(Some(policy(&["c.test"])))).unwrap_err();
    assert_eq!(wider.code, ErrorCode::NetworkRefused);
    assert_eq!(rig.apply(change(Some(policy(&["a.test"])))), Ok(Reply::Noted));
    let view = rig.kernel.network_of(out.instance).unwrap();
    assert_eq!((view.policy, view.sandbox), (policy(&["a.test"]), out.sandbox));
    assert_eq!(rig.apply(change(None)), Ok(Reply::Noted));
    assert_eq!(rig.kernel.network_of(out.instance).unwrap().policy, policy(&["a.test", "b.test"]));
    assert_eq!(rig.apply(change(Some(NetworkPolicy::None))), Ok(Reply::Noted));
    rig.give_back(out.lease);
    rig.run();
    assert_eq!(rig.kernel.network_of(out.instance).map(|view| view.policy), None, "it was used");
    let next = rig.lease();
    let view = rig.kernel.network_of(next.instance).unwrap();
    assert_eq!(view.policy, policy(&["a.test", "b.test"]));
    let gone = rig.apply(change(None)).unwrap_err();
    assert_eq!(gone.code, ErrorCode::SandboxGone);
}

#[test]
fn a_session_keeps_its_policy_when_it_gets_another_sandbox() {
    let mut rig = Rig::with_pool(with_network(&["a.test", "b.test"]), NATIVE);
    let (session, sandbox) = rig.session();
    let change = Event::NetworkChanged {
        target: UseTarget::Sandbox(sandbox),
        network: Some(policy(&["b.test"])),
    };
    rig.apply(change).unwrap();
    rig.pause(session);
    rig.run();
    rig.resume(session);
    rig.run();
    let sandbox = rig.of(session).sandbox_id.unwrap();
    assert_eq!(rig.kernel.network_of_sandbox(sandbox).unwrap().policy, policy(&["b.test"]));
    // Never more than the template allows by now.
    rig.put(with_network(&["a.test"]), NATIVE);
    let view = rig.kernel.network_of_sandbox(sandbox).unwrap();
    assert_eq!(view.policy, policy(&[]));
    assert!(rig.kernel.instances_of_template(&view.template.name).contains(&view.instance));
}

#[test]
fn secrets_of_a_template_are_bound_at_every_hand_out() {
    let secret = SecretName::new("s").unwrap();
    let used = SecretUse { secret, env: Some("S".to_owned()), file: None, boundary: None };
    let template = Template { secrets: vec![used], ..template(1, 0) };
    let mut rig = Rig::with_pool(template, NATIVE);
    let request = rig.checkout();
    assert_eq!(rig.count(claim), 1, "nothing is handed out without them");
    rig.run();
    rig.checked_out(request);
}
