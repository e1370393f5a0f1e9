//! Random events in any order, with effects that end in any way: the audit passes, the limits are
//! kept, and at the end every request is answered.

use model::{RequestId, SandboxId, SessionId};
use proptest::prelude::*;

use super::rig::{DOCKER, NATIVE, Rig, gone, template, trouble};
use super::rig_steps::{other, tight};
use crate::{CheckoutPolicy, Outcome, Reply, UseKind, UseTarget, WhenBusy};

/// One gust: what happens, and to which of those it could happen to.
type Gust = (u8, usize);

#[derive(Default)]
struct Storm {
    sessions: Vec<SessionId>,
    requests: Vec<RequestId>,
    uses: Vec<model::UseId>,
    abandoned: Vec<RequestId>,
}

impl Storm {
    fn blow(&mut self, rig: &mut Rig, (what, which): Gust) {
        let session =
            (!self.sessions.is_empty()).then(|| self.sessions[which % self.sessions.len()]);
        let all = rig.kernel.sandboxes();
        let sandbox: Option<SandboxId> = (!all.is_empty()).then(|| all[which % all.len()].id);
        let request = match (what, session, sandbox) {
            (0..=4, ..) => {
                let (session, request) = rig.create_session();
                self.sessions.push(session);
                request
            }
            (5..=8, ..) => rig.checkout_with(|checkout| {
                checkout.policy = match which % 3 {
                    0 => CheckoutPolicy::Wait,
                    1 => CheckoutPolicy::FailFast,
                    _ => CheckoutPolicy::IdleOnly,
                };
            }),
            (9..=16, Some(session), _) => {
                let busy = if which % 2 == 0 { WhenBusy::Queue } else { WhenBusy::Refuse };
                rig.turn_with(session, busy).0
            }
            (17..=22, Some(session), _) => {
                if let Some(turn) = rig.kernel.session(session).and_then(|view| view.turn) {
                    rig.end_turn(session, turn);
                }
                return;
            }
            (23, Some(session), _) => rig.pause(session),
            (24, Some(session), _) => rig.resume(session),
            (25, Some(session), _) => rig.stop(session),
            (26, Some(session), _) => rig.end(session),
            (27, Some(session), _) => rig.abort(session, which % 2 == 0),
            (28, Some(session), _) => {
                let (child, request) = rig.fork(session);
                self.sessions.push(child);
                request
            }
            (29..=31, Some(session), _) => {
                let (request, id) = rig.use_of(UseTarget::Session(session), UseKind::Exec);
                self.uses.push(id);
                request
            }
            (32, _, Some(sandbox)) => {
                let (request, id) = rig.use_of(UseTarget::Sandbox(sandbox), UseKind::Files);
                self.uses.push(id);
                request
            }
            (33..=35, ..) if !self.uses.is_empty() => {
                let id = self.uses.swap_remove(which % self.uses.len());
                rig.use_ended(id);
                return;
            }
            (36, _, Some(sandbox)) => {
                rig.dies(sandbox);
                return;
            }
            (37, _, Some(sandbox)) => rig.delete(sandbox),
            (38, ..) if !self.requests.is_empty() => {
                let request = self.requests[which % self.requests.len()];
                if rig.pending(request) {
                    self.abandoned.push(request);
                }
                rig.client_gone(request);
                return;
            }
            (39..=41, ..) => {
                rig.pass([1, 100, 5_000, 12_000, 40_000, 2_000_000][which % 6]);
                return;
            }
            (42..=44, ..) => {
                let leased = all.iter().filter_map(|view| match view.owner {
                    model::record::Owner::Lease(lease) => Some(lease),
                    _ => None,
                });
                let leased: Vec<_> = leased.collect();
                if !leased.is_empty() {
                    let lease = leased[which % leased.len()];
                    let _ = rig.apply(crate::Event::LeaseReturned { lease });
                }
                return;
            }
            _ => {
                if let Some(at) = which.checked_rem(rig.effects.len()) {
                    let effect = rig.effects.remove(at).unwrap();
                    let outcome = match what {
                        45 => trouble(),
                        46 => gone(),
                        _ => Outcome::Done,
                    };
                    rig.end_effect(&effect, outcome);
                }
                return;
            }
        };
        self.requests.push(request);
    }

    /// The storm has ended: every effect works from now on.
    fn calm(&mut self, rig: &mut Rig) {
        for id in self.uses.drain(..) {
            rig.use_ended(id);
        }
        for _ in 0..4 {
            rig.live(200_000);
            for session in &self.sessions {
                while let Some(turn) = rig.kernel.session(*session).and_then(|view| view.turn) {
                    rig.end_turn(*session, turn);
                    rig.run();
                    if rig.kernel.session(*session).and_then(|view| view.turn) == Some(turn) {
                        break;
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn storm_keeps_the_limits_and_answers_every_request(
        gusts in proptest::collection::vec((0_u8..80, 0_usize..64), 1..300),
        limits in (2_u32..8, 1_u32..5),
        pool_size in 0_u32..3,
        wipes: bool,
    ) {
        let traits = if wipes { DOCKER } else { NATIVE };
        let mut rig = Rig::with(tight(limits.0, limits.1), template(pool_size, 3), traits);
        rig.put(other("u", 1, 2), traits);
        let mut storm = Storm::default();
        for gust in gusts {
            storm.blow(&mut rig, gust);
            rig.within_limits();
        }
        storm.calm(&mut rig);
        rig.within_limits();
        for request in &storm.requests {
            let answered = !rig.pending(*request) || storm.abandoned.contains(request);
            prop_assert!(answered, "no request waits for ever");
        }
        for session in storm.sessions {
            let Some(view) = rig.kernel.session(session) else { continue };
            prop_assert_ne!(view.status, model::SessionStatus::Starting);
            let request = rig.end(session);
            rig.run();
            let ended = matches!(rig.answer(request), Some(Ok(Reply::Ended)));
            prop_assert!(ended, "a session ends from every state: {:?}", rig.answer(request));
        }
    }
}
