//! Whatever packet arrives between the server and a process of the way out is a message or refused:
//! nothing panics, and a message stays what it is.
#![no_main]

use egress::fuzzing::read_control;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|packet: &[u8]| read_control(packet));
