#!/usr/bin/env bash
# What is tried in the virtual machine:  checks.sh LAYOUT
# Each check is a function or a test that fails by itself; its name and result go to out/results, what
# it said to a file beside it. Ends the machine when all are done.
set -u
exec </dev/null 2>&1
layout="$1"
cd /tmp || exit 1
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TEST_SLOWNESS=8
readonly PAYLOAD=/mnt/payload GROUPS_TOP=/sys/fs/cgroup
readonly OUT="$PAYLOAD/out"
readonly SESSION="$GROUPS_TOP/user.slice/user-1000.slice/session-1.scope"
readonly MANAGER="$GROUPS_TOP/user.slice/user-1000.slice/user@1000.service"
cp "$PAYLOAD/it" "$PAYLOAD/shoal" /tmp/
mapfile -t only < <(grep . "$PAYLOAD/only")
number=0

# Runs a check, with a deadline and in a shell of its own.
check() {
    local name="$1" seconds="$2" word=ok wanted=''
    shift 2
    for part in "${only[@]}"; do [[ "$name" == *"$part"* ]] && wanted=yes; done
    [ "${#only[@]}" = 0 ] || [ -n "$wanted" ] || return 0
    number=$((number + 1))
    local log="$OUT/$number.log" started=$SECONDS
    export -f "${functions[@]}"
    timeout --kill-after 5 "$seconds" bash -c '"$@"' check "$@" >"$log" 2>&1 || word=FAILED
    printf '%s\t%s\n' "$name" "$word" >>"$OUT/results"
    printf '%-6s %4d s  %s\n' "$word" $((SECONDS - started)) "$name"
    [ "$word" = ok ] || sed 's/^/        /' "$log" | tail -n 25
}

# Tests of tests/it by name, each as a check. What is to be said of them beside their names comes first,
# then how many words there are that start them, and these words.
tests() {
    local beside="$1" words="$2" name
    shift 2
    local start=("${@:1:$words}")
    shift "$words"
    for name in "$@"; do
        check "\`${name##*::}\`$beside" 600 "${start[@]}" \
            /tmp/it --exact "$name" --include-ignored --nocapture
    done
}

expect() {
    local expected="$1" found="$2"
    [ "$found" = "$expected" ] && return
    printf 'expected: %s\nfound:    %s\n' "$expected" "$found"
    return 1
}

# Runs a program in a control group.
in_group() {
    local group="$1"
    shift
    # $$ is of the shell that becomes the program.
    # shellcheck disable=SC2016
    bash -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' in_group "$group" "$@"
}

# Lets the children of these groups have controllers, from the top down.
give_controllers() {
    for group in "$@"; do echo '+cpu +memory +pids' >"$group/cgroup.subtree_control" || return; done
}

# Runs a program as an ordinary user in a control group.
as_user_in() {
    local group="$1"
    shift
    in_group "$group" setpriv --reuid=1000 --regid=1000 --clear-groups \
        env HOME=/home/shoal TMPDIR=/home/shoal/tmp "$@"
}

# The same where a session manager starts programs: in a new group of his, for each one.
as_user_of_a_session() {
    local scope="$MANAGER/app.slice/run-$$.scope"
    mkdir "$scope" || return
    hand_over "$scope" || return
    as_user_in "$scope" "$@"
}

# What is handed over belongs to the user; nothing above it does.
hand_over() {
    for group in "$@"; do
        chown 1000:1000 "$group" "$group"/cgroup.{procs,subtree_control,threads} || return
    done
}

mark_as_handed_over() {
    python3 -c 'import os,sys; os.setxattr(sys.argv[1], "trusted.delegate", b"1")' "$1"
}

# What systemd makes for a user who has a session manager.
make_session() {
    mkdir -p "$MANAGER/app.slice" "$SESSION"
    give_controllers "$GROUPS_TOP" "$GROUPS_TOP/user.slice" "$GROUPS_TOP/user.slice/user-1000.slice" \
        "$MANAGER" "$MANAGER/app.slice"
    hand_over "$MANAGER" "$MANAGER/app.slice"
    mark_as_handed_over "$MANAGER"
    echo 'shoal:x:1000:1000::/home/shoal:/bin/sh' >>/etc/passwd
    install -d -o 1000 -g 1000 /home/shoal /home/shoal/tmp
}

