#!/usr/bin/env bash
# The tests that take long, and their report: docs/reports/long-YYYY-MM-DD.md, to be committed. Not part of CI.
# A storm from outside on the release build, many made-up requests to it, and tests that CI runs on a
# smaller scale.
#
#   scripts/long.sh [--seconds N] [--seed S]     N seconds of storm (600); the seed is of today if not given
#   scripts/long.sh --mutants                    and then scripts/mutants.py, which writes its own report
#   SHOAL_BIN=target/release/shoal  which server; without it the release build is made first
#
# Ends with 0 if every promise holds; the report is written either way.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

readonly SCALED='test(thousands_of_idle_sandboxes) + test(a_session_survives_kills) + test(storm::)
    + test(many_sessions_share) + test(death_at_random) + test(thousands_of_sandboxes_with_policies)'

seconds=600
seed="$(date +%Y%m%d)"
mutants=
while [ "$#" -gt 0 ]; do
    case "$1" in
        --seconds) seconds="$2"; shift 2 ;;
        --seed) seed="$2"; shift 2 ;;
        --mutants) mutants=yes; shift ;;
        *) printf 'long.sh: unknown option %s\n' "$1" >&2; exit 2 ;;
    esac
done

if [ -z "${SHOAL_BIN:-}" ]; then
    cargo build --release --locked --quiet -p shoal
    SHOAL_BIN="$(realpath -m "${CARGO_TARGET_DIR:-target}")/release/shoal"
fi
[ -x "$SHOAL_BIN" ] || { printf 'long.sh: there is no %s\n' "$SHOAL_BIN" >&2; exit 1; }

work="$(mktemp -d)"
finish() {
    scripts/containers.sh stop "$work/containers" || true
    rm -rf "$work"
}
trap finish EXIT
today="$(date +%Y-%m-%d)"
readonly report="docs/reports/long-$today.md"
commit="$(git rev-parse --short HEAD)"
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then commit="$commit, with changes"; fi
cores="$(nproc)"
memory="$(awk '/^MemTotal/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo)"

began="$SECONDS"
status=0
timeout --kill-after=30 "$((seconds + 600))" python3 -B scripts/outside/storm.py \
    --shoal "$SHOAL_BIN" --seconds "$seconds" --seed "$seed" >"$work/storm" 2>&1 || status=$?
cat "$work/storm"
took="$((SECONDS - began))"
result='every promise held'
if [ "$status" -ne 0 ]; then result="**failed** (exit code $status)"; fi

scripts/containers.sh start "$work/containers" >"$work/env"
# What it says is for this shell.
# shellcheck source=/dev/null
. "$work/env"
outside=0
SHOAL_BIN="$SHOAL_BIN" scripts/outside.sh --seed "$seed" --long >"$work/outside" 2>&1 || outside=$?
cat "$work/outside"
if [ "$outside" -ne 0 ]; then status=1; fi

# How much longer a checkout takes while another key attacks. CI has no such limits on time.
attacks=0
timeout --kill-after=30 1200 python3 -B scripts/outside/attacks.py --shoal "$SHOAL_BIN" --seed "$seed" --long \
    >"$work/attacks" 2>&1 || attacks=$?
cat "$work/attacks"
if [ "$attacks" -ne 0 ]; then status=1; fi

# The next four are what CI does on a smaller scale.
made_up=0
EXAMPLES=30 SHOAL_BIN="$SHOAL_BIN" scripts/schemathesis.sh >"$work/made-up" 2>&1 || made_up=$?
cat "$work/made-up"
if [ "$made_up" -ne 0 ]; then status=1; fi

documented=0
RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --workspace --locked --quiet || documented=$?
if [ "$documented" -ne 0 ]; then status=1; fi

sim=0
cargo run --release --locked --quiet -p sim -- --seeds 30000 >"$work/sim" 2>&1 || sim=$?
tail -n 40 "$work/sim"
if [ "$sim" -ne 0 ]; then status=1; fi

