//! Every deliberate bug of the kernel is caught by the simulator, and by the right promise.

use std::sync::atomic::AtomicU64;

use sim::Flaw;
use sim::checks::Promise;
use sim::choices::Choices;
use sim::run::{Plan, run, run_many};
use sim::shrink::{replay_plan, shrink};

const MOST_SEEDS: u64 = 400;

const fn plan(flaw: Flaw) -> Plan {
    // Few worlds show it, and late.
    let steps = if matches!(flaw, Flaw::EvictionIgnoresShares) { 2_000 } else { 1_000 };
    Plan { steps, flaw: Some(flaw), rest: true, trace: false }
}

/// The promises that a flaw may break first. A new flaw does not compile without its line here.
const fn broken_by(flaw: Flaw) -> &'static [Promise] {
    match flaw {
        Flaw::NoReservation => &[Promise::LiveLimit, Promise::MemoryLimit],
        Flaw::LifoWaiters => &[Promise::FirstServed, Promise::FairShare],
        Flaw::QueueIgnoresShares | Flaw::EvictionIgnoresShares => &[Promise::FairShare],
        Flaw::KeyLimitIgnored => &[Promise::KeyLimitKept],
        Flaw::SessionDeadlineIgnored | Flaw::UseCountsAsIdle => &[Promise::SessionDeadlineKept],
        Flaw::MarginIgnored => &[Promise::Margin],
        Flaw::SweepIgnoresHolds => &[Promise::HoldsKept, Promise::RunningSafe],
        // One that is put back as it is may also be put back frozen, or with its harness held.
        Flaw::WipeSkipped => &[Promise::Clean, Promise::EndJustified, Promise::OneSpeaker],
        Flaw::TerminatedTwice => &[Promise::TerminatedOnce],
        Flaw::VictimNotVoided | Flaw::RunningEvicted => &[Promise::RunningSafe],
        // A count below zero is a panic where overflows are checked.
        Flaw::SlotFreedTwice => {
            &[Promise::SlotLimit, Promise::PoolsFill, Promise::AuditPasses, Promise::NoPanic]
        }
        Flaw::UnwrittenLaunch => &[Promise::LaunchWritten],
        Flaw::ReturnForgetsWaiters => &[Promise::NoWaitInVain],
        Flaw::GoneClientLeaks => &[Promise::AuditPasses, Promise::PoolsFill, Promise::OneAnswer],
        Flaw::PersistSkipped | Flaw::FailedPersistKills => &[Promise::FilesSaved],
        Flaw::SaveCoversLater => &[Promise::FilesSaved, Promise::FilesKept],
        Flaw::KillNotRetried => &[Promise::NothingForgotten, Promise::TerminatedOnce],
        Flaw::LateCompletionTrusted => &[Promise::LateIsHarmless, Promise::NothingForgotten],
        Flaw::TwoSandboxesPerSession => &[Promise::OneSandboxEach],
        Flaw::FrozenNotThawed => &[Promise::FrozenUnused],
        // Where the kernel's own assertions are compiled in, one of them may fail first.
        Flaw::LeaseSurvivesRestart => {
            &[Promise::LeaseHonoured, Promise::IdNeverReused, Promise::NoPanic]
        }
        Flaw::DeadlineIgnored => &[Promise::DeadlineKept],
        Flaw::SilentStateLoss | Flaw::LossForgotten | Flaw::HalfRestoredCopied => {
            &[Promise::FilesKept]
        }
        Flaw::StopTakesLaterProcesses | Flaw::PauseDropsHold => {
            &[Promise::HoldsExact, Promise::HoldsKept]
        }
        Flaw::TimeRunsInSleep => &[Promise::TimeGiven],
        // The next owner of the id may be another key, or hear of the end of the one before.
        Flaw::IdReused => &[Promise::IdNeverReused, Promise::TenantKept, Promise::EndNotified],
        Flaw::MruEviction => &[Promise::LeastRecentFirst],
        Flaw::StaleProofTrusted => &[Promise::RecentlyProven],
        Flaw::DeathIgnored => &[Promise::DeathHeard],
        Flaw::TenantRemains => &[Promise::TenantKept],
        Flaw::DiskLimitIgnored => &[Promise::DiskLimitKept],
        Flaw::FullDiskIgnored => &[Promise::DiskSpared],
        Flaw::WantedGivenUp => &[Promise::ColdUnwanted],
        Flaw::HarnessShared => &[Promise::OneSpeaker],
        Flaw::FrozenUnsaved => &[Promise::FrozenSaved],
        Flaw::LimitDeletesFiles => &[Promise::LimitsSpareFiles],
        Flaw::EndedKeepsFiles => &[Promise::EndedGone],
        Flaw::RestartInEndedSandbox => &[Promise::RestartsInPlace],
        Flaw::RestartsUncounted => &[Promise::RestartsBounded],
        Flaw::StopForgotten => &[Promise::StopIsFinal],
        Flaw::ProcessEndsTwice => &[Promise::ProcessesEndOnce],
        Flaw::TurnStartPublishedLate => &[Promise::TurnStartPublished],
        Flaw::DeathUnreported => &[Promise::EndNotified, Promise::UsesEndOnce],
        Flaw::WaitingHidden => &[Promise::StatesPublished],
        Flaw::QuiescedTooLong => &[Promise::QuiescedBriefly],
        Flaw::LeftQuiesced => {
            &[Promise::QuiescedBriefly, Promise::FrozenUnused, Promise::GuestAwake]
        }
        Flaw::QuiescedMidTurn => &[Promise::QuiescedBetween],
        Flaw::FrozenGuestAsked => &[Promise::GuestAwake],
        Flaw::QuiesceRefuses => &[Promise::CopyCostsNoUse],
        // The idle sweep may come before the freeze.
        Flaw::ProcessReadsIgnored => {
            &[Promise::FrozenQuietly, Promise::PolledRuns, Promise::EndJustified]
        }
        // Forward a lease ends early, back it ends late.
        Flaw::WallStepBelieved => {
            &[Promise::EndJustified, Promise::LeaseEnds, Promise::LeaseHonoured]
        }
    }
}

