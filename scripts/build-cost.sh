#!/usr/bin/env bash
# What a release build from nothing costs: CPU seconds, functions and bytes of code of each crate,
# and the size of the program. Functions and bytes are those that a crate generates, with what it
# instantiates from others; the linker removes a part of them.
#
#   scripts/build-cost.sh [CHECKOUT]            builds CHECKOUT (this one if not given)
#   scripts/build-cost.sh --in-turn OLD NEW     builds both, one after the other, and prints ratios
#
# CPU seconds vary with the load of the machine: compare only what was built in turn.
set -euo pipefail

export ROWS=24
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly here
work="$(mktemp -d)"
readonly work
trap 'rm -rf "$work"' EXIT

# Stands before every rustc: `wrapper rustc ARGUMENTS`.
cat >"$work/wrapper" <<'EOF'
#!/usr/bin/env bash
name=''
for ((i = 1; i <= $#; i++)); do
    if [ "${!i}" = --crate-name ]; then n=$((i + 1)); name="${!n}"; fi
done
TIMEFORMAT="$name %U %S"
exec 3>&2
{ time "$@" 2>&3; } 2>>"$BUILD_COST"
EOF
chmod +x "$work/wrapper"

# build CHECKOUT NAME: leaves NAME.rustc (crate, user, system), NAME.total (wall, user, system) and the build itself.
build() {
    local checkout="$1" name="$2"
    rm -rf "$work/target"
    TIMEFORMAT='%R %U %S'
    {
        time (
            cd "$checkout"
            export BUILD_COST="$work/$name.rustc" CARGO_TARGET_DIR="$work/target"
            RUSTC_WRAPPER="$work/wrapper" cargo build --release --locked --quiet 2>&3
        )
    } 3>&2 2>"$work/$name.total"
    code "$name"
    stat -c %s "$work/target/release/shoal" >"$work/$name.bytes"
    # Everything that has a path and no registry is ours.
    (cd "$checkout" && cargo metadata --no-deps --locked --format-version 1) >"$work/$name.metadata"
}

# Functions and bytes of machine code in what each crate left behind, as `crate functions bytes`.
code() {
    local library crate
    for library in "$work"/target/release/deps/*.rlib; do
        crate="$(basename "$library" .rlib)"
        crate="${crate#lib}"
        nm --defined-only --print-size --radix=d "$library" 2>/dev/null |
            awk -v crate="${crate%-*}" '$3 ~ /^[tTwW]$/ { functions++; bytes += $2 }
                END { print crate, functions + 0, bytes + 0 }'
    done >"$work/$1.code"
}

report() {
    python3 -B "$here/scripts/build_cost.py" "$work" "$@"
}

case "${1:-}" in
    -h | --help)
        sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        ;;
    --in-turn)
        [ "$#" -eq 3 ] || { echo 'build-cost.sh: --in-turn OLD NEW' >&2; exit 2; }
        build "$2" old
        build "$3" new
        report old new
        ;;
    *)
        build "${1:-$here}" new
        report new
        ;;
esac
