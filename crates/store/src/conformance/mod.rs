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
mod tombstones;
mod turns;

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
    records: nothing_is_loaded_at_first every_kind_of_record_is_kept the_last_state_counts
        what_was_removed_is_gone what_came_and_went_in_one_batch_was_never_there
        records_take_the_place_of_others;
    events: events_are_read_in_pages events_are_found_by_whose_they_are old_events_are_forgotten
        a_batch_may_be_given_again numbers_go_on_after_a_restart;
    tombstones: the_latest_ends_are_loaded_and_more_are_kept the_last_end_of_a_sandbox_counts;
    lifecycle: keys_are_put_and_replaced documents_are_put_replaced_found_and_removed
        documents_of_a_batch_are_written_with_it_in_order documents_of_a_batch_may_be_given_again
        a_closed_store_refuses_everything
        nothing_committed_is_lost_by_a_crash parallel_commits_all_arrive;
    turns: turns_are_kept_in_the_order_they_came what_a_turn_gave_is_read_in_pages
        a_turn_ends_once the_end_is_numbered_past_what_may_have_been_told
        changes_of_turns_that_are_not_there_are_passed_over turns_may_be_given_again
        a_fork_begins_with_what_is_over a_fork_copies_so_many_and_no_more
        a_fork_copies_so_much_and_no_more
        turns_that_ended_first_are_forgotten_first old_turns_are_forgotten
        what_is_too_much_is_taken_from_whoever_has_most
        what_is_too_many_is_taken_from_whoever_has_most
        turns_that_say_too_much_are_forgotten what_a_fork_shows_outlives_where_it_came_from
        large_pages_end_early;
    processes: processes_are_put_replaced_and_found processes_are_read_in_pages
        what_a_process_wrote_is_kept_beside_it processes_that_are_not_over_are_never_forgotten
        processes_that_are_too_many_go processes_that_are_too_much_go
        processes_that_are_too_old_go processes_may_be_given_again;
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
            nothing_is_loaded_at_first every_kind_of_record_is_kept the_last_state_counts
            what_was_removed_is_gone what_came_and_went_in_one_batch_was_never_there
            records_take_the_place_of_others
            events_are_read_in_pages events_are_found_by_whose_they_are old_events_are_forgotten
            a_batch_may_be_given_again numbers_go_on_after_a_restart
            the_latest_ends_are_loaded_and_more_are_kept the_last_end_of_a_sandbox_counts
            keys_are_put_and_replaced documents_are_put_replaced_found_and_removed
            documents_of_a_batch_are_written_with_it_in_order
            documents_of_a_batch_may_be_given_again
            a_closed_store_refuses_everything
            nothing_committed_is_lost_by_a_crash parallel_commits_all_arrive
            turns_are_kept_in_the_order_they_came what_a_turn_gave_is_read_in_pages
            a_turn_ends_once the_end_is_numbered_past_what_may_have_been_told
            changes_of_turns_that_are_not_there_are_passed_over turns_may_be_given_again
            a_fork_begins_with_what_is_over a_fork_copies_so_many_and_no_more
            a_fork_copies_so_much_and_no_more
            turns_that_ended_first_are_forgotten_first old_turns_are_forgotten
            what_is_too_much_is_taken_from_whoever_has_most
            what_is_too_many_is_taken_from_whoever_has_most
            turns_that_say_too_much_are_forgotten what_a_fork_shows_outlives_where_it_came_from
            large_pages_end_early
            processes_are_put_replaced_and_found processes_are_read_in_pages
            what_a_process_wrote_is_kept_beside_it processes_that_are_not_over_are_never_forgotten
            processes_that_are_too_many_go processes_that_are_too_much_go
        processes_that_are_too_old_go processes_may_be_given_again
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
