#!/usr/bin/env bash
# The unmodified Python and TypeScript clients of Blaxel against a server of their own, which it
# starts and stops again.
#
#   SHOAL_BIN=target/debug/shoal  which server
#
# Ends with 0 if everything works, 1 if something does not, 3 if it cannot be tried here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

readonly PYTHON_VERSION=0.4.20
readonly NODE_VERSION=0.3.21
TARGET="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
readonly TARGET
readonly BIN="${SHOAL_BIN:-$TARGET/debug/shoal}"
readonly VENV="$TARGET/blaxel-python-$PYTHON_VERSION"
readonly MODULES="$TARGET/blaxel-node-$NODE_VERSION"
readonly PATIENCE_S=180
here="$PWD/scripts/blaxel"
readonly here

work="$(mktemp -d)"
server=''

stop_server() {
    local pid="$server"
    [ -n "$pid" ] || return 0
    server=''
    # `timeout`, which it runs under, passes the signal on, and kills it if it does not end.
    kill -TERM "$pid" 2>/dev/null || true
    wait "$pid"
}
finish() {
    local status=$?
    stop_server || true
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT
fail() {
    printf 'blaxel.sh: %s\n' "$1" >&2
    exit 1
}
# In CI nothing is skipped.
skip() {
    if [ "${CI:-}" = true ]; then fail "$1: in CI nothing is skipped"; fi
    echo "!!!! skipped: $1 !!!!"
    exit 3
}
# Even CI cannot have what there is no network for.
skip_offline() {
    echo "!!!! skipped: $1 (no network) !!!!"
    exit 3
}

install_python() {
    if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'import blaxel' 2>/dev/null; then return; fi
    rm -rf "$VENV"
    if ! timeout 120 python3 -m venv "$VENV" >"$work/install" 2>&1; then
        tail -n 3 "$work/install"
        skip 'no Python client of Blaxel (python3 -m venv does not work; Debian: apt-get install python3-venv)'
    fi
    local pip=(timeout 400 "$VENV/bin/pip" --disable-pip-version-check --retries 2)
    if "${pip[@]}" install --quiet "blaxel==$PYTHON_VERSION" >"$work/install" 2>&1; then return; fi
    tail -n 3 "$work/install"
    if "${pip[@]}" index versions blaxel >/dev/null 2>&1; then
        rm -rf "$VENV"
        skip 'no Python client of Blaxel (pip cannot install it)'
    fi
    rm -rf "$VENV"
    skip_offline 'no Python client of Blaxel'
}

install_node() {
    if [ -d "$MODULES/node_modules/@blaxel/core" ]; then return; fi
    rm -rf "$MODULES"
    mkdir -p "$MODULES"
    echo '{"private": true}' >"$MODULES/package.json"
    local npm=(timeout 400 npm --prefix "$MODULES" --no-audit --no-fund --loglevel=error)
    if "${npm[@]}" install "@blaxel/core@$NODE_VERSION" >"$work/install" 2>&1; then return; fi
    tail -n 3 "$work/install"
    rm -rf "$MODULES"
    if timeout 60 npm view "@blaxel/core@$NODE_VERSION" version >/dev/null 2>&1; then
        skip 'no TypeScript client of Blaxel (npm cannot install it)'
    fi
    skip_offline 'no TypeScript client of Blaxel'
}

wait_for_server() {
    local n
    for n in $(seq 1 300); do
        if [ -s "$work/data/address" ] && [ -s "$work/data/admin.key" ]; then return; fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$work/log"
    fail "the server did not start ($n tries)"
}

[ -x "$BIN" ] || fail "there is no $BIN: cargo build -p shoal"
[ "$(id -u)" -eq 0 ] || skip 'not root, which sandboxes need'
command -v python3 >/dev/null || skip 'no Python client of Blaxel (no python3)'
command -v npm >/dev/null || skip 'no TypeScript client of Blaxel (no npm)'
[ -x /usr/bin/python3 ] || skip 'no /usr/bin/python3, which is tried inside sandboxes'
install_python
install_node
timeout --kill-after=30 "$((2 * PATIENCE_S + 60))" "$BIN" serve --listen 127.0.0.1:0 --data-dir "$work/data" \
    --log-format json --set server.shutdown_grace_ms=5000 >"$work/log" 2>&1 &
server=$!
wait_for_server
BL_API_URL="$(tr -d '[:space:]' <"$work/data/address")/compat/blaxel"
BL_API_KEY="$(tr -d '[:space:]' <"$work/data/admin.key")"
export BL_API_URL BL_API_KEY BL_WORKSPACE=shoal BL_RUN_URL="$BL_API_URL" BL_REGION=local BL_DISABLE_H2=1 DO_NOT_TRACK=1
# Nothing of a developer's own account counts.
export HOME="$work"
if ! timeout --kill-after=10 "$PATIENCE_S" "$VENV/bin/python" "$here/client.py" "$BL_API_URL" "$work"; then
    tail -n 30 "$work/log"
    fail 'the Python client of Blaxel does not work: see above'
fi
if ! timeout --kill-after=10 "$PATIENCE_S" node "$here/client.mjs" "$MODULES"; then
    tail -n 30 "$work/log"
    fail 'the TypeScript client of Blaxel does not work: see above'
fi
if ! stop_server; then
    tail -n 20 "$work/log"
    fail 'the server left something behind, or had to be killed'
fi
