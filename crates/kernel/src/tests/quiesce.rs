//! What is done to a sandbox so that its files can be read: it is quiesced for a second at most, or
//! thawed because its guest is needed; a caller that comes meanwhile waits, a termination does not.

use model::{
    EndCause, ErrorCode, LifecycleEvent, RequestId, SandboxId, SandboxState, SessionId,
    SessionStatus, TurnId,
};

use super::rig::{
    DOCKER, NATIVE, ON_DISK, Rig, copy, freeze, gone, kill, persist, quiesce, stop_turn, template,
    thaw, trouble, unquiesce, unsupported,
};
use super::shelved_sessions::workspace_of;
use crate::{Action, Event, Failure, FailureKind, Outcome, Reply, UseKind, UseTarget};

/// A node with a session whose files the host can read, and work in them.
fn on_host() -> (Rig, SessionId, SandboxId) {
    let mut rig = Rig::with_pool(template(0, 4), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    (rig, session, sandbox)
}

/// The same, with the files in memory and the sandbox frozen on request.
fn at_rest_in_memory() -> (Rig, SessionId, SandboxId) {
    let mut rig = Rig::with_pool(template(0, 4), DOCKER);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    rig.ask_freeze(sandbox);
    rig.run();
    assert!(rig.frozen(sandbox));
    (rig, session, sandbox)
}

fn needs_guest() -> Outcome {
    Outcome::Failed(Failure { kind: FailureKind::NeedsGuest, detail: "an image".into() })
}

/// Whether the guest may be asked by the copies and saves in progress.
fn asks_guest(rig: &Rig) -> Vec<bool> {
    let of = |action: &Action| match action {
        Action::Persist { guest_awake, .. } | Action::CopyWorkspace { guest_awake, .. } => {
            Some(*guest_awake)
        }
        _ => None,
    };
    rig.effects.iter().filter_map(|effect| of(&effect.action)).collect()
}

fn published_frozen(rig: &Rig) -> Vec<bool> {
    let of = |event: &LifecycleEvent| match event {
        LifecycleEvent::SandboxFrozen { frozen, .. } => Some(*frozen),
        _ => None,
    };
    rig.published.iter().filter_map(of).collect()
}

#[test]
fn fork_parent_is_quiesced_while_it_is_copied_and_released() {
    let (mut rig, parent, sandbox) = on_host();
    let (fork, request) = rig.fork(parent);
    assert_eq!((rig.count(quiesce), rig.count(copy)), (1, 0), "nothing is copied before");
    rig.finish(quiesce, Outcome::Done);
    assert_eq!((asks_guest(&rig), rig.count(unquiesce)), (vec![false], 0));
    rig.finish(copy, Outcome::Done);
    assert_eq!(rig.answered(request), Reply::Forked { session: fork });
    rig.finish(unquiesce, Outcome::Done);
    assert!(rig.effects.is_empty() && !rig.frozen(sandbox));
    assert!(published_frozen(&rig).is_empty(), "it was no rest");
}

#[test]
fn a_copy_that_takes_longer_goes_on_while_its_parent_runs() {
    let (mut rig, parent, _) = on_host();
    let (fork, request) = rig.fork(parent);
    rig.pass(300);
    rig.finish(quiesce, Outcome::Done);
    rig.pass(699);
    assert_eq!(rig.count(unquiesce), 0);
    rig.pass(1);
    rig.finish(unquiesce, Outcome::Done);
    let (used, use_id) = rig.use_of(UseTarget::Session(parent), UseKind::Exec);
    rig.granted(used);
    rig.use_ended(use_id);
    assert_eq!(rig.count(copy), 1);
    rig.finish(copy, Outcome::Done);
    assert_eq!(rig.answered(request), Reply::Forked { session: fork });
    assert!(rig.effects.is_empty());
}

#[test]
fn caller_that_comes_during_a_quiesce_waits_and_is_served() {
    for late in [false, true] {
        let (mut rig, parent, sandbox) = on_host();
        rig.fork(parent);
        if late {
            rig.finish(quiesce, Outcome::Done);
        }
        let (used, _) = rig.use_of(UseTarget::Session(parent), UseKind::Read);
        let (by_id, _) = rig.use_of(UseTarget::Sandbox(sandbox), UseKind::Exec);
        let thawed = rig.ask_thaw(sandbox);
        let (turn, _) = rig.turn(parent);
        if !late {
            rig.finish(quiesce, Outcome::Done);
        }
        for request in [used, by_id, thawed, turn] {
            assert!(rig.pending(request), "it does not run");
        }
        rig.pass(1_000);
        rig.finish(unquiesce, Outcome::Done);
        rig.granted(used);
        rig.granted(by_id);
        assert_eq!(rig.answered(thawed), Reply::Frozen { frozen: false });
        rig.run();
        rig.session_ready(turn);
    }
}

#[test]
fn freeze_requested_during_a_quiesce_follows_it() {
    let (mut rig, parent, sandbox) = on_host();
    rig.fork(parent);
    let asked = rig.ask_freeze(sandbox);
    rig.finish(quiesce, Outcome::Done);
    rig.pass(1_000);
    assert!(rig.pending(asked) && rig.count(freeze) == 0);
    rig.finish(unquiesce, Outcome::Done);
    rig.finish(freeze, Outcome::Done);
    assert_eq!(rig.answered(asked), Reply::Frozen { frozen: true });
    assert!(rig.frozen(sandbox) && rig.count(copy) == 1, "the host reads them all the same");

    // A pause is one that no request waits for.
    let (mut rig, parent, sandbox) = on_host();
    rig.fork_begun(parent);
    let paused = rig.pause(parent);
    assert_eq!((rig.answered(paused), rig.count(freeze)), (Reply::Paused, 0));
    rig.finish(copy, Outcome::Done);
    rig.finish(unquiesce, Outcome::Done);
    rig.pass(1);
    rig.run();
    assert!(rig.frozen(sandbox) && rig.status(parent) == SessionStatus::Paused);

    // But a thaw that is requested after that is granted.
    let (mut rig, parent, sandbox) = on_host();
    rig.fork_begun(parent);
    rig.pause(parent);
    let thawed = rig.ask_thaw(sandbox);
    rig.run();
    assert_eq!(rig.answered(thawed), Reply::Frozen { frozen: false });
    rig.pass(1);
    assert!(!rig.frozen(sandbox) && rig.count(freeze) == 0);
}

#[test]
fn second_fork_joins_a_quiesce_and_does_not_extend_it() {
    let (mut rig, parent, _) = on_host();
    rig.fork_begun(parent);
    rig.pass(600);
    rig.fork(parent);
    assert_eq!((rig.count(copy), rig.count(quiesce)), (2, 0));
    rig.finish(copy, Outcome::Done);
    assert_eq!(rig.count(unquiesce), 0, "the other is being made");
    rig.pass(400);
    // A third one is made after the callers that waited were served.
    let (used, _) = rig.use_of(UseTarget::Session(parent), UseKind::Exec);
    rig.fork(parent);
    rig.finish(unquiesce, Outcome::Done);
    rig.granted(used);
    assert_eq!(rig.count(quiesce), 1, "a busy one is held still, too");
    rig.run();
    assert!(rig.effects.is_empty());
}

#[test]
fn sandbox_that_cannot_be_quiesced_is_copied_while_it_runs() {
    for outcome in [unsupported(), trouble(), Outcome::TimedOut] {
        let (mut rig, parent, sandbox) = on_host();
        rig.fork(parent);
        let sure = outcome == unsupported();
        rig.finish(quiesce, outcome);
        assert_eq!(rig.count(copy), 1);
        assert_eq!(rig.count(unquiesce), usize::from(!sure), "it may have happened");
        rig.run();
        assert!(!rig.frozen(sandbox));
        rig.whole_turn(parent);
        rig.fork(parent);
        assert_eq!(rig.count(quiesce), usize::from(!sure), "it is not tried in vain again");
    }
}

#[test]
fn quiesced_sandbox_that_cannot_be_released_is_tried_again_and_then_ended() {
    let (mut rig, parent, sandbox) = on_host();
    rig.fork_begun(parent);
    rig.finish(copy, Outcome::Done);
    rig.finish(unquiesce, trouble());
    rig.finish(unquiesce, Outcome::TimedOut);
    assert_eq!(rig.count(kill), 0);
    rig.finish(unquiesce, trouble());
    assert_eq!(rig.count(kill), 1);
    rig.run();
    assert_eq!(rig.end_cause(sandbox), EndCause::FreezeFailed);
    assert_ne!(rig.whole_turn(parent).sandbox, sandbox, "the session goes on");
}

#[test]
fn an_end_of_a_sandbox_does_not_wait_for_a_copy() {
    let ways: [fn(&mut Rig, SessionId, SandboxId); 4] = [
        |rig, _, sandbox| rig.dies(sandbox),
        |rig, _, sandbox| {
            rig.delete(sandbox);
        },
        |rig, session, _| {
            rig.end(session);
        },
        |rig, _, _| rig.shut_down(0),
    ];
    for (at, way) in ways.into_iter().enumerate() {
        for late in [false, true] {
            let (mut rig, parent, sandbox) = on_host();
            let (fork, request) = rig.fork(parent);
            if late {
                rig.finish(quiesce, Outcome::Done);
            }
            way(&mut rig, parent, sandbox);
            if rig.count(persist) > 0 {
                rig.finish(persist, Outcome::Done);
            }
            assert_eq!((rig.count(kill), rig.count(copy)), (1, 1), "way {at}, late: {late}");
            rig.killed();
            rig.finish(copy, Outcome::Done);
            assert_eq!(rig.answered(request), Reply::Forked { session: fork }, "way {at}");
            rig.run();
            assert_eq!(rig.count(unquiesce), 0, "nothing is left that could be still");
        }
    }
}

#[test]
fn an_abort_lets_a_sandbox_run_before_its_turn_is_stopped() {
    for late in [false, true] {
        let (mut rig, parent, sandbox) = on_host();
        let (_, turn): (_, TurnId) = rig.running_turn(parent);
        let (fork, request) = rig.fork(parent);
        if late {
            rig.finish(quiesce, Outcome::Done);
        }
        let aborted = rig.abort(parent, true);
        let order: Vec<_> = rig
            .effects
            .iter()
            .map(|effect| &effect.action)
            .filter(|action| unquiesce(action) || stop_turn(action))
            .map(unquiesce)
            .collect();
        assert_eq!((order, rig.count(copy)), (vec![true, false], 1), "late: {late}");
        rig.run();
        assert!(matches!(rig.answered(aborted), Reply::Aborted { sandbox_kept: true, .. }));
        assert_eq!(rig.answered(request), Reply::Forked { session: fork });
        assert_eq!(rig.turn_outcomes(turn).len(), 1);
        assert!(!rig.frozen(sandbox));
    }
}

#[test]
fn turn_that_is_being_stopped_ends_before_its_sandbox_is_quiesced() {
    for outcome in [Outcome::Done, Outcome::TimedOut] {
        let (mut rig, parent, _) = on_host();
        rig.running_turn(parent);
        rig.abort(parent, true);
        let (fork, request) = rig.fork(parent);
        assert_eq!((rig.count(stop_turn), rig.count(quiesce), rig.count(copy)), (1, 0, 0));
        let stopped = outcome == Outcome::Done;
        rig.finish(stop_turn, outcome);
        // A sandbox whose turn could not be stopped ends, and is not quiesced.
        assert_eq!(rig.count(quiesce), usize::from(stopped));
        rig.run();
        assert_eq!(rig.answered(request), Reply::Forked { session: fork });
    }
}

#[test]
fn frozen_guest_is_thawed_to_send_files_and_frozen_again() {
    let (mut rig, parent, sandbox) = at_rest_in_memory();
    let used = rig.alive(sandbox).last_used_at;
    let (fork, request) = rig.fork(parent);
    assert_eq!((rig.count(thaw), rig.count(copy)), (1, 0));
    rig.finish(thaw, Outcome::Done);
    assert_eq!(asks_guest(&rig), [true]);
    let asked = rig.ask_freeze(sandbox);
    assert!(rig.pending(asked), "it waits for the copy");
    rig.pass(500);
    rig.finish(copy, Outcome::Done);
    assert_eq!(rig.answered(request), Reply::Forked { session: fork });
    rig.pass(1);
    rig.run();
    assert!(rig.frozen(sandbox));
    assert_eq!(rig.answered(asked), Reply::Frozen { frozen: true });
    assert_eq!(published_frozen(&rig), [true, false, true]);
    assert_eq!(rig.alive(sandbox).last_used_at, used, "no caller used it");
}

#[test]
fn use_of_a_guest_thawed_for_its_files_keeps_it_thawed() {
    let ways: [fn(&mut Rig, SessionId, SandboxId); 3] = [
        |rig, session, _| rig.session_work(session),
        |rig, _, sandbox| {
            let thawed = rig.ask_thaw(sandbox);
            assert_eq!(rig.answered(thawed), Reply::Frozen { frozen: false });
        },
        |rig, _, sandbox| {
            rig.keep_awake(sandbox);
        },
    ];
    for way in ways {
        let (mut rig, parent, sandbox) = at_rest_in_memory();
        rig.fork(parent);
        rig.finish(thaw, Outcome::Done);
        way(&mut rig, parent, sandbox);
        rig.run();
        rig.pass(5_000);
        assert!(!rig.frozen(sandbox) && rig.count(freeze) == 0);
    }
}

#[test]
fn freeze_in_progress_ends_before_the_guest_is_asked() {
    let mut rig = Rig::with_pool(template(0, 4), DOCKER);
    let (parent, sandbox) = rig.waiting_session();
    rig.ask_freeze(sandbox);
    rig.finish(persist, Outcome::Done);
    assert_eq!(rig.count(freeze), 1);
    rig.fork(parent);
    assert_eq!(rig.count(copy), 0);
    rig.finish(freeze, trouble());
    rig.finish(thaw, Outcome::Done);
    assert_eq!(asks_guest(&rig), [true]);
}

#[test]
fn disk_that_only_its_guest_reads_is_learned_once() {
    let mut rig = Rig::with_pool(template(0, 4), ON_DISK);
    let (parent, sandbox) = rig.waiting_session();
    let (fork, request) = rig.fork_begun(parent);
    rig.finish(copy, needs_guest());
    assert_eq!((rig.count(unquiesce), rig.count(copy)), (1, 0), "it must run for that");
    rig.finish(unquiesce, Outcome::Done);
    assert_eq!(asks_guest(&rig), [true]);
    rig.finish(copy, Outcome::Done);
    assert_eq!(rig.answered(request), Reply::Forked { session: fork });
    // From now on that is known, and such a disk can be saved from outside.
    rig.ask_freeze(sandbox);
    rig.run();
    rig.fork(parent);
    assert_eq!((rig.count(quiesce), rig.count(thaw)), (0, 1));
    rig.run();
    rig.pass(1);
    rig.run();
    assert!(rig.frozen(sandbox));
    rig.stop(parent);
    assert_eq!((asks_guest(&rig), rig.count(thaw)), (vec![false], 0));
    // What does not answer to that either is trouble.
    let (other, _) = rig.waiting_session();
    rig.fork_begun(other);
    rig.finish(copy, needs_guest());
    rig.finish(unquiesce, Outcome::Done);
    let (_, again) = rig.fork(other);
    rig.finish(copy, needs_guest());
    rig.finish(copy, needs_guest());
    assert_eq!(rig.refused(again), ErrorCode::PersistFailed);
}

#[test]
fn a_save_by_the_guest_of_a_frozen_sandbox_thaws_it_first() {
    let mut rig = Rig::with_pool(template(0, 4), ON_DISK);
    let (session, sandbox) = rig.waiting_session();
    rig.ask_freeze(sandbox);
    rig.run();
    let stopped = rig.stop(session);
    assert_eq!(asks_guest(&rig), [false], "files that outlive it are saved as it is");
    // An operator took them away from where they were.
    rig.finish(persist, needs_guest());
    assert_eq!((rig.count(persist), rig.count(thaw)), (0, 1));
    rig.finish(thaw, Outcome::Done);
    assert_eq!(asks_guest(&rig), [true]);
    rig.finish(persist, trouble());
    assert_eq!(rig.refused(stopped), ErrorCode::PersistFailed);
    rig.pass(1);
    rig.finish(freeze, Outcome::Done);
    assert!(rig.frozen(sandbox), "it rests again");
}

#[test]
fn sandbox_found_dead_by_a_quiesce_or_thaw_is_replaced() {
    for late in [false, true] {
        let (mut rig, parent, sandbox) = on_host();
        let (fork, request) = rig.fork(parent);
        if late {
            rig.finish(quiesce, Outcome::Done);
            rig.finish(copy, Outcome::Done);
            rig.finish(unquiesce, gone());
        } else {
            rig.finish(quiesce, gone());
        }
        rig.run();
        assert_eq!(rig.answered(request), Reply::Forked { session: fork });
        assert_eq!(rig.end_cause(sandbox), EndCause::Crash);
    }
}

#[test]
fn restart_at_any_step_copies_again_and_leaves_nothing_quiesced() {
    for step in 0..4 {
        let (mut rig, parent, sandbox) = on_host();
        let (fork, _) = rig.fork(parent);
        if step > 0 {
            rig.finish(quiesce, Outcome::Done);
        }
        if step > 1 {
            rig.pass(1_000);
        }
        if step > 2 {
            rig.finish(unquiesce, Outcome::Done);
        }
        let alive: Vec<_> = rig.existing.iter().copied().collect();
        rig.restart(&alive);
        assert_eq!((rig.count(copy), rig.count(kill)), (1, 1), "step {step}");
        rig.run();
        assert!(rig.existing.is_empty(), "what may be still is removed");
        assert_eq!(rig.whole_turn(fork).lost(), None);
        assert_eq!(rig.whole_turn(parent).sandbox, sandbox, "its files stay its own");
    }
}

#[test]
fn process_time_stops_while_its_sandbox_is_quiesced() {
    let (mut rig, parent, sandbox) = on_host();
    rig.starts(sandbox, 1, Some(1_500));
    rig.fork_begun(parent);
    rig.pass(1_000);
    rig.finish(unquiesce, Outcome::Done);
    rig.finish(copy, Outcome::Done);
    rig.pass(1_499);
    assert!(rig.effects.is_empty(), "it has what it had left: {:?}", rig.effects);
    rig.pass(1);
    assert_eq!(rig.effects.len(), 1);
}

/// What a reader knows: where the files are in use, and whether their guest may be asked.
fn readable(rig: &Rig, request: RequestId) -> (bool, bool) {
    let answer = rig.answered(request);
    let Reply::Readable { instance, guest_awake } = answer else { panic!("{answer:?}") };
    (instance.is_some(), guest_awake)
}

fn read(rig: &mut Rig, session: SessionId) -> RequestId {
    let workspace = workspace_of(rig, session);
    rig.ask(|request| Event::ReadRequested { request, workspace })
}

fn read_over(rig: &mut Rig, request: RequestId, needs_guest: bool) {
    let _ = rig.apply(Event::ReadEnded { request, needs_guest });
}

#[test]
fn the_server_reads_files_when_their_sandbox_is_ready_and_lets_it_go_then() {
    // By the host, from a quiesced sandbox.
    let (mut rig, session, sandbox) = on_host();
    let request = read(&mut rig, session);
    assert!(rig.pending(request));
    rig.finish(quiesce, Outcome::Done);
    assert_eq!(readable(&rig, request), (true, false));
    read_over(&mut rig, request, false);
    rig.finish(unquiesce, Outcome::Done);
    // Again, and it finds out that it takes the guest.
    let request = read(&mut rig, session);
    rig.finish(quiesce, Outcome::Done);
    read_over(&mut rig, request, true);
    rig.finish(unquiesce, Outcome::Done);
    let request = read(&mut rig, session);
    assert_eq!(readable(&rig, request), (true, true));
    rig.pass(30_000);
    assert_eq!(rig.count(freeze), 0, "its guest gives the files out");
    read_over(&mut rig, request, false);
    rig.pass(1);
    rig.run();
    assert!(rig.frozen(sandbox));
    // Of what is cold, at once.
    rig.live(3_600_000);
    let request = read(&mut rig, session);
    assert_eq!(readable(&rig, request), (false, false));
    read_over(&mut rig, request, false);
}

#[test]
fn a_reader_that_gives_up_or_loses_its_sandbox_holds_nothing() {
    // It goes away before it is answered, by either of the two ways.
    for gone in [false, true] {
        let (mut rig, session, sandbox) = on_host();
        let request = read(&mut rig, session);
        if gone {
            rig.client_gone(request);
        } else {
            read_over(&mut rig, request, false);
        }
        rig.finish(quiesce, Outcome::Done);
        rig.finish(unquiesce, Outcome::Done);
        rig.live(3_600_000);
        assert_eq!(rig.state(sandbox), SandboxState::Cold);
    }
    // Its sandbox dies, and is removed from the books while it reads.
    let (mut rig, session, sandbox) = on_host();
    let waits = read(&mut rig, session);
    rig.dies(sandbox);
    assert_eq!(readable(&rig, waits), (false, false), "what is kept can be read");
    rig.end(session);
    rig.run();
    assert!(rig.store.doomed.is_empty() && rig.store.sandboxes.is_empty());
    read_over(&mut rig, waits, false);
    let (other, _) = rig.session();
    assert!(rig.kernel.session(other).is_some(), "its place is another's by now");
}
