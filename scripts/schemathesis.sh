#!/usr/bin/env bash
# Schemathesis against the document that a server serves: whatever is sent, no answer is a mistake of
# the server, and none is undocumented. Starts servers of its own and stops them again. See served.sh for
# what else can be set.
#
#   EXAMPLES=20                   how many requests to each route are made up
#   ROLES='admin use read'        with keys of which roles
#   PHASES='examples,coverage,fuzzing,stateful'   which of its phases
#   SEED=1                        the same seed makes up the same requests
#   REPORT_DIR=DIR                where to leave report and log of a role that failed
#
# Ends with 0 if nothing was found, 1 if something was, 3 if it cannot be tried here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
# shellcheck source=scripts/served.sh
. scripts/served.sh

readonly VERSION=4.32.5
readonly EXAMPLES="${EXAMPLES:-20}"
readonly ROLES="${ROLES:-admin use read}"
readonly PHASES="${PHASES:-examples,coverage,fuzzing,stateful}"
readonly SEED="${SEED:-1}"
readonly here="$PWD/scripts/schemathesis"
readonly VENV="$TARGET/schemathesis-$VERSION"
# Five minutes for what is always sent, and some for every example. A usual run takes one.
readonly PATIENCE_S="$((300 + EXAMPLES * 10))"

# JSON is asked for, or the routes that can stream would go on for ever.
check_role() {
    local role="$1" keys key status=0
    rm -rf "$data" "$work/.schemathesis" "$work/.hypothesis"
    # Waits are short, so that an answer that nobody can help comes soon.
    start_server "$((PATIENCE_S + 120))" admin.key --set node.max_live=16 --set node.wait_ms=1000 \
        --set node.control_timeout_ms=3000
    if ! keys="$(timeout 60 python3 "$here/keys.py" "$url" "$data" "$role")"; then
        tail -n 20 "$work/log"
        fail 'the server made no keys'
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
            --max-examples "$EXAMPLES" --phases "$PHASES" --seed "$SEED" --continue-on-failure --no-color
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
    end_server
    env EXAMPLES="$EXAMPLES" python3 "$here/answers.py" "$role" "$work/answers" \
        || fail "with a key of the role $role nothing but refusals was looked at"
}

need_server
install_python schemathesis "$VENV" schemathesis "schemathesis==$VERSION"
readonly schemathesis="$VENV/bin/schemathesis"
for role in $ROLES; do
    check_role "$role"
done
