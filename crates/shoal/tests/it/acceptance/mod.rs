//! What pools of containers elsewhere were found to break, held here: each test runs over native
//! sandboxes and again over Docker's containers, against the built server and through its API
//! alone. A machine without an engine says that Docker was skipped; in CI that fails.

/// Makes a test of each function for each runtime.
macro_rules! on_every_runtime {
    ($($test:ident),+ $(,)?) => {
        mod native {
            $(#[test]
            fn $test() {
                super::$test($crate::acceptance::stage::Kind::Native);
            })+
        }
        mod docker {
            $(#[test]
            fn $test() {
                super::$test($crate::acceptance::stage::Kind::Docker);
            })+
        }
    };
}

mod client_disconnects;
pub(crate) mod engine;
mod engine_gate;
mod forged_output;
mod host_mounts;
mod leftovers_between_uses;
pub(crate) mod machine;
mod sandbox_deaths;
mod selected_templates;
mod server_stop;
pub(crate) mod stage;
mod waiters;