/// The first seed to play. A flaw that few worlds show begins near one that does, so that its test is
/// short.
const fn first_seed(flaw: Flaw) -> u64 {
    if matches!(flaw, Flaw::EvictionIgnoresShares) { 430 } else { 0 }
}

#[track_caller]
fn is_caught(flaw: Flaw) {
    let total = run_many(first_seed(flaw), MOST_SEEDS, 2, plan(flaw), &AtomicU64::new(0));
    let (seed, found) = total.first.expect("a broken kernel is noticed");
    let (_, violation) = found.violation.expect("a promise was broken");
    let sound = run(Choices::seeded(seed), Plan { flaw: None, ..plan(flaw) });
    assert!(
        sound.violation.is_none(),
        "seed {seed} is broken without a flaw: {:?}",
        sound.violation
    );
    let expected = broken_by(flaw);
    assert!(
        expected.contains(&violation.promise),
        "{flaw:?} broke {violation} in seed {seed}, not one of {expected:?}",
    );
}

macro_rules! flaw_tests {
    ($(fn $test:ident: $flaw:ident;)+) => {
        $(#[test]
        fn $test() {
            is_caught(Flaw::$flaw);
        })+

        #[test]
        fn every_flaw_has_its_test() {
            let tested = [$(Flaw::$flaw,)+];
            for flaw in Flaw::ALL {
                assert!(tested.contains(flaw), "{flaw:?} has no test");
            }
        }
    };
}

