//! What every store must do, as one suite. An implementation of [`crate::Store`] provides a
//! [`Subject`] and gets a test per case from [`crate::conformance_tests!`]. A case panics where the
//! contract is broken.

mod cancellation;
mod events;
pub mod fixtures;
mod lifecycle;
mod processes;
mod random;
mod records;
mod secrets;
mod tombstones;
mod turns;
mod usage;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{EventPage, EventQuery, Loaded, Store};
use crate::retention::Retention;

/// A store to test: a place that is empty at first.
pub trait Subject: Send + Sync {
    /// Opens what is in that place. The previous opener closed it, or counts as killed.
    fn open(&self, retention: Retention) -> Arc<dyn Store>;
}

/// Small enough that retention deletes something.
const RETENTION: Retention = Retention {
    events: 40,
    ends: 12,
    remembered_ends: 5,
    turns: 30,
    turns_age: Duration::from_secs(100),
    turn_bytes: 1_000_000,
    processes: 30,
    processes_age: Duration::from_secs(100),
    process_bytes: 1_000_000,
    database_bytes: 1 << 30,
};

type CaseFuture<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// How a case runs: most are one future, the random ones are many.
enum Case {
    Once(for<'a> fn(&'a dyn Subject) -> CaseFuture<'a>),
    Often(fn(&dyn Fn() -> Box<dyn Subject>)),
}

macro_rules! cases {
    ($($module:ident: $($case:ident)+;)+ [often] $($often:ident)+;) => {
        /// The names of all cases.
        pub const CASES: &[&str] = &[$($(stringify!($case),)+)+ $(stringify!($often),)+];

        fn find(name: &str) -> Option<Case> {
            match name {
                $($(stringify!($case) => Some(Case::Once(|on| Box::pin($module::$case(on)))),)+)+
                $(stringify!($often) => Some(Case::Often(random::$often)),)+
                _ => None,
            }
        }
    };
}

cases! {
    records: new_store_loads_nothing records_of_every_kind_are_stored records_have_their_last_state
        records_that_were_removed_are_gone records_put_and_removed_in_one_batch_never_existed
        records_replace_others;
    events: events_are_read_in_pages events_are_found_by_owner old_events_are_deleted
        events_of_one_key_do_not_displace_those_of_another events_of_a_key_have_a_limit
        batch_may_be_committed_again event_numbers_continue_after_a_restart;
    tombstones: tombstones_are_stored_and_the_latest_loaded tombstone_of_the_last_end_counts;
    lifecycle: keys_are_put_and_replaced documents_are_put_replaced_found_and_removed
        documents_of_a_batch_are_written_with_it_in_order
        documents_of_a_batch_may_be_committed_again
        closed_store_refuses_everything
        crash_loses_nothing_committed parallel_commits_all_arrive;
    turns: turns_are_stored_in_the_order_they_came turn_pieces_are_read_in_pages
        turn_ends_once turn_end_is_numbered_past_all_pieces
        turn_changes_of_unknown_turns_are_skipped turns_may_be_committed_again
        fork_begins_with_ended_turns fork_copies_a_bounded_number_of_turns
        fork_copies_a_bounded_size_of_turns
        turns_that_ended_first_are_deleted_first old_turns_are_deleted
        turns_above_the_byte_limit_are_taken_from_the_largest_key
        turns_above_the_count_limit_are_taken_from_the_largest_key
        turns_that_are_too_large_are_deleted forked_pieces_outlive_their_original_turn
        turn_pages_that_are_large_end_early;
    processes: processes_are_put_replaced_and_found processes_are_read_in_pages
        process_output_is_stored_beside_its_record processes_that_run_are_never_deleted
        processes_above_the_count_limit_are_deleted processes_above_the_byte_limit_are_deleted
        processes_that_are_too_old_are_deleted processes_may_be_committed_again;
    usage: usage_is_put_replaced_and_kept usage_survives_a_crash;
    secrets: secrets_are_put_replaced_found_and_removed secrets_of_a_revoked_key_are_gone_with_it
        secrets_survive_a_crash_at_any_step dropped_writes_of_secrets_are_whole_or_absent
        closed_store_refuses_secrets;
    cancellation: dropped_commits_are_whole_or_absent dropped_commits_never_come_later;
    [often] random_batches_agree_with_the_model;
}

