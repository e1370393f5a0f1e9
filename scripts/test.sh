#!/usr/bin/env bash
# Every check of this repository, the same here and in CI. Stops at the first one that fails.
#
#   SIM_SEEDS=3000  how many worlds the simulator plays
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Nothing here asks questions, and stdin may be closed.
exec </dev/null

readonly NEXTEST_VERSION=0.9.143
readonly DENY_VERSION=0.20.2
readonly SEEDS="${SIM_SEEDS:-3000}"

# CI builds once: what the compiler would keep for the next build is of no use, nor for a debugger.
if [ "${CI:-}" = true ]; then export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0; fi

# A test that returns an error is explained by its message; a panic keeps its backtrace.
export RUST_LIB_BACKTRACE=0

work="$(mktemp -d)"
step='start'
step_began="$SECONDS"
step_cpu_s=0
passed=()
skipped=()

finish() {
    local status=$?
    # What was started beside may not be over.
    for job in ${containers:-} ${deny:-} ${sim:-}; do wait "$job" 2>/dev/null || true; done
    scripts/containers.sh stop "$work/containers" || true
    rm -rf "$work"
    if [ "$status" -ne 0 ]; then printf '\nFAILED in: %s\n' "$step" >&2; fi
}
trap finish EXIT

# took SECONDS WHAT: notes how long a part took, for the list at the end.
took() {
    printf '%6d s  %s\n' "$1" "$2" >>"$work/took"
}
# Leaves in cpu_s the CPU seconds that all commands so far have used.
count_cpu() {
    times >"$work/times"
    cpu_s="$(sed -n 2p "$work/times" | tr 'ms' '  ' | awk '{ print int($1 * 60 + $2 + $3 * 60 + $4) }')"
}
heading() {
    count_cpu
    took "$((SECONDS - step_began))" "$step (CPU: $((cpu_s - step_cpu_s)) s)"
    step="$1"
    step_began="$SECONDS"
    step_cpu_s="$cpu_s"
    printf '\n== %s\n' "$step"
}
fail() {
    printf 'test.sh: %s\n' "$1" >&2
    exit 1
}

# Debian packages are installed in CI only: on a developer's machine that is not ours to do.
need_command() {
    local command="$1" package="$2"
    if command -v "$command" >/dev/null; then return; fi
    if [ "${CI:-}" != true ] || ! command -v apt-get >/dev/null; then
        fail "\`$command\` is missing: install it (Debian: apt-get install $package)"
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # One word per package is meant.
    # shellcheck disable=SC2086
    apt-get install -qq -y --no-install-recommends $package >/dev/null
}

# Programs that are tried inside sandboxes are those of /usr, whatever else the path finds.
need_program() {
    if [ -x "/usr/bin/$1" ] || [ -x "/usr/sbin/$1" ]; then return; fi
    if [ "${CI:-}" != true ] || ! command -v apt-get >/dev/null; then
        echo "no /usr/bin/$1: tests that need it say that they are skipped"
        return
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends "$2" >/dev/null
}

need_component() {
    cargo "$1" --version >/dev/null 2>&1 || fail "\`cargo $1\` is missing: rustup component add $2"
}

need_tool() {
    local name="$1" version="$2" through="${3:-}"
    if ! cargo "$name" --version >/dev/null 2>&1; then
        echo "installing cargo-$name $version (once, takes minutes)"
        # Unoptimised: the tool runs for seconds, optimising it takes many minutes.
        # A command to run it through, if there is one.
        # shellcheck disable=SC2086
        $through cargo install --locked --quiet --debug "cargo-$name" --version "$version"
    fi
    echo "cargo-$name: $(cargo "$name" --version | head -n 1)"
}

# The two that run beside the tests. Clippy, which stands before the compiler, leaves out what makes a release
# build fast.
install_deny() {
    unset RUSTC_WORKSPACE_WRAPPER
    need_tool deny "$DENY_VERSION" scripts/background.sh
}
play_worlds() {
    unset RUSTC_WORKSPACE_WRAPPER
    local play=(scripts/background.sh cargo run --release --locked --quiet -p sim -- --seeds "$SEEDS")
    "${play[@]}" >"$work/sim.1"
    "${play[@]}" >"$work/sim.2"
}

# The database of advisories comes over the network: without it the check cannot be made, and says so.
# With it, an advisory fails the run. Fetching and checking are two steps so that the two never mix.
check_advisories() {
    if ! timeout 60 cargo deny fetch db >"$work/fetch" 2>&1; then
        tail -n 3 "$work/fetch"
        echo '!!!! skipped: no advisory database !!!!'
        skipped+=('advisories (no advisory database)')
        return
    fi
    cargo deny --offline --log-level error check advisories
    passed+=(advisories)
}

# check_all WHAT=COMMAND...: side by side, because they mostly wait. What cannot be tried here is said to be
# skipped; the scripts decide what CI may skip.
check_all() {
    local at_once=4 pair n failed=0 status group="$step" started=()
    n=0
    for pair in "$@"; do
        while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do sleep 0.5; done
        (
            status=0
            began="$SECONDS"
            # A command and its arguments.
            # shellcheck disable=SC2086
            ${pair#*=} >"$work/check.$n" 2>&1 || status=$?
            echo "$status $((SECONDS - began))" >"$work/check.$n.end"
        ) &
        started+=("$!")
        n=$((n + 1))
    done
    # By pid: after a `wait` without one the shell has forgotten how the simulator ended.
    wait "${started[@]}" || true
    n=0
    for pair in "$@"; do
        step="${pair%%=*}"
        printf '\n== %s\n' "$step"
        cat "$work/check.$n"
        read -r status seconds <"$work/check.$n.end"
        took "$seconds" "$step"
        case "$status" in
            0) passed+=("$step") ;;
            3) skipped+=("$step") ;;
            *) failed=1; printf 'FAILED: %s\n' "$step" ;;
        esac
        n=$((n + 1))
    done
    step="$group"
    return "$failed"
}

