#!/usr/bin/env bash
# What tests of containers need: a Docker engine of their own, and OCI runtimes.
#
#   containers.sh start DIR   starts an engine with all its data in DIR, and says what to export
#   containers.sh stop DIR    removes what tests left in it, ends it, and removes DIR
#
# In CI, what is missing is installed first. Elsewhere that is not ours to do: what is missing is said, and
# tests that need it say that they are skipped.
set -euo pipefail
exec </dev/null

readonly ENGINE_PATIENCE_S=30
# gVisor of the distribution may be too old for this kernel: it is taken from this suite.
readonly GVISOR_SUITE=trixie

fail() {
    printf 'containers.sh: %s\n' "$1" >&2
    exit 1
}
say() { printf '%s\n' "$1" >&2; }
may_install() { [ "${CI:-}" = true ] && command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; }

# need PROGRAM PACKAGE
need() {
    if command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]; then return 0; fi
    if ! may_install; then
        say "no $1: tests that need it say that they are skipped (Debian: apt-get install $2)"
        return 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    apt-get install -qq -y --no-install-recommends "$2" >/dev/null
}

# An engine that comes with the package must not be started: tests have one of their own.
need_engine() {
    local policy=/usr/sbin/policy-rc.d made='' status=0
    if may_install && ! command -v dockerd >/dev/null && [ ! -x /usr/sbin/dockerd ] && [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        made="$policy"
    fi
    need dockerd docker.io || status=$?
    # Newer distributions have the client in a package of its own.
    if [ "$status" -eq 0 ]; then need docker docker-cli || status=$?; fi
    if [ -n "$made" ]; then rm -f "$made"; fi
    return "$status"
}

# The machine's own sources, of another suite, and nothing of it is installed: one package is unpacked.
need_gvisor() {
    local place="$1/gvisor" codename options
    if command -v runsc >/dev/null || [ -x "$place/usr/bin/runsc" ]; then return 0; fi
    if ! may_install; then
        say 'no runsc: tests that need it say that they are skipped (install gVisor)'
        return 1
    fi
    # shellcheck source=/dev/null
    codename="$(. /etc/os-release && printf %s "${VERSION_CODENAME:-}")"
    [ -n "$codename" ] || fail 'no runsc, and this distribution has no name to look for it with'
    mkdir -p "$place/apt/parts" "$place/apt/lists/partial" "$place/apt/archives/partial"
    grep -lr "$codename" /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | while read -r file; do
        # Only the distribution's own: others have no such suite.
        if grep -q 'debian-archive-keyring\|/debian/\? ' "$file"; then
            sed "s/$codename/$GVISOR_SUITE/g" "$file" >"$place/apt/parts/$(basename "$file")"
        fi
    done
    options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$place/apt/parts"
        -o "Dir::State::lists=$place/apt/lists" -o "Dir::Cache::archives=$place/apt/archives"
        -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update >&2
    (cd "$place/apt" && apt-get "${options[@]}" download runsc >&2)
    dpkg-deb -x "$place"/apt/runsc_*.deb "$place"
    rm -rf "$place/apt"
    [ -x "$place/usr/bin/runsc" ] || fail 'runsc could not be had: its package has no such program'
}

start() {
    local place="$1" n
    mkdir -p "$place"
    place="$(realpath "$place")"
    local host="unix://$place/docker.sock"
    for program in runc:runc crun:crun; do
        need "${program%%:*}" "${program##*:}" || true
    done
    need_gvisor "$place" || true
    printf 'export PATH=%q\n' "$PATH:/usr/sbin:$place/gvisor/usr/bin"
    if ! need_engine; then return; fi
    if [ "$(id -u)" -ne 0 ]; then
        say 'not root: no engine is started, and tests that need one say that they are skipped'
        return
    fi
    # A network namespace of its own: it changes nothing of the machine's.
    setsid unshare -n -- sh -c 'ip link set lo up; exec "$@"' sh \
        "$(command -v dockerd || echo /usr/sbin/dockerd)" \
        --data-root "$place/data" --exec-root "$place/exec" -H "$host" -p "$place/pid" \
        >"$place/log" 2>&1 &
    for n in $(seq 1 $((ENGINE_PATIENCE_S * 10))); do
        if docker -H "$host" version >/dev/null 2>&1; then
            printf 'export DOCKER_HOST=%q\n' "$host"
            return
        fi
        sleep 0.1
    done
    tail -n 20 "$place/log" >&2
    fail "the Docker engine did not start ($n tries)"
}

stop() {
    local place pid left n
    [ -d "$1" ] || return 0
    place="$(realpath "$1")"
    if [ -s "$place/pid" ]; then
        pid="$(cat "$place/pid")"
        left="$(docker -H "unix://$place/docker.sock" ps -aq 2>/dev/null || true)"
        if [ -n "$left" ]; then
            say "tests left containers behind: $(wc -w <<<"$left")"
            # One word per container is meant.
            # shellcheck disable=SC2086
            docker -H "unix://$place/docker.sock" rm -f $left >/dev/null || true
        fi
        kill -TERM "$pid" 2>/dev/null || true
        for n in $(seq 1 200); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        if kill -0 "$pid" 2>/dev/null; then
            say "the Docker engine did not end ($n tries): it is killed"
            kill -KILL "$pid" 2>/dev/null || true
        fi
    fi
    { grep -o " $place/[^ ]*" /proc/self/mountinfo || true; } | sort -r | while read -r mounted; do
        umount -l "$mounted" 2>/dev/null || true
    done
    rm -rf "$place"
}

case "${1:-}" in
    start | stop) [ -n "${2:-}" ] || fail "$1 needs a directory" ;;
    *) fail 'start DIR, or stop DIR' ;;
esac
"$1" "$2"