/// Runs one case, on a fresh subject each time it needs one.
pub fn check(name: &str, fresh: &dyn Fn() -> Box<dyn Subject>) {
    match find(name) {
        None => panic!("there is no case {name}"),
        Some(Case::Once(case)) => block_on(case(&*fresh())),
        Some(Case::Often(case)) => case(fresh),
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(future)
}

async fn loaded(store: &dyn Store) -> Loaded {
    store.load().await.expect("loaded")
}

async fn page(store: &dyn Store, query: EventQuery) -> EventPage {
    store.events(&query).await.expect("events")
}

/// Closes in order and opens again.
async fn reopened(on: &dyn Subject, store: Arc<dyn Store>) -> Arc<dyn Store> {
    store.close().await.expect("closed");
    drop(store);
    on.open(RETENTION)
}

/// A test per case: `conformance_tests! { my_subject() }`, where each call gives a fresh one.
#[macro_export]
macro_rules! conformance_tests {
    ($subject:expr) => {
        $crate::conformance_tests! { @each [$subject]
            new_store_loads_nothing records_of_every_kind_are_stored records_have_their_last_state
            records_that_were_removed_are_gone records_put_and_removed_in_one_batch_never_existed
            records_replace_others
            events_are_read_in_pages events_are_found_by_owner old_events_are_deleted
        events_of_one_key_do_not_displace_those_of_another events_of_a_key_have_a_limit
            batch_may_be_committed_again event_numbers_continue_after_a_restart
            tombstones_are_stored_and_the_latest_loaded tombstone_of_the_last_end_counts
            keys_are_put_and_replaced documents_are_put_replaced_found_and_removed
            documents_of_a_batch_are_written_with_it_in_order
            documents_of_a_batch_may_be_committed_again
            closed_store_refuses_everything
            crash_loses_nothing_committed parallel_commits_all_arrive
            turns_are_stored_in_the_order_they_came turn_pieces_are_read_in_pages
            turn_ends_once turn_end_is_numbered_past_all_pieces
            turn_changes_of_unknown_turns_are_skipped turns_may_be_committed_again
            fork_begins_with_ended_turns fork_copies_a_bounded_number_of_turns
            fork_copies_a_bounded_size_of_turns
            turns_that_ended_first_are_deleted_first old_turns_are_deleted
            turns_above_the_byte_limit_are_taken_from_the_largest_key
            turns_above_the_count_limit_are_taken_from_the_largest_key
            turns_that_are_too_large_are_deleted forked_pieces_outlive_their_original_turn
            turn_pages_that_are_large_end_early
            processes_are_put_replaced_and_found processes_are_read_in_pages
            process_output_is_stored_beside_its_record processes_that_run_are_never_deleted
            processes_above_the_count_limit_are_deleted processes_above_the_byte_limit_are_deleted
        processes_that_are_too_old_are_deleted processes_may_be_committed_again
            usage_is_put_replaced_and_kept usage_survives_a_crash
            secrets_are_put_replaced_found_and_removed secrets_of_a_revoked_key_are_gone_with_it
            secrets_survive_a_crash_at_any_step dropped_writes_of_secrets_are_whole_or_absent
            closed_store_refuses_secrets
            dropped_commits_are_whole_or_absent dropped_commits_never_come_later
            random_batches_agree_with_the_model
        }
    };
    (@each [$subject:expr] $($case:ident)+) => {
        $(
            #[test]
            fn $case() {
                $crate::conformance::check(stringify!($case), &|| Box::new($subject));
            }
        )+

        #[test]
        fn no_case_is_forgotten() {
            assert_eq!($crate::conformance::CASES, &[$(stringify!($case),)+]);
        }
    };
}
