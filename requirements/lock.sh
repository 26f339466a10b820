#!/usr/bin/env bash
# Write one lock file: ./requirements/lock.sh uv|local|dev
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { .venv/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header "$@"; }
case "$1" in
  uv) compile requirements/uv.in -o requirements/uv.txt ;;
  local) compile --extra local pyproject.toml -o requirements/local.txt ;;
  dev) compile --extra local --extra dev -c requirements/local.txt pyproject.toml -o requirements/dev.txt ;;
  *) echo "usage: $0 uv|local|dev" >&2; exit 2 ;;
esac
