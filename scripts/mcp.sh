#!/usr/bin/env bash
# The official Python client of the Model Context Protocol against a server of its own, over HTTP and
# over standard input and output.
#
#   SHOAL_BIN=target/debug/shoal  which server
#
# Ends with 0 if everything works, 1 if something does not, 3 if it cannot be tried here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

readonly VERSION=1.30.0
readonly TARGET="${CARGO_TARGET_DIR:-target}"
readonly BIN="${SHOAL_BIN:-$TARGET/debug/shoal}"
readonly VENV="$TARGET/mcp-$VERSION"
readonly PATIENCE_S=180
here="$PWD/scripts/mcp"
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
    printf 'mcp.sh: %s\n' "$1" >&2
    exit 1
}
# In CI nothing is skipped.
skip() {
    if [ "${CI:-}" = true ]; then fail "$1: in CI nothing is skipped"; fi
    echo "!!!! skipped: $1 !!!!"
    exit 3
}

install() {
    if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'import mcp' 2>/dev/null; then return; fi
    rm -rf "$VENV"
    if ! timeout 120 python3 -m venv "$VENV" >"$work/install" 2>&1; then
        tail -n 3 "$work/install"
        skip 'no client of MCP (python3 -m venv does not work; Debian: apt-get install python3-venv)'
    fi
    local pip=(timeout 300 "$VENV/bin/pip" --disable-pip-version-check --retries 2)
    if "${pip[@]}" install --quiet "mcp==$VERSION" >"$work/install" 2>&1; then return; fi
    tail -n 3 "$work/install"
    if "${pip[@]}" index versions mcp >/dev/null 2>&1; then
        rm -rf "$VENV"
        skip 'no client of MCP (pip cannot install it)'
    fi
    rm -rf "$VENV"
    # Even CI cannot have what there is no network for.
    echo '!!!! skipped: no client of MCP (no network) !!!!'
    exit 3
}

free_port() {
    python3 -c 'import socket
held = socket.socket()
held.bind(("127.0.0.1", 0))
print(held.getsockname()[1])'
}

wait_for_server() {
    local n
    for n in $(seq 1 300); do
        if [ -s "$work/data/admin.key" ] \
            && python3 -c "import urllib.request; urllib.request.urlopen('$url/health', timeout=2)" 2>/dev/null; then
            return
        fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$work/log"
    fail "the server did not start ($n tries)"
}

[ -x "$BIN" ] || fail "there is no $BIN: cargo build -p shoal"
[ "$(id -u)" -eq 0 ] || skip 'not root, which sandboxes need'
command -v python3 >/dev/null || skip 'no client of MCP (no python3)'
[ -x /usr/bin/python3 ] || skip 'no /usr/bin/python3, which is tried inside sandboxes'
install
port="$(free_port)"
url="http://127.0.0.1:$port"
timeout --kill-after=30 "$((PATIENCE_S + 60))" "$BIN" serve --listen "127.0.0.1:$port" --data-dir "$work/data" \
    --log-format json --set server.shutdown_grace_ms=5000 >"$work/log" 2>&1 &
server=$!
wait_for_server
if ! timeout --kill-after=10 "$PATIENCE_S" "$VENV/bin/python" "$here/client.py" \
    "$url" "$(cat "$work/data/admin.key")" "$BIN" "$work/data"; then
    tail -n 30 "$work/log"
    fail 'the client of MCP does not work: see above'
fi
if ! stop_server; then
    tail -n 20 "$work/log"
    fail 'the server left something behind, or had to be killed'
fi
