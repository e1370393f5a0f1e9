#!/usr/bin/env bash
# The package for Python (sdk/python) against a server of its own, and what tools say about its source. See
# served.sh for what can be set and how it ends. Arguments are passed on to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
# shellcheck source=scripts/served.sh
. scripts/served.sh

# Of one version each; another place when one of them changes.
readonly PACKAGES=(
    pytest==9.2.0 pytest-asyncio==1.4.1.post1 httpx==0.28.1 websockets==17.4
    mypy==2.4.1 ruff==0.17.4 hatchling==1.33.0
)
readonly SDK="$PWD/sdk/python"
readonly PATIENCE_S=300
VENV="$TARGET/python-sdk-$(printf '%s ' "${PACKAGES[@]}" | cksum | cut -d' ' -f1)"
readonly VENV

need_server
need_inside /usr/bin/python3 'is tried inside sandboxes'
install_python 'tools for the package for Python' "$VENV" 'pytest, httpx, websockets, mypy, hatchling' "${PACKAGES[@]}"
# As its users have it: what is not in the package is not there.
timeout 120 "$VENV/bin/pip" --disable-pip-version-check install --quiet --no-deps --no-build-isolation \
    --no-index "$SDK" || fail 'the package cannot be built'

export PYTHONDONTWRITEBYTECODE=1
"$VENV/bin/ruff" check --no-cache "$SDK" || fail 'ruff found something'
"$VENV/bin/ruff" format --no-cache --check --quiet "$SDK" || fail "it is not formatted: ruff format $SDK"
"$VENV/bin/mypy" --config-file "$SDK/pyproject.toml" --cache-dir "$VENV/mypy" || fail 'mypy found something'

start_server "$((PATIENCE_S + 60))" admin.key
SHOAL_API_KEY="$(cat "$data/admin.key")"
export SHOAL_URL="$url" SHOAL_API_KEY
attempt "$PATIENCE_S" 'the package for Python' \
    "$VENV/bin/python" -m pytest -q -p no:cacheprovider --rootdir "$SDK" "$SDK/tests" "$@"
end_server
