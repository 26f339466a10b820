#!/usr/bin/env bash
# Write the complete lock of an example again, for Python 3.11 and later on every platform: ./examples/lock.sh ocr
# These locks are installed with --no-deps: `uv` then needs no resolver, and opencv-python stays out.
set -euo pipefail
cd "$(dirname "$0")/${1:?usage: lock.sh ocr|filetype}"
overrides=()
[ ! -f overrides.txt ] || overrides=(--override overrides.txt)
exec ../../.venv/bin/uv pip compile -q --universal --python-version 3.11 --fork-strategy fewest --upgrade \
  --generate-hashes --no-annotate --no-header --no-emit-package opencv-python --no-emit-package colorama \
  "${overrides[@]}" requirements.in -o requirements.txt
