#!/usr/bin/env bash
# The official Python client of the Model Context Protocol against a server of its own, over HTTP and
# over standard input and output. See served.sh for what can be set and how it ends.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
# shellcheck source=scripts/served.sh
. scripts/served.sh

readonly VERSION=1.30.0
readonly VENV="$TARGET/mcp-$VERSION"
readonly PATIENCE_S=180

need_server
need_inside /usr/bin/python3 'is tried inside sandboxes'
install_python 'client of MCP' "$VENV" mcp "mcp==$VERSION"
start_server "$((PATIENCE_S + 60))" admin.key
attempt "$PATIENCE_S" 'the client of MCP' \
    "$VENV/bin/python" scripts/mcp/client.py "$url" "$(cat "$data/admin.key")" "$BIN" "$data"
end_server
