#!/usr/bin/env bash
# install-for-ci.sh [REQUIREMENT]: OpenNeutron for a job of a CI, in a virtual environment that later steps find.
# Without a requirement it is this checkout, with every package pinned and checked against its hash (`make setup`).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
requirement=${1:-}
venv="${RUNNER_TEMP:-${TMPDIR:-/tmp}}/openneutron-venv"
case "$requirement" in
  *[[:cntrl:]]*) echo "error: requirement: more than one line" >&2; exit 2 ;;
  [[:space:]]*-* | -*) echo "error: requirement '$requirement': an option of pip is no requirement" >&2; exit 2 ;;
esac
if [ -z "$requirement" ]; then
  make -C "$here" setup PYTHON=python VENV="$venv"
else
  python -m venv "$venv"
  "$venv/bin/python" -m pip install --progress-bar off -- "$requirement"
fi
if [ -n "${GITHUB_PATH:-}" ]; then echo "$venv/bin" >> "$GITHUB_PATH"; fi
