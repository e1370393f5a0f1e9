//! The conformance suite of runtimes. An implementation of [`crate::Runtime`] provides a
//! [`Subject`] and gets a test per case from [`crate::conformance_tests!`]. A case panics where the
//! contract is broken, and after each case nothing may be left.

mod cancellation;
mod channels;
mod claims;
mod deaths;
mod files;
mod inspection;
mod lifecycle;
mod links;
mod networks;
mod ports;
mod programs;
mod scale;
mod stage;
mod streams;
mod wipes;

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use model::{Template, WorkspaceId};

pub use self::stage::Stage;
#[cfg(test)]
pub(crate) use self::stage::cut;
use crate::contract::Runtime;
use crate::error::RuntimeError;
use guest_protocol::message::Command;

/// A runtime to be tested.
#[async_trait]
pub trait Subject: Send + Sync {
    /// A fresh one; or why there can be none here, and the case is skipped.
    async fn start(&self) -> Result<Arc<dyn Runtime>, String>;

    /// What its sandboxes are made from.
    fn template(&self) -> Template;

    /// A program that listens on a port and gives back what it is sent.
    fn echo_server(&self, port: u16) -> Command;

    /// A program that listens on a Unix socket, for its own user only, and gives back what it is
    /// sent.
    fn echo_socket(&self, path: &str) -> Command;

    /// A program that gives back on its channel what it is sent there, until the end.
    fn echo_channel(&self) -> Command;

    /// A new, empty workspace on disk, if there is such a thing.
    async fn make_workspace(&self) -> Option<WorkspaceId>;

    /// What exists of it outside of the runtime's own list. Nothing may, once it is shut down.
    fn remains(&self) -> Vec<String>;
}

/// How a case went that did not panic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The contract holds.
    Passed,
    /// It could not be tried.
    Skipped(String),
}

/// A case needs something the runtime does not have.
type CaseResult = Result<(), String>;
type CaseFuture<'a> = Pin<Box<dyn Future<Output = CaseResult> + Send + 'a>>;
type CaseRun = for<'a> fn(&'a Stage) -> CaseFuture<'a>;

macro_rules! cases {
    ($($module:ident: $($case:ident)+;)+) => {
        /// The names of all cases.
        pub const CASES: &[&str] = &[$($(stringify!($case),)+)+];

        fn find(name: &str) -> Option<CaseRun> {
            match name {
                $($(stringify!($case) => Some(|stage| Box::pin($module::$case(stage))),)+)+
                _ => None,
            }
        }
    };
}

cases! {
    lifecycle: launch_ready_list_kill launch_twice_is_refused kill_is_idempotent
        kill_ends_what_waits recreate_gives_a_fresh_sandbox freeze_stops_and_thaw_goes_on
        sync_flushes_the_workspace_of_a_frozen_sandbox shutdown_leaves_nothing
        many_launches_at_once reap_orphans_spares_the_living;
    programs: exit_codes_are_exact signals_are_exact output_is_separate
        missing_programs_are_reported
        output_over_the_limit_is_dropped programs_over_their_time_are_killed
        exec_ends_although_a_background_child_lives working_directory_and_shell;
    streams: input_reaches_the_program a_stream_goes_both_ways handles_signal_programs
        terminals_have_a_size closed_output_ends_the_writer;
    claims: environments_are_bound_late environments_are_bound_at_launch
        unresolved_secrets_are_refused workspaces_are_attached_late workspaces_outlive_sandboxes
        workspaces_have_other_names;
    files: files_are_written_and_read_back files_are_seen_by_programs
        directories_are_listed_in_pages files_are_moved_and_removed errors_of_files_have_codes
        abandoned_writes_leave_nothing large_files_are_streams;
    links: links_are_made_and_described links_are_followed_to_their_target links_replace_nothing
        links_are_removed_and_not_what_they_point_to errors_of_links_have_codes
        files_have_several_names permissions_are_changed;
    ports: connections_go_both_ways ports_are_listed port_without_a_listener_is_refused
        sockets_are_reached_by_path;
    inspection: files_are_found_in_order search_finds_texts file_changes_are_reported
        sockets_of_programs_are_listed dropped_inspections_leave_nothing;
    networks: networks_are_armed_changed_and_disarmed networks_of_dead_sandboxes_are_refused;
    scale: scale_file_is_counted_and_reported;
    channels: channels_go_both_ways channels_end_with_their_program
        channels_and_input_exclude_each_other;
    deaths: every_death_is_reported_once failed_launches_are_not_deaths;
    wipes: wiped_sandbox_is_like_a_new_one wipe_ends_every_program_of_the_use
        wipe_cuts_old_handles_off_from_the_next_use a_proof_fails_if_anything_is_left
        a_wipe_that_is_given_up_is_not_proven a_wipe_takes_the_network_away;
    cancellation: dropped_launches_leave_nothing dropped_execs_leave_nothing
        dropped_runs_leave_nothing
        dropped_claims_break_nothing dropped_file_calls_break_nothing dropped_kills_go_on
        dropped_freezes_break_nothing;
}

