#!/usr/bin/env bash
# Schemathesis against the document that a server serves: whatever is sent, no answer is a mistake of
# the server, and none is undocumented. Starts servers of its own and stops them again.
#
#   SHOAL_BIN=target/debug/shoal  which server
#   EXAMPLES=20                   how many requests to each route are made up
#   ROLES='admin use read'        with keys of which roles
#   SEED=1                        the same seed makes up the same requests
#   REPORT_DIR=DIR                where to leave report and log of a role that failed
#
# Ends with 0 if nothing was found, 1 if something was, 3 if it cannot be tried here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

readonly VERSION=4.32.5
readonly EXAMPLES="${EXAMPLES:-20}"
readonly ROLES="${ROLES:-admin use read}"
readonly SEED="${SEED:-1}"
readonly TARGET="${CARGO_TARGET_DIR:-target}"
readonly BIN="${SHOAL_BIN:-$TARGET/debug/shoal}"
here="$PWD/scripts/schemathesis"
readonly here
readonly VENV="$TARGET/schemathesis-$VERSION"
# Five minutes for what is always sent, and some for every example. A usual run takes one.
readonly PATIENCE_S="$((300 + EXAMPLES * 10))"

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
    printf 'schemathesis.sh: %s\n' "$1" >&2
    exit 1
}
# In CI nothing is skipped.
skip() {
    if [ "${CI:-}" = true ]; then fail "$1: in CI nothing is skipped"; fi
    echo "!!!! skipped: $1 !!!!"
    exit 3
}

install() {
    if [ -x "$VENV/bin/schemathesis" ]; then return; fi
    rm -rf "$VENV"
    if ! timeout 120 python3 -m venv "$VENV" >"$work/install" 2>&1; then
        tail -n 3 "$work/install"
        skip 'no schemathesis (python3 -m venv does not work; Debian: apt-get install python3-venv)'
    fi
    local pip=(timeout 300 "$VENV/bin/pip" --disable-pip-version-check --retries 2)
    if "${pip[@]}" install --quiet "schemathesis==$VERSION" >"$work/install" 2>&1; then return; fi
    tail -n 3 "$work/install"
    if "${pip[@]}" index versions schemathesis >/dev/null 2>&1; then
        rm -rf "$VENV"
        skip 'no schemathesis (pip cannot install it)'
    fi
    rm -rf "$VENV"
    # Even CI cannot have what there is no network for.
    echo '!!!! skipped: no schemathesis (no network) !!!!'
    exit 3
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Waits are short, so that an answer that nobody can help comes soon.
start_server() {
    local port
    port="$(free_port)"
    url="http://127.0.0.1:$port"
    timeout --kill-after=30 "$((PATIENCE_S + 120))" "$BIN" serve --listen "127.0.0.1:$port" \
        --data-dir "$work/data" --log-format json --set node.max_live=16 --set node.wait_ms=1000 \
        --set node.control_timeout_ms=3000 --set server.shutdown_grace_ms=5000 >"$work/log" 2>&1 &
    server=$!
}

# JSON is asked for, or the routes that can stream would go on for ever.
check_role() {
    local role="$1" keys key status=0
    rm -rf "$work/data" "$work/.schemathesis" "$work/.hypothesis"
    start_server
    if ! keys="$(timeout 60 python3 "$here/keys.py" "$url" "$work/data" "$role")"; then
        tail -n 20 "$work/log"
        fail 'the server did not start'
    fi
    key="${keys#* }"
    export SHOAL_URL="$url" SHOAL_ADMIN_KEY="${keys% *}" SHOAL_TESTED_KEY="$key"
    export SHOAL_TESTED_ROLE="$role" SHOAL_ANSWERS="$work/answers"
    (
        # It keeps what it found where it runs, and begins with that the next time.
        cd "$work"
        export SCHEMATHESIS_HOOKS=hooks PYTHONPATH="$here" PYTHONDONTWRITEBYTECODE=1
        timeout --kill-after=30 "$PATIENCE_S" "$schemathesis" \
            --config-file "$here/schemathesis.toml" run "$url/v1/openapi.json" \
            --header "Authorization: Bearer $key" --header 'Accept: application/json' \
            --max-examples "$EXAMPLES" --seed "$SEED" --continue-on-failure --no-color
    ) >"$work/report" 2>&1 || status=$?
    if [ "$status" -ne 0 ]; then
        cat "$work/report"
        tail -n 20 "$work/log"
        if [ -n "${REPORT_DIR:-}" ]; then
            mkdir -p "$REPORT_DIR"
            cp "$work/report" "$work/log" "$work/answers" "$REPORT_DIR"
        fi
        if [ "$status" -eq 124 ]; then fail "it took more than $PATIENCE_S s"; fi
        fail "something was found with a key of the role $role: see above"
    fi
    if ! stop_server; then
        tail -n 20 "$work/log"
        fail 'the server left something behind, or had to be killed'
    fi
    python3 "$here/answers.py" "$role" "$work/answers" \
        || fail "with a key of the role $role nothing but refusals was looked at"
}

[ -x "$BIN" ] || fail "there is no $BIN: cargo build -p shoal"
[ "$(id -u)" -eq 0 ] || skip 'not root, which sandboxes need'
command -v python3 >/dev/null || skip 'no schemathesis (no python3)'
install
schemathesis="$(cd "$VENV/bin" && pwd)/schemathesis"
readonly schemathesis
for role in $ROLES; do
    check_role "$role"
done
