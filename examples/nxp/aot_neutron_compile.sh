#!/usr/bin/env bash
# Quantize a model and compile it for the Neutron NPU of i.MX RT700:
#   ./examples/nxp/aot_neutron_compile.sh [cifar10|mobilenetv2]
# writes <model>_nxp_delegate.pte into the current folder. PYTHON_EXECUTABLE names another interpreter.
set -euo pipefail

MODEL="${1:-cifar10}"
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON="${PYTHON_EXECUTABLE:-$ROOT/.venv/bin/python}"
if ! command -v "$PYTHON" >/dev/null; then
  echo "error: $PYTHON not found; run \`make setup\` first, or set PYTHON_EXECUTABLE" >&2
  exit 1
fi

PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" -m examples.nxp.aot_neutron_compile \
  --quantize --delegate -m "$MODEL"
