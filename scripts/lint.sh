#!/usr/bin/env bash
# Stands before the compiler of our own crates (RUSTC_WORKSPACE_WRAPPER): compiles with clippy, and a
# warning is an error. So one build serves clippy and the tests; `cargo clippy` alone would compile
# everything a second time.
exec clippy-driver "$@" -Dwarnings
