#!/usr/bin/env bash
# check-budget.sh BUDGET.toml [--trust]: one step of a CI. `openneutron check` for people (the table, in the job's
# summary too) and for scripts (the JSON).
set -uo pipefail
budget=$1
trust=${2:-}
case "$trust" in "" | --trust) ;; *) echo "error: '$trust' is not --trust" >&2; exit 2 ;; esac
report="${RUNNER_TEMP:-${TMPDIR:-/tmp}}/openneutron-check.json"
openneutron check --quiet --json ${trust:+"$trust"} -- "$budget" > "$report"
code=$?
# -I: no module of the current folder, which is the project that is checked, is imported.
table=$(python3 -I - "$report" <<'PY'
import html, json, re, sys


def cell(value):
    """Text of a file as text: no markup, no link, no command for a terminal."""
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    return re.sub(r"([\\`*_\[\]!|~@:])", r"\\\1", html.escape(text, quote=False))


try:
    models = json.load(open(sys.argv[1], encoding="utf-8"))["models"]
except ValueError:
    sys.exit("no figures: see the error above")
print("| model | what | budget | is | |\n|---|---|---|---|---|")
for model in models:
    rows = [(c["label"], f"{c['budget']} {c['unit']}", c["actual"], c["ok"]) for c in model["checks"]]
    if model["problem"]:
        rows.append((model["problem"], "", "", False))
    for *cells, ok in rows:
        print("|", *(f"{cell(v)} |" for v in (model["name"], *cells)), "ok |" if ok else "**FAIL** |")
PY
)
echo "$table"
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then echo "$table" >> "$GITHUB_STEP_SUMMARY"; fi
if [ -n "${GITHUB_OUTPUT:-}" ]; then echo "report=$report" >> "$GITHUB_OUTPUT"; fi
exit "$code"