scaled=0
IDLE_SANDBOXES=5000 POLICY_SANDBOXES=5000 KILLS=200 SESSIONS=1000 LAUNCHES=1000 STORM_SECONDS=150 SHOAL_CHAOS_S=120 timeout --kill-after=30 3600 \
    cargo nextest run --locked --cargo-quiet --no-fail-fast --color never --status-level pass --test-threads 1 -E "$SCALED" \
    -p shoal -p integration-tests >"$work/scaled" 2>&1 || scaled=$?
cat "$work/scaled"
if [ "$scaled" -ne 0 ]; then status=1; fi

{
    printf '# Long tests of %s\n\n' "$today"
    # Backticks are Markdown here.
    # shellcheck disable=SC2016
    printf 'Written by `scripts/long.sh` at commit %s, on a machine with %s cores and %s GB of memory.\n\n' "$commit" "$cores" "$memory"
    printf '## Storm\n\n'
    printf '200 sessions on 20 places, in memory and on disk; evictions, pauses, forks, aborts, deletes, a kill of the server every few seconds, a full disk.\n\n'
    printf '| seed | seconds of storm | seconds in all | result |\n|---|---|---|---|\n'
    printf '| %s | %s | %s | %s |\n\n' "$seed" "$seconds" "$took" "$result"
    # Only what the test itself says; work directories are of no interest to readers.
    printf '```text\n'
    # The histories of single sessions help to find a cause and do not belong in a report.
    sed -e '/^       /d' -e "s#${TMPDIR:-/tmp}/shoal-outside-[^ /]*#WORK#g" "$work/storm" | cut -c 1-1200 |
        sed -e 's/[[:space:]]*$//' -e 200q
    printf '```\n\n## From outside\n\n'
    printf 'The timeline of states, restarts of processes, copies and backups, ways out of containers, and real programs on the network (Go and Java among them), exit code %s:\n\n```text\n' "$outside"
    tail -n 20 "$work/outside" | sed -e "s#${TMPDIR:-/tmp}/[^ ]*#WORK#g" -e 's/[[:space:]]*$//' | cut -c 1-400
    printf '```\n\n## One key attacks, another checks out\n\n'
    printf 'Rounds with and without an attack take turns; a ratio above 2 fails. Exit code %s:\n\n' "$attacks"
    grep '^|' "$work/attacks" || true
    if [ "$attacks" -ne 0 ]; then
        printf '\n```text\n'
        grep -E 'UNTRUE|FAILED|skipped' "$work/attacks" | sed -e "s#${TMPDIR:-/tmp}/[^ ]*#WORK#g" | cut -c 1-400 || true
        printf '```\n'
    fi
    printf '\n## On a larger scale than in CI\n\n'
    printf 'Schemathesis, 30 made-up requests to each route, exit code %s:\n\n```text\n' "$made_up"
    tail -n 20 "$work/made-up" | sed -e "s#${TMPDIR:-/tmp}/[^ ]*#WORK#g" -e 's/[[:space:]]*$//'
    printf '```\n\nThe documentation of every crate, exit code %s.\n' "$documented"
    printf '\nThe simulator, 30,000 worlds, exit code %s:\n\n```text\n' "$sim"
    tail -n 3 "$work/sim"
    printf '```\n\n'
    printf '5,000 idle sandboxes, 200 kills in the middle of turns, 1,000 sessions on 50 places, 1,000 launches with deaths, storms of 120 and 150 seconds.\n\n```text\n'
    grep -E '^ *(PASS|FAIL|SIGNAL|TIMEOUT|Summary)' "$work/scaled" | sed -e 's/^ *//' -e 's/[[:space:]]*$//' || true
    printf '```\n'
} >"$report"
if [ "$((outside + attacks + made_up + documented + sim + scaled))" -ne 0 ]; then result="$result; a longer test failed"; fi
echo "long.sh: $result; the report is $report"
if [ -n "$mutants" ]; then scripts/mutants.py || status=$?; fi
exit "$status"
