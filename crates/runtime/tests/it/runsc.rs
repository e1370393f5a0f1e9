//! Sandboxes in containers of gVisor keep every promise.

use crate::oci::subject;
use runtime::oci::Program;

runtime::conformance_tests! { #[tokio::test(flavor = "multi_thread", worker_threads = 2)] subject(Program::Runsc) }
