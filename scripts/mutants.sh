#!/usr/bin/env bash
# Breaks the kernel in every small way there is and asks whether a test notices.
# Takes most of an hour, so it is not part of CI; the report is committed: docs/reports/mutants.md
#
#   scripts/mutants.sh                              everything, and writes the report
#   scripts/mutants.sh --file '**/pool.rs' ...      a trial with more arguments of cargo-mutants, without a report
#
# MUTANTS_OUT names a directory to go on from: what was caught there is not tried again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

readonly VERSION=27.1.0
readonly REPORT=docs/reports/mutants.md

if ! cargo mutants --version >/dev/null 2>&1; then
    echo "installing cargo-mutants $VERSION (once, takes minutes)"
    cargo install --locked --quiet cargo-mutants --version "$VERSION"
fi

# Two jobs must not build into one directory: each has a copy of the tree, with a target of its own.
unset CARGO_TARGET_DIR

if [ -n "${MUTANTS_OUT:-}" ]; then
    work="$MUTANTS_OUT"
else
    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
fi
out="$work/mutants.out"

# flaw.rs and flaws.rs hold bugs made on purpose, and audit.rs is an instrument of the tests: breaking them proves nothing
# about the product.
mutate() {
    local status=0
    cargo mutants \
        --package kernel \
        --profile mutants \
        --exclude '**/flaw.rs' \
        --exclude '**/flaws.rs' \
        --exclude '**/audit.rs' \
        --iterate \
        --jobs 2 \
        --timeout 20 \
        --colors never \
        --output "$work" \
        "$@" || status=$?
    # 0: all caught, 2: some missed, 3: some timed out. Anything else is no result.
    case "$status" in
    0 | 2 | 3) ;;
    *)
        echo "mutants.sh: cargo mutants failed with status $status, no report written" >&2
        exit "$status"
        ;;
    esac
}

# First the kernel's own tests, which are quick; what they miss meets the simulator.
mutate --test-package kernel "$@"
mutate --test-package kernel,sim "$@"

# With several rounds, the lists of the last one hold what is left, and those of all rounds what was caught.
lines() { cat "$work"/mutants.out*/"$1".txt 2>/dev/null | sort -u; }
left() { sort -u "$out/$1.txt" 2>/dev/null || true; }
count() { grep -c . || true; }
caught="$({ lines caught; cat "$out/previously_caught.txt" 2>/dev/null || true; } | sort -u | count)"
missed="$(left missed | count)"
timeout="$(left timeout | count)"
unviable="$(lines unviable | count)"
viable=$((caught + missed + timeout))
if [ "$viable" -eq 0 ]; then
    echo 'mutants.sh: there was nothing to break, no report written' >&2
    exit 1
fi
percent="$(awk -v caught="$caught" -v viable="$viable" 'BEGIN { printf "%.1f", 100 * caught / viable }')"

list() {
    local found
    found="$(left "$1" | sort -V)"
    if [ -n "$found" ]; then
        # shellcheck disable=SC2016 # these backticks are Markdown
        printf '%s\n' "$found" | sed 's/^/- `/; s/$/`/'
    else
        echo 'None.'
    fi
}

report() {
    cat <<END
# Mutants of the kernel

Every small change that cargo-mutants $VERSION can make to \`crates/kernel\`, against the kernel's own tests and then the
simulator's. Written by \`scripts/mutants.sh\` on $(date -u +%F), at commit $(git describe --always --dirty --exclude '*').

| caught | missed | timed out | unviable | caught of viable |
|---:|---:|---:|---:|---:|
| $caught | $missed | $timeout | $unviable | $percent % |

A mutant that times out loops for ever where the original does not: tests notice, but it is not counted as caught. One that
does not compile is unviable and not counted.

## Missed

$(list missed)

## Timed out

$(list timeout)
END
}

if [ "$#" -eq 0 ]; then
    mkdir -p "$(dirname "$REPORT")"
    report >"$REPORT"
    echo "wrote $REPORT"
else
    report
fi
