#!/usr/bin/env bash
# The unmodified Python and TypeScript clients of Blaxel against a server of their own. See served.sh for
# what can be set and how it ends.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
# shellcheck source=scripts/served.sh
. scripts/served.sh

readonly PYTHON_VERSION=0.4.20
readonly NODE_VERSION=0.3.21
readonly VENV="$TARGET/blaxel-python-$PYTHON_VERSION"
readonly MODULES="$TARGET/blaxel-node-$NODE_VERSION"
readonly PATIENCE_S=180
readonly here="$PWD/scripts/blaxel"

install_node() {
    command -v npm >/dev/null || skip 'no TypeScript client of Blaxel (no npm)'
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

need_server
need_inside /usr/bin/python3 'is tried inside sandboxes'
install_python 'Python client of Blaxel' "$VENV" blaxel "blaxel==$PYTHON_VERSION"
install_node
start_server "$((2 * PATIENCE_S + 60))" admin.key
BL_API_URL="$url/compat/blaxel"
BL_API_KEY="$(tr -d '[:space:]' <"$data/admin.key")"
export BL_API_URL BL_API_KEY BL_WORKSPACE=shoal BL_RUN_URL="$BL_API_URL" BL_REGION=local BL_DISABLE_H2=1 DO_NOT_TRACK=1
# Nothing of a developer's own account counts.
export HOME="$work"
attempt "$PATIENCE_S" 'the Python client of Blaxel' "$VENV/bin/python" "$here/client.py" "$BL_API_URL" "$work"
attempt "$PATIENCE_S" 'the TypeScript client of Blaxel' node "$here/client.mjs" "$MODULES"
end_server
