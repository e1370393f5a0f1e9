#!/usr/bin/env bash
# Runs one fuzz target:  fuzz/run.sh TARGET [arguments of libFuzzer, such as -max_total_time=60]
#
# The stable compiler can instrument when it is asked to; nothing else here needs that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec </dev/null

if [ $# -lt 1 ]; then
    printf 'usage: fuzz/run.sh TARGET [arguments of libFuzzer]\n' >&2
    exit 2
fi
target="$1"
shift

export RUSTC_BOOTSTRAP=1
export RUSTFLAGS='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1'
cargo build --release --bin "$target" --target x86_64-unknown-linux-gnu

corpus="${FUZZ_CORPUS:-target/corpus}/$target"
mkdir -p "$corpus"
exec "${CARGO_TARGET_DIR:-target}/x86_64-unknown-linux-gnu/release/$target" -max_len=4096 "$corpus" "$@"
