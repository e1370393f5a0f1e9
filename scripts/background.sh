#!/usr/bin/env bash
# Runs a command with what everything else leaves of the processors: scripts/background.sh COMMAND...
#
# `nice` alone is not enough: where the kernel shares processors between sessions first, it counts within
# one session only, and sandboxes under test would starve beside the command.
set -euo pipefail

if [ "${1:-}" != --in-session ]; then
    exec setsid --wait "$0" --in-session "$@"
fi
shift
# Each of these may be missing on a machine; the others still help.
echo 19 >"/proc/$$/autogroup" 2>/dev/null || true
renice -n 19 -p $$ >/dev/null 2>&1 || true
if command -v chrt >/dev/null; then exec chrt --idle 0 "$@"; fi
exec "$@"
