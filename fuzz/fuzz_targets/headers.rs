//! Whatever headers pass the boundary, a value is in its own header on the way out, and in none on the way
//! back.
#![no_main]

use egress::fuzzing::pass_headers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|lines: &[u8]| pass_headers(lines));
