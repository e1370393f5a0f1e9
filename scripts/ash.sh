#!/usr/bin/env bash
# The unmodified Python client of Ash against a server of its own. See served.sh for what can be set and
# how it ends.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
# shellcheck source=scripts/served.sh
. scripts/served.sh

readonly VERSION=0.0.22
readonly VENV="$TARGET/ash-ai-sdk-$VERSION"
readonly PATIENCE_S=180
readonly here="$PWD/scripts/ash"

need_server
need_inside /usr/bin/node 'the bridge needs'
install_python 'client of Ash' "$VENV" ash_sdk "ash-ai-sdk==$VERSION"
ash_port="$(free_port)"
export ASH_PORT="$ash_port" ASH_BRIDGE_ENTRY=/workspace/bridge.mjs
start_server "$((PATIENCE_S + 60))" initial-api-key --ash --set ash.agent_roots="$here"
attempt "$PATIENCE_S" 'the client of Ash' \
    "$VENV/bin/python" "$here/client.py" "http://127.0.0.1:$ash_port" "$(cat "$data/initial-api-key")" "$here/agent"
end_server
