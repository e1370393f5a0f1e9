#!/usr/bin/env bash
# Feeds made-up bytes to everything that reads bytes from the other side of a boundary.
#
#   fuzz/run.sh                    every target for SECONDS_EACH (600), and docs/reports/fuzzing.md
#   fuzz/run.sh TARGET [ARGUMENT]  one target, with arguments of libFuzzer, such as -max_total_time=60
#   fuzz/run.sh --minimise         makes the corpora as small as they can be
#
#   AT_ONCE=1       how many targets run at the same time
#   TARGETS='...'   only these; the report keeps what it says of the others
#
# What finds something new is kept in fuzz/corpus/TARGET. The stable compiler can instrument when it
# is asked to; nothing else here needs that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec </dev/null

readonly ALL=(endpoint messages harness plan archive unpack paths dns greeting http_head socks control headers)
read -ra targets <<<"${TARGETS:-${ALL[*]}}"
readonly SECONDS_EACH="${SECONDS_EACH:-600}"
readonly AT_ONCE="${AT_ONCE:-1}"
# Together the committed inputs stay below a megabyte, so each is small.
readonly INPUT_BYTES=4096
readonly INPUTS_AT_MOST=48
readonly BUILT="${CARGO_TARGET_DIR:-target}/x86_64-unknown-linux-gnu/release"

fail() {
    printf 'fuzz/run.sh: %s\n' "$1" >&2
    exit 1
}

build() {
    local features=()
    if [ "$1" = archive ]; then features=(--features server); fi
    RUSTC_BOOTSTRAP=1 \
        RUSTFLAGS='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1' \
        cargo build --quiet --release --locked --bin "$1" "${features[@]}" --target x86_64-unknown-linux-gnu
}

# A target that works with real files gets a place where it can harm nothing, and ends with it. What it
# reads and writes for libFuzzer has the same name inside.
in_a_place_of_its_own() {
    [ "$(id -u)" = 0 ] || fail 'this target needs root, to give it up'
    # The words are those of the shell inside.
    # shellcheck disable=SC2016
    FUZZ_ROOT="$1" unshare --mount --pid --fork --mount-proc --propagation private bash -euc '
        mount -t tmpfs -o size=256m,mode=755 tmpfs "$FUZZ_ROOT"
        mkdir "$FUZZ_ROOT"/{workspace,proc,dev}
        mount -t proc proc "$FUZZ_ROOT/proc"
        touch "$FUZZ_ROOT/dev/null"
        mount --bind /dev/null "$FUZZ_ROOT/dev/null"
        echo "only root may read this" >"$FUZZ_ROOT/secret"
        chmod 600 "$FUZZ_ROOT/secret"
        chown 65534:65534 "$FUZZ_ROOT/workspace"
        for _ in corpus found smaller; do
            mkdir -p "$FUZZ_ROOT$1"
            mount --bind "$1" "$FUZZ_ROOT$1"
            shift
        done
        exec "$@"
    ' place "${@:2}"
}

# Runs a target on its corpus, or on what is to become of it.
run() {
    local target="$1" corpus="$PWD/corpus/$1" found="$PWD/found" smaller="$place-smaller" start=()
    shift
    mkdir -p "$corpus" "$smaller" "$place/$target" "$found"
    if [ "$target" = paths ] || [ "$target" = unpack ]; then
        start=(in_a_place_of_its_own "$place/$target" "$corpus" "$found" "$smaller")
    fi
    # What it notes down for itself lies where it can be found from inside.
    TMPDIR="$smaller" "${start[@]}" "$(realpath "$BUILT/$target")" -max_len="$INPUT_BYTES" -timeout=20 \
        -rss_limit_mb=4096 -artifact_prefix="$found/" "${@/SMALLER/$smaller}" "$corpus"
}

# Leaves of a corpus what is needed for all that it reaches, and of that not more than others get.
minimise() {
    local target="$1" smaller="$place-smaller"
    rm -rf "$smaller"
    run "$target" -set_cover_merge=1 SMALLER >"$place-log" 2>&1 || { tail -n 20 "$place-log"; return 1; }
    # They were written in the order of how much each of them adds.
    find "$smaller" -type f ! -name 'libFuzzer*' -printf '%T@ %p\n' | sort -n | cut -d' ' -f2- |
        awk -v most="$INPUTS_AT_MOST" 'NR <= most' >"$place-kept"
    find "corpus/$target" -type f -delete
    while read -r input; do cp "$input" "corpus/$target/"; done <"$place-kept"
    echo "$target: $(find "corpus/$target" -type f | wc -l) inputs"
}

describe() {
    case "$1" in
        endpoint) echo 'frames, in any pieces, on both sides of a connection' ;;
        messages) echo 'messages between host and guest, host and launcher' ;;
        harness) echo 'lines of a harness, in any pieces, in both languages' ;;
        plan) echo 'configurations and specs, to the plan that is made for them' ;;
        archive) echo 'archives uploaded to a server' ;;
        unpack) echo 'layers of images' ;;
        paths) echo 'paths and links, to the guest and its files' ;;
        dns) echo 'questions for names' ;;
        greeting) echo 'TLS greetings, in any pieces' ;;
        http_head) echo 'HTTP requests, in any pieces' ;;
        socks) echo 'what programs ask a proxy for, in HTTP and SOCKS' ;;
        control) echo 'messages between server and egress process' ;;
        headers) echo 'headers, through the boundary and back' ;;
    esac
}

# Runs one target for a while, and writes down what came of it.
run_one() {
    local target="$1" log="$place-$1-log" found=none before=$SECONDS executed inputs
    run "$target" -max_total_time="$SECONDS_EACH" -print_final_stats=1 >"$log" 2>&1 || found='**some**'
    executed="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
    inputs="$(find "corpus/$target" -type f | wc -l)"
    if [ "$found" != none ]; then tail -n 40 "$log"; fi
    echo "| \`$target\` | $(describe "$target") | $((SECONDS - before)) | $executed | $inputs | $found |" |
        tee "$place-$target-row"
}

run_all() {
    local target report=../docs/reports/fuzzing.md
    for target in "${targets[@]}"; do build "$target"; done
    for target in "${targets[@]}"; do
        while [ "$(jobs -rp | wc -l)" -ge "$AT_ONCE" ]; do sleep 1; done
        run_one "$target" &
    done
    wait
    for target in "${ALL[@]}"; do
        if [ -e "$place-$target-row" ]; then
            cat "$place-$target-row"
        else
            grep -F "| \`$target\` |" "$report" || true
        fi
    done >"$place-rows"
    {
        # shellcheck disable=SC2016
        printf '# Fuzzing\n\nWritten by `fuzz/run.sh` on %s at commit %s.\n\n' \
            "$(date -u +%Y-%m-%d)" "$(git rev-parse --short HEAD)"
        printf '| target | what is fed to what | seconds | runs | inputs that reach something new | findings |\n'
        printf '|---|---|---|---|---|---|\n'
        cat "$place-rows"
    } >"$report"
    ! grep -qF '**some**' "$report"
}

place="$(mktemp -d)"
trap 'rm -rf "$place" "$place"-*' EXIT
case "${1:-}" in
    '') run_all ;;
    --minimise) for target in "${targets[@]}"; do build "$target" && minimise "$target"; done ;;
    *)
        build "$1"
        run "$@"
        ;;
esac
