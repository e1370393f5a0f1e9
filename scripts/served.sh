# shellcheck shell=bash
# For scripts that try a client against a server of its own: a place to work in, a server that is started
# there and stopped again whatever happens, Python packages of one version each, and what is said when
# something cannot be tried. Sourced from the root of the repository.
#
#   SHOAL_BIN=target/debug/shoal  which server
#
# Whoever sources it ends with 0 if everything works, 1 if something does not, 3 if it cannot be tried here.

TARGET="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
readonly TARGET
readonly BIN="${SHOAL_BIN:-$TARGET/debug/shoal}"
script="$(basename "$0")"
readonly script
work="$(mktemp -d)"
readonly work
# Where the server keeps its data, and when there is one, where it listens.
readonly data="$work/data"
url=''
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
    printf '%s: %s\n' "$script" "$1" >&2
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

need_server() {
    [ -x "$BIN" ] || fail "there is no $BIN: cargo build -p shoal"
    [ "$(id -u)" -eq 0 ] || skip 'not root, which sandboxes need'
}
# need_inside PROGRAM WHY
need_inside() {
    [ -x "$1" ] || skip "no $1, which $2"
}

# install_python WHAT VENV MODULE PACKAGE...: packages in a place of their own, once. They are there if the
# module can be imported; the first package is the one that is asked for. Scripts that run side by side may need
# the same place: one of them makes it.
install_python() {
    local lock
    mkdir -p "$(dirname "$2")"
    exec {lock}>"$2.lock"
    flock "$lock"
    install_python_alone "$@"
    exec {lock}>&-
}

install_python_alone() {
    local what="$1" venv="$2" module="$3"
    shift 3
    command -v python3 >/dev/null || skip "no $what (no python3)"
    if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c "import $module" 2>/dev/null; then return; fi
    rm -rf "$venv"
    if ! timeout 120 python3 -m venv "$venv" >"$work/install" 2>&1; then
        tail -n 3 "$work/install"
        skip "no $what (python3 -m venv does not work; Debian: apt-get install python3-venv)"
    fi
    local pip=(timeout 400 "$venv/bin/pip" --disable-pip-version-check --retries 2)
    if "${pip[@]}" install --quiet "$@" >"$work/install" 2>&1; then return; fi
    tail -n 3 "$work/install"
    if "${pip[@]}" index versions "${1%%==*}" >/dev/null 2>&1; then
        rm -rf "$venv"
        skip "no $what (pip cannot install it)"
    fi
    rm -rf "$venv"
    skip_offline "no $what"
}

free_port() {
    python3 -c 'import socket
held = socket.socket()
held.bind(("127.0.0.1", 0))
print(held.getsockname()[1])'
}

# start_server PATIENCE_S KEY_FILE ARGUMENT...: ended after so long, whatever happens. Done when it listens
# at $url and has written its key.
start_server() {
    local patience_s="$1" key="$2" n
    shift 2
    timeout --kill-after=30 "$patience_s" "$BIN" serve --listen 127.0.0.1:0 --data-dir "$data" \
        --log-format json --set server.shutdown_grace_ms=5000 "$@" >"$work/log" 2>&1 &
    server=$!
    for n in $(seq 1 300); do
        if [ -s "$data/address" ] && [ -s "$data/$key" ]; then
            # For whoever sources this.
            # shellcheck disable=SC2034
            url="$(head -n 1 "$data/address")"
            return
        fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$work/log"
    fail "the server did not start ($n tries)"
}

# end_server: a server that stops in order has removed everything that it made.
end_server() {
    if ! stop_server; then
        tail -n 20 "$work/log"
        fail 'the server left something behind, or had to be killed'
    fi
}

# attempt PATIENCE_S WHAT COMMAND...: something works within its time.
attempt() {
    local patience_s="$1" what="$2"
    shift 2
    if timeout --kill-after=10 "$patience_s" "$@"; then return; fi
    tail -n 30 "$work/log"
    fail "$what does not work: see above"
}