# The ten tests that take longest, of what nextest wrote down.
slowest_tests() {
    python3 -B - "$(realpath -m "${CARGO_TARGET_DIR:-target}")/nextest/ci/junit.xml" <<'EOF'
import sys, xml.etree.ElementTree as tree
cases = tree.parse(sys.argv[1]).iter("testcase")
slowest = sorted(cases, key=lambda case: -float(case.get("time", 0)))[:10]
for case in slowest:
    print(f"{float(case.get('time', 0)):6.0f} s  {case.get('classname')} {case.get('name')}")
EOF
}

heading 'tools'
command -v cargo >/dev/null || fail 'cargo is missing: install Rust with rustup'
need_command cc 'gcc libc6-dev'
need_command git 'git ca-certificates'
for program in python3:python3 pip3:python3-pip node:nodejs npm:npm git:git cc:gcc make:make bash:bash perl:perl \
    curl:curl wget:wget openssl:openssl sqlite3:sqlite3 newuidmap:uidmap newgidmap:uidmap busybox:busybox-static \
    mkfs.ext4:e2fsprogs zstd:zstd mkfs.btrfs:btrfs-progs mkfs.xfs:xfsprogs ip:iproute2; do
    need_program "${program%%:*}" "${program##*:}"
done
# Debian has what `python3 -m venv` needs in a package of its own.
if [ "${CI:-}" = true ] && ! python3 -c 'import ensurepip' 2>/dev/null; then
    need_command ensurepip 'python3-venv'
fi
need_component fmt rustfmt
need_component clippy clippy
need_tool nextest "$NEXTEST_VERSION"

# Beside the build: it mostly waits.
scripts/containers.sh start "$work/containers" >"$work/env" 2>"$work/containers.log" &
readonly containers=$!

heading 'format'
cargo fmt --all --check
passed+=(format)

# With the features that tests switch on, which are all.
heading 'build, with clippy'
export RUSTC_WORKSPACE_WRAPPER="$PWD/scripts/lint.sh"
cargo build --workspace --all-targets --locked --quiet
passed+=(clippy)

# What others read; scripts/long.sh looks at every crate.
heading 'documentation'
RUSTDOCFLAGS='-D warnings' cargo doc --no-deps -p model -p wire -p client --locked --quiet
passed+=(documentation)

heading 'containers'
if ! wait "$containers"; then
    cat "$work/containers.log"
    fail 'what tests of containers need could not be started'
fi
cat "$work/containers.log"
# What it says is for this shell.
# shellcheck source=/dev/null
. "$work/env"

heading 'tests'
# Beside the tests, with what they leave of the processors.
install_deny >"$work/deny.log" 2>&1 &
readonly deny=$!
play_worlds >"$work/sim.log" 2>&1 &
readonly sim=$!
# Half of the time a test waits.
cargo nextest run --workspace --locked --cargo-quiet --profile ci --color never --test-threads "$((2 * $(nproc)))" 2>&1 | tee "$work/tests"
summary="$(grep -E '^ *Summary \[' "$work/tests" | tail -n 1)"
passed+=(tests)

heading 'dependencies'
if ! wait "$deny"; then
    cat "$work/deny.log"
    fail 'cargo-deny could not be installed'
fi
cat "$work/deny.log"
cargo deny --log-level error check bans licenses sources
passed+=(dependencies)
check_advisories

heading 'clients and outside tests, side by side'
# The tests have built it. Built alone it would have other features, and so would all that it needs.
SHOAL_BIN="$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug/shoal"
export SHOAL_BIN
# scripts/long.sh makes up more requests.
export EXAMPLES=7
check_all 'outside tests, first half=scripts/outside.sh --part 1/2' \
    'outside tests, second half=scripts/outside.sh --part 2/2' 'schemathesis, admin=env ROLES=admin scripts/schemathesis.sh' \
    'schemathesis, use=env ROLES=use scripts/schemathesis.sh' 'schemathesis, read=env ROLES=read PHASES=fuzzing scripts/schemathesis.sh' \
    'package for Python=scripts/python-sdk.sh' 'clients of Blaxel=scripts/blaxel.sh' \
    'client of Ash=scripts/ash.sh' 'client of MCP=scripts/mcp.sh'

heading 'doctests'
cargo test --doc --workspace --locked --quiet
passed+=(doctests)

heading "simulator, $SEEDS seeds, twice"
if ! wait "$sim"; then
    tail -n 40 "$work/sim.log" "$work"/sim.[12]
    fail 'the simulator found a broken promise: see above for its seed'
fi
[ -s "$work/sim.1" ] || fail 'the simulator said nothing: there is nothing to compare'
if ! cmp "$work/sim.1" "$work/sim.2"; then
    diff "$work/sim.1" "$work/sim.2" | head -n 20 || true
    fail 'the same seeds gave different bytes: something reads a clock, rolls dice or follows hash order'
fi
tail -n 3 "$work/sim.1"
passed+=(simulator)

heading 'summary'
echo 'the ten slowest tests:'
slowest_tests
echo 'the ten slowest parts:'
sort -rn "$work/took" | head -n 10
echo "$summary"
printf -v line '%s, ' "${passed[@]}"
line="passed: ${line%, }"
if [ "${#skipped[@]}" -gt 0 ]; then
    printf -v without '%s, ' "${skipped[@]}"
    line="$line; SKIPPED: ${without%, }"
fi
echo "$line"
