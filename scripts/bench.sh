#!/usr/bin/env bash
# Measures the kernel. Arguments go to the benchmark: a name to select, `--save-baseline NAME`, ...
# Figures of two machines, or of a busy one, cannot be compared.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

exec cargo bench --locked --quiet -p kernel --bench kernel -- "$@"