doctor_finds_limits() {
    /tmp/shoal doctor | tee doctor.txt || return
    for what in 'memory limit' 'cpu limit' 'process limit' 'freezing' 'a sandbox starts'; do
        grep -Eq "^$what +yes" doctor.txt || { echo "not: $what"; return 1; }
    done
}

runs_a_program() {
    expect 'hello' "$(/tmp/shoal run -- echo hello)"
}

tells_of_memory() {
    local told
    told="$(/tmp/shoal run --memory 64 --json -- tail /dev/zero)"
    echo "$told"
    grep -Eq '"oom": *true' <<<"$told"
}

serves_over_http() {
    local data=/tmp/served url=http://127.0.0.1:7600 key lease sandbox said
    /tmp/shoal serve --listen 127.0.0.1:7600 --data-dir "$data" >serve.log 2>&1 &
    local server=$!
    for _ in $(seq 300); do
        if [ -s "$data/admin.key" ] && curl -sf "$url/health" >/dev/null; then break; fi
        sleep 0.2
    done
    key="Authorization: Bearer $(cat "$data/admin.key")"
    said="$(curl -sS -H "$key" -H 'Content-Type: application/json' "$url/v1/checkouts" \
        -d '{"template":"default","wait_ms":60000}')"
    echo "$said"
    lease="$(python3 -c 'import json,sys; print(json.loads(sys.argv[1])["id"])' "$said")"
    sandbox="$(python3 -c 'import json,sys; print(json.loads(sys.argv[1])["sandbox"]["id"])' "$said")"
    said="$(curl -sS -H "$key" -H 'Content-Type: application/json' "$url/v1/sandboxes/$sandbox/exec" \
        -d '{"command":"cat /proc/self/cgroup; echo hi"}')"
    echo "$said"
    [[ "$said" == *'hi\n'* ]] || return
    expect 204 "$(curl -sS -o /dev/null -w '%{http_code}' -X DELETE -H "$key" "$url/v1/checkouts/$lease")" || return
    kill -TERM "$server"
    wait "$server" || { tail -n 20 serve.log; return 1; }
    no_groups_are_left
}

no_groups_are_left() {
    local left
    left="$(find "$GROUPS_TOP" -type d -name shoal)"
    expect '' "$left"
}

# A launcher that is killed takes its sandboxes along; its groups wait for `clean`.
cleans_up_after_a_kill() {
    /tmp/shoal run -- sleep 1000 &
    local run=$! launcher
    for _ in $(seq 300); do
        pgrep -x sleep >/dev/null && break
        sleep 0.2
    done
    launcher="$(pgrep -x shoal-launcher | head -n 1)"
    kill -9 "$run" "$launcher"
    wait
    /tmp/shoal clean || return
    ! pgrep -x sleep || return
    no_groups_are_left
}

# A service that systemd started with `Delegate=yes`: what it was given is marked, it is in there
# itself, and something else of it too.
service_stays_in_what_it_was_given() {
    local service="$GROUPS_TOP/system.slice/shoal.service" beside
    mkdir -p "$service"
    give_controllers "$GROUPS_TOP" "$GROUPS_TOP/system.slice" || return
    mark_as_handed_over "$service" || return
    in_group "$service" sleep 1000 &
    sleep 1
    beside="$(pgrep -x sleep)"
    for round in first second; do
        # The second finds itself where the first one moved everyone.
        in_group "$service$([ "$round" = first ] || echo /shoal-host)" \
            /tmp/shoal run --memory 64 -- sleep 10 &
        local run=$! guest
        for _ in $(seq 300); do
            guest="$(pgrep -x shoal-guest | head -n 1)"
            [ -n "$guest" ] && grep -q slot "/proc/$guest/cgroup" && break
            sleep 0.2
        done
        echo "$round: $(cat "/proc/$guest/cgroup")"
        grep -Eq '^0::/system.slice/shoal.service/shoal/[^/]+/slot-[0-9]+$' "/proc/$guest/cgroup" || return
        expect '0::/system.slice/shoal.service/shoal-host' "$(cat "/proc/$beside/cgroup")" || return
        expect 67108864 "$(cat "$GROUPS_TOP$(sed 's/^0:://' "/proc/$guest/cgroup")/memory.max")" || return
        wait "$run" || return
        no_groups_are_left || return
    done
    kill "$beside"
    wait
    rmdir "$service/shoal-host" "$service" "$GROUPS_TOP/system.slice"
}

