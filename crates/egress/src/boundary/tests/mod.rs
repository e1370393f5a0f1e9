//! Tests of the boundary, between clients in this process and real hosts on loopback.

mod certificates;
mod connections;
mod redaction;
mod replacing;
mod support;
mod versions;
