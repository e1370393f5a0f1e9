//! Whatever question arrives is answered, refused or passed over: nothing panics, and an answer is
//! that to its question.
#![no_main]

use egress::fuzzing::answer_names;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| answer_names(bytes));