# What it was given has threads in groups of their own: no process can be limited beneath it.
divided_by_threads_is_refused() {
    local service="$GROUPS_TOP/divided.service" said
    mkdir -p "$service/threads"
    give_controllers "$GROUPS_TOP" || return
    echo threaded >"$service/threads/cgroup.type" || return
    expect 'domain threaded' "$(cat "$service/cgroup.type")" || return
    mark_as_handed_over "$service" || return
    in_group "$service" /tmp/shoal doctor | tee doctor.txt
    grep -Eq '^memory limit +no .*is a threaded group' doctor.txt || return
    said="$(in_group "$service" /tmp/shoal run --memory 64 -- echo ran 2>&1)"
    echo "$said"
    [[ "$said" == *unsupported* || "$said" == *'cannot'* ]] && [[ "$said" != *ran* ]] || return
    no_groups_are_left || return
    rmdir "$service/threads" "$service"
}

mapfile -t functions < <(declare -F | cut -d' ' -f3)
export layout PAYLOAD GROUPS_TOP OUT SESSION MANAGER

case "$layout" in
    v2)
        check 'doctor finds every limit and freezing' 120 doctor_finds_limits
        check 'a program runs' 60 runs_a_program
        check 'want of memory is told' 120 tells_of_memory
        mapfile -t own < <(/tmp/it --list --ignored | sed -n 's/^\(native::cgroup_v2.*\): test$/\1/p')
        alone='native::cgroup_v2::cgroup_v2_without_groups_refuses_limits'
        for index in "${!own[@]}"; do [ "${own[index]}" = "$alone" ] && unset "own[index]"; done
        tests '' 0 "${own[@]}"
        tests '' 0 native::limits::a_fork_bomb_stays_inside \
            native::limits::memory_hog_ends_as_out_of_memory \
            native::crash::a_killed_guest_is_noticed_and_nothing_is_left \
            native::crash::a_killed_launcher_takes_everything_along \
            native::concurrent_launches::dropped_launches_leave_nothing \
            native::isolation::nothing_of_the_host_is_reachable
        check 'a server serves and stops' 300 serves_over_http
        check 'what a killed run leaves is removed' 120 cleans_up_after_a_kill
        check 'a service stays in the group it was given' 300 service_stays_in_what_it_was_given
        check 'a group that is divided by threads is refused' 120 divided_by_threads_is_refused
        make_session
        who=', as a user without subordinate users'
        tests "$who" 2 as_user_in "$SESSION" "$alone"
        tests "$who, in groups of his own" 1 as_user_of_a_session "${own[@]}"
        for file in /etc/subuid /etc/subgid; do echo 'shoal:200000:65536' >>"$file"; done
        who=', as a user with subordinate users'
        tests "$who" 2 as_user_in "$SESSION" "$alone"
        tests "$who, in groups of his own" 1 as_user_of_a_session "${own[@]}"
        ;;
    v1)
        check 'doctor finds every limit and freezing' 120 doctor_finds_limits
        check 'a program runs' 60 runs_a_program
        check 'want of memory is told' 120 tells_of_memory
        tests '' 0 native::limits::a_fork_bomb_stays_inside \
            native::limits::memory_hog_ends_as_out_of_memory \
            native::modes::every_way_to_a_network_and_to_groups_gives_the_same_sandbox
        check 'what a killed run leaves is removed' 120 cleans_up_after_a_kill
        ;;
esac
touch "$OUT/finished"
sync
echo o >/proc/sysrq-trigger
sleep 10
