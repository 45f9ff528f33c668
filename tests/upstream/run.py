"""`make upstream`: ExecuTorch's own tests over the open converter, and what became of them.

    python -m tests.upstream.run [nxp | nxp-suite | suite ...] [--sample N] [--results FOLDER]

`nxp` are the tests of its NXP backend, which the wheel has, unchanged over `openneutron.sdk`; `nxp-suite` its
shared operator suite with its NXP flow, the same way; `suite` that suite with OpenNeutron's flow. Failures
that tests/upstream/expected.txt explains are counted by reason; any other makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

from openneutron.environment.versions import executorch_folder

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# What the tests import beyond the packages that OpenNeutron's own tests need; taken from PyPI, beside them.
PACKAGES = ("pytest-mock==3.17.0", "polars==2.1.0", "polars-runtime-32==2.1.0", "gvgen==1.0")
PARTS = {
    "nxp": ("backends/nxp/tests", ["-p", "openneutron.sdk.plugin"]),
    "nxp-suite": ("backends/test/suite/operators", ["-p", "openneutron.sdk.plugin", "-m", "backend_nxp"]),
    "suite": ("backends/test/suite/operators", ["-p", "tests.upstream.suite"]),
}


def main() -> int:
    """Run the parts, print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all three")
    parser.add_argument("--sample", type=int, default=0, help="so many tests of each part; 0: all")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "upstream")
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    install(args.results / "packages")
    unexplained = 0
    for part in args.parts or PARTS:
        results = run(part, args.results, args.sample)
        unexplained += report(part, results)
    return 1 if unexplained else 0


def install(folder: Path) -> None:
    """What the tests import, into a folder of its own."""
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(folder), *PACKAGES], check=True)


def run(part: str, folder: Path, sample: int) -> list[dict[str, str]]:
    """What became of each test of a part."""
    place, options = PARTS[part]
    tests, results = executorch_folder() / place, folder / f"{part}.jsonl"
    results.unlink(missing_ok=True)
    work = folder / "work"  # the tests write to the working directory
    work.mkdir(exist_ok=True)
    paths = [ROOT, HERE / "absent", folder / "packages", os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, filter(None, paths)))}
    command = [
        sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-c", os.devnull, "--rootdir", str(tests),
        "-p", "no:cacheprovider", "-p", "tests.upstream.record", "--sample", str(sample), "--results",
        str(results), "--timeout", "300", "--continue-on-collection-errors", "--tb=no", *options,
        str(tests),
    ]  # fmt: skip
    subprocess.run(command, cwd=work, env=environment, check=False)
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def report(part: str, results: list[dict[str, str]]) -> int:
    """Print what passed, and what failed by its reason; how many failed without one."""
    counts = Counter(entry["outcome"] for entry in results)
    reasons: Counter[str] = Counter()
    strange = []
    for entry in results:
        if entry["outcome"] in ("failed", "not collected"):
            why = reason(part, entry)
            reasons[why or "not explained"] += 1
            strange += [] if why else [entry]
    total = sum(counts.values()) - counts["skipped"]
    print(f"{part}: {counts['passed']} of {total} pass, {counts['skipped']} are skipped")
    for why, count in reasons.most_common():
        print(f"    {count:4}  {why}")
    for entry in strange:
        print(f"  {entry['test']}\n      {' '.join(entry['why'].split())[:300]}")
    if not counts["passed"]:
        print(f"{part}: nothing passed")
    return len(strange) + (not counts["passed"])


def reason(part: str, entry: dict[str, str]) -> str | None:
    """Why a test cannot pass, if that is known."""
    if entry["why"].startswith("[XPASS(strict)]"):
        return "is marked as failing with NXP's converter, and passes"
    if "ExecuTorch has no kernel for" in entry["why"]:
        return "ExecuTorch has no kernel for its operator"
    for line in (HERE / "expected.txt").read_text().splitlines():
        pattern, _, why = line.partition("  ")
        if line and not line.startswith("#") and fnmatchcase(f"{part}:{entry['test']}", pattern):
            return why.strip()
    return None


if __name__ == "__main__":
    sys.exit(main())