/// Runs one case on a fresh runtime.
pub async fn check(name: &str, subject: Arc<dyn Subject>) -> Outcome {
    let Some(case) = find(name) else { panic!("there is no case {name}") };
    let runtime = match subject.start().await {
        Ok(runtime) => runtime,
        Err(why) => return Outcome::Skipped(why),
    };
    let stage = Stage::new(Arc::clone(&subject), runtime);
    let result = case(&stage).await;
    stage.close().await;
    match result {
        Ok(()) => Outcome::Passed,
        Err(why) => Outcome::Skipped(why),
    }
}

/// Says loudly that something is not tested. In CI nothing is skipped.
#[expect(clippy::print_stdout, reason = "a reader of the test output must see it")]
pub fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{why}: in CI nothing may be skipped");
    println!("!!!! skipped: {why} !!!!");
}

#[track_caller]
fn code_of<T>(result: Result<T, RuntimeError>) -> crate::RuntimeErrorCode {
    match result {
        Ok(_) => panic!("this should have been refused"),
        Err(error) => error.code,
    }
}

/// A test per case: `conformance_tests! { #[tokio::test] my_subject() }`.
#[macro_export]
macro_rules! conformance_tests {
    ($(#[$attribute:meta])+ $subject:expr) => {
        $crate::conformance_tests! { @each $(#[$attribute])+ [$subject]
            launch_ready_list_kill launch_twice_is_refused kill_is_idempotent kill_ends_what_waits
            recreate_gives_a_fresh_sandbox freeze_stops_and_thaw_goes_on
            sync_flushes_the_workspace_of_a_frozen_sandbox shutdown_leaves_nothing
            many_launches_at_once reap_orphans_spares_the_living
            exit_codes_are_exact signals_are_exact output_is_separate missing_programs_are_reported
            output_over_the_limit_is_dropped programs_over_their_time_are_killed
            exec_ends_although_a_background_child_lives working_directory_and_shell
            input_reaches_the_program a_stream_goes_both_ways handles_signal_programs
            terminals_have_a_size closed_output_ends_the_writer
            environments_are_bound_late environments_are_bound_at_launch
            unresolved_secrets_are_refused workspaces_are_attached_late workspaces_outlive_sandboxes
            workspaces_have_other_names
            files_are_written_and_read_back files_are_seen_by_programs
            directories_are_listed_in_pages files_are_moved_and_removed errors_of_files_have_codes
            abandoned_writes_leave_nothing large_files_are_streams
            links_are_made_and_described links_are_followed_to_their_target links_replace_nothing
            links_are_removed_and_not_what_they_point_to errors_of_links_have_codes
            files_have_several_names permissions_are_changed
            connections_go_both_ways ports_are_listed port_without_a_listener_is_refused
            sockets_are_reached_by_path
            files_are_found_in_order search_finds_texts file_changes_are_reported
            sockets_of_programs_are_listed dropped_inspections_leave_nothing
            networks_are_armed_changed_and_disarmed networks_of_dead_sandboxes_are_refused
            scale_file_is_counted_and_reported
            channels_go_both_ways channels_end_with_their_program
            channels_and_input_exclude_each_other
            every_death_is_reported_once failed_launches_are_not_deaths
            wiped_sandbox_is_like_a_new_one wipe_ends_every_program_of_the_use
            wipe_cuts_old_handles_off_from_the_next_use a_proof_fails_if_anything_is_left
            a_wipe_that_is_given_up_is_not_proven a_wipe_takes_the_network_away
            dropped_launches_leave_nothing dropped_execs_leave_nothing dropped_runs_leave_nothing
            dropped_claims_break_nothing dropped_file_calls_break_nothing dropped_kills_go_on
            dropped_freezes_break_nothing
        }
    };
    (@each #[$first:meta] [$subject:expr] $($case:ident)+) => {
        $(
            #[$first]
            async fn $case() {
                let outcome = $crate::conformance::check(stringify!($case), $subject).await;
                if let $crate::conformance::Outcome::Skipped(why) = outcome {
                    $crate::conformance::skip(&why);
                }
            }
        )+

        #[test]
        fn no_case_is_forgotten() {
            assert_eq!($crate::conformance::CASES, &[$(stringify!($case),)+]);
        }
    };
}
