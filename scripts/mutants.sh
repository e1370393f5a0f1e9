#!/usr/bin/env bash
# Breaks the kernel in every small way there is and asks whether a test notices.
# Takes long, so it is not part of CI; the report is committed: docs/reports/mutants.md
#
#   scripts/mutants.sh                              everything, and writes the report
#   scripts/mutants.sh --file '**/pool.rs' ...      a trial with more arguments of cargo-mutants, without a report
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

readonly VERSION=27.1.0
readonly REPORT=docs/reports/mutants.md
# The simulator is the kernel's most thorough test, so its tests count too.
readonly TESTS=kernel,sim

if ! cargo mutants --version >/dev/null 2>&1; then
    echo "installing cargo-mutants $VERSION (once, takes minutes)"
    cargo install --locked --quiet cargo-mutants --version "$VERSION"
fi

# Two jobs must not build into one directory: each has a copy of the tree, with a target of its own.
unset CARGO_TARGET_DIR

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
out="$work/mutants.out"

# flaw.rs holds bugs made on purpose: breaking them proves nothing about the product.
# A mutant that loops is stopped by the timeout, three times the normal length of the tests.
status=0
cargo mutants \
    --package kernel \
    --test-package "$TESTS" \
    --test-tool nextest \
    --exclude '**/flaw.rs' \
    --no-shuffle \
    --jobs 2 \
    --timeout-multiplier 3 \
    --minimum-test-timeout 20 \
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

count() { wc -l <"$out/$1.txt"; }
caught="$(count caught)"
missed="$(count missed)"
timeout="$(count timeout)"
unviable="$(count unviable)"
viable=$((caught + missed + timeout))
if [ "$viable" -eq 0 ]; then
    echo 'mutants.sh: there was nothing to break, no report written' >&2
    exit 1
fi
percent="$(awk -v caught="$caught" -v viable="$viable" 'BEGIN { printf "%.1f", 100 * caught / viable }')"

list() {
    if [ -s "$out/$1.txt" ]; then
        # shellcheck disable=SC2016 # these backticks are Markdown
        sort -V "$out/$1.txt" | sed 's/^/- `/; s/$/`/'
    else
        echo 'None.'
    fi
}

report() {
    cat <<END
# Mutants of the kernel

Every small change that cargo-mutants $VERSION can make to \`crates/kernel\`, against the tests of
\`${TESTS//,/\` and \`}\`. Written by \`scripts/mutants.sh\` on $(date -u +%F), at commit $(git describe --always --dirty --exclude '*').

| caught | missed | timed out | unviable | caught of viable |
|---:|---:|---:|---:|---:|
| $caught | $missed | $timeout | $unviable | $percent % |

A mutant that times out is not counted as caught; one that does not compile is unviable and not counted.

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
