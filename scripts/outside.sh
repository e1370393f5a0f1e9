#!/usr/bin/env bash
# The promises about files, names, processes and events, tried by strangers: scripts/outside/*.py, one after the other,
# against a built server.
#
#   scripts/outside.sh [--seconds N] [--seed S] [NAME...]     N seconds of storm (10); only the named tests
#   scripts/outside.sh --part K/N                             the K-th of N parts, which may run side by side
#   scripts/outside.sh --long                                 those that take minutes; scripts/long.sh runs them
#   SHOAL_BIN=target/release/shoal  which server; without it the release build is made first
#
# Ends with 0 if every promise holds, 1 if one does not, 3 if something cannot be tried here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

readonly TESTS=(selfcheck answers explanations eviction deletion limits losses where at_rest damage fulldisk backup ends names polling deadlines fair_web fair_places stored_secrets node_key network egress_limits model_turns contained clients attacks usage storm)
readonly LONG=(timeline restarts copies ash_warm)
# These do more with `--long`.
readonly LONGER=(contained clients egress_limits network)
# Longer than the deadline that each test has of its own.
readonly PATIENCE_S=400
readonly LONG_PATIENCE_S=1500

seconds=10
seed=1
part=1
parts=1
long=
named=()
while [ "$#" -gt 0 ]; do
    case "$1" in
        --seconds) seconds="$2"; shift 2 ;;
        --seed) seed="$2"; shift 2 ;;
        --part) part="${2%/*}"; parts="${2#*/}"; shift 2 ;;
        --long) named+=("${LONG[@]}" "${LONGER[@]}"); long=yes; shift ;;
        -*) printf 'outside.sh: unknown option %s\n' "$1" >&2; exit 2 ;;
        *) named+=("$1"); shift ;;
    esac
done
if [ "${#named[@]}" -eq 0 ]; then named=("${TESTS[@]}"); fi

if [ -z "${SHOAL_BIN:-}" ]; then
    cargo build --release --locked --quiet -p shoal
    SHOAL_BIN="$(realpath -m "${CARGO_TARGET_DIR:-target}")/release/shoal"
fi
[ -x "$SHOAL_BIN" ] || { printf 'outside.sh: there is no %s\n' "$SHOAL_BIN" >&2; exit 1; }

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
passed=0
failed=()
skipped=()
turn=0
for name in "${named[@]}"; do
    turn=$((turn + 1))
    if [ "$(((turn - 1) % parts + 1))" -ne "$part" ]; then continue; fi
    options=(--shoal "$SHOAL_BIN" --seed "$seed")
    patience_s="$PATIENCE_S"
    if [ "$name" = storm ]; then
        options+=(--seconds "$seconds")
        patience_s="$((PATIENCE_S + ${seconds%.*}))"
    fi
    if [ -n "$long" ] && [[ " ${LONGER[*]} " == *" $name "* ]]; then
        options+=(--long)
        patience_s="$LONG_PATIENCE_S"
    fi
    status=0
    timeout --kill-after=20 "$patience_s" python3 -B "scripts/outside/$name.py" "${options[@]}" >"$work/$name" 2>&1 || status=$?
    case "$status" in
        0) passed=$((passed + 1)); tail -n 1 "$work/$name" ;;
        3) skipped+=("$name"); tail -n 2 "$work/$name" ;;
        *) failed+=("$name"); cat "$work/$name" ;;
    esac
done

printf '%s passed, %s failed' "$passed" "${#failed[@]}"
if [ "${#skipped[@]}" -gt 0 ]; then printf ', %s skipped: %s' "${#skipped[@]}" "${skipped[*]}"; fi
if [ "${#failed[@]}" -gt 0 ]; then printf '\nfailed: %s\n' "${failed[*]}"; exit 1; fi
printf '\n'
if [ "${#skipped[@]}" -gt 0 ]; then
    # In CI nothing is skipped.
    if [ "${CI:-}" = true ]; then exit 1; fi
    exit 3
fi
