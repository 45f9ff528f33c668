#!/usr/bin/env bash
# One step of a CI: `openneutron check` for people (the table, in the job's summary too) and for scripts (the JSON).
set -uo pipefail
budget=$1
report="${RUNNER_TEMP:-${TMPDIR:-/tmp}}/openneutron-check.json"
openneutron check "$budget" --quiet --json > "$report"
code=$?
table=$(python3 - "$report" <<'PY'
import json, sys
try:
    models = json.load(open(sys.argv[1]))["models"]
except ValueError:
    sys.exit("no figures: see the error above")
print("| model | what | budget | is | |\n|---|---|---|---|---|")
for model in models:
    for check in model["checks"]:
        verdict = "ok" if check["ok"] else "**FAIL**"
        row = model["name"], check["label"], f"{check['budget']} {check['unit']}", check["actual"], verdict
        print("|", *(f"{cell} |" for cell in row))
    if model["problem"]:
        print(f"| {model['name']} | {model['problem']} | | | **FAIL** |")
PY
)
echo "$table"
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then echo "$table" >> "$GITHUB_STEP_SUMMARY"; fi
if [ -n "${GITHUB_OUTPUT:-}" ]; then echo "report=$report" >> "$GITHUB_OUTPUT"; fi
exit "$code"