flaw_tests! {
    fn flaw_no_reservation_is_caught: NoReservation;
    fn flaw_lifo_waiters_is_caught: LifoWaiters;
    fn flaw_margin_ignored_is_caught: MarginIgnored;
    fn flaw_sweep_ignores_holds_is_caught: SweepIgnoresHolds;
    fn flaw_wipe_skipped_is_caught: WipeSkipped;
    fn flaw_terminated_twice_is_caught: TerminatedTwice;
    fn flaw_victim_not_voided_is_caught: VictimNotVoided;
    fn flaw_slot_freed_twice_is_caught: SlotFreedTwice;
    fn flaw_unwritten_launch_is_caught: UnwrittenLaunch;
    fn flaw_return_forgets_waiters_is_caught: ReturnForgetsWaiters;
    fn flaw_gone_client_leaks_is_caught: GoneClientLeaks;
    fn flaw_persist_skipped_is_caught: PersistSkipped;
    fn flaw_kill_not_retried_is_caught: KillNotRetried;
    fn flaw_late_completion_trusted_is_caught: LateCompletionTrusted;
    fn flaw_two_sandboxes_per_session_is_caught: TwoSandboxesPerSession;
    fn flaw_frozen_not_thawed_is_caught: FrozenNotThawed;
    fn flaw_running_evicted_is_caught: RunningEvicted;
    fn flaw_lease_survives_restart_is_caught: LeaseSurvivesRestart;
    fn flaw_deadline_ignored_is_caught: DeadlineIgnored;
    fn flaw_silent_state_loss_is_caught: SilentStateLoss;
    fn flaw_stop_takes_later_processes_is_caught: StopTakesLaterProcesses;
    fn flaw_time_runs_in_sleep_is_caught: TimeRunsInSleep;
    fn flaw_id_reused_is_caught: IdReused;
    fn flaw_mru_eviction_is_caught: MruEviction;
    fn flaw_failed_persist_kills_is_caught: FailedPersistKills;
    fn flaw_stale_proof_trusted_is_caught: StaleProofTrusted;
    fn flaw_death_ignored_is_caught: DeathIgnored;
    fn flaw_tenant_remains_is_caught: TenantRemains;
    fn flaw_disk_limit_ignored_is_caught: DiskLimitIgnored;
    fn flaw_full_disk_ignored_is_caught: FullDiskIgnored;
    fn flaw_wanted_given_up_is_caught: WantedGivenUp;
    fn flaw_harness_shared_is_caught: HarnessShared;
    fn flaw_save_covers_later_is_caught: SaveCoversLater;
    fn flaw_frozen_unsaved_is_caught: FrozenUnsaved;
    fn flaw_limit_deletes_files_is_caught: LimitDeletesFiles;
    fn flaw_ended_keeps_files_is_caught: EndedKeepsFiles;
    fn flaw_loss_forgotten_is_caught: LossForgotten;
    fn flaw_half_restored_copied_is_caught: HalfRestoredCopied;
    fn flaw_turn_start_published_late_is_caught: TurnStartPublishedLate;
    fn flaw_death_unreported_is_caught: DeathUnreported;
    fn flaw_waiting_hidden_is_caught: WaitingHidden;
    fn flaw_quiesced_too_long_is_caught: QuiescedTooLong;
    fn flaw_left_quiesced_is_caught: LeftQuiesced;
    fn flaw_quiesced_mid_turn_is_caught: QuiescedMidTurn;
    fn flaw_frozen_guest_asked_is_caught: FrozenGuestAsked;
    fn flaw_quiesce_refuses_is_caught: QuiesceRefuses;
    fn flaw_process_reads_ignored_is_caught: ProcessReadsIgnored;
    fn flaw_queue_ignores_shares_is_caught: QueueIgnoresShares;
    fn flaw_eviction_ignores_shares_is_caught: EvictionIgnoresShares;
    fn flaw_key_limit_ignored_is_caught: KeyLimitIgnored;
    fn flaw_session_deadline_ignored_is_caught: SessionDeadlineIgnored;
    fn flaw_use_counts_as_idle_is_caught: UseCountsAsIdle;
    fn flaw_wall_step_believed_is_caught: WallStepBelieved;
    fn flaw_restart_in_ended_sandbox_is_caught: RestartInEndedSandbox;
    fn flaw_restarts_uncounted_is_caught: RestartsUncounted;
    fn flaw_stop_forgotten_is_caught: StopForgotten;
    fn flaw_process_ends_twice_is_caught: ProcessEndsTwice;
    fn flaw_pause_drops_hold_is_caught: PauseDropsHold;
}

#[test]
fn failing_run_is_shortened() {
    let plan = plan(Flaw::TerminatedTwice);
    let total = run_many(0, MOST_SEEDS, 2, plan, &AtomicU64::new(0));
    let (_, found) = total.first.expect("a broken kernel is noticed");
    let (step, violation) = found.violation.clone().expect("a promise was broken");
    let best = shrink(&found, violation.promise, plan, 300);
    assert!(best.len() < found.drawn.len(), "{} of {}", best.len(), found.drawn.len());
    let again = replay_plan(&best, step > plan.steps, plan);
    let replayed = run(Choices::listed(best), again);
    let (_, same) = replayed.violation.expect("the short run breaks the same promise");
    assert_eq!(same.promise, violation.promise);
}
