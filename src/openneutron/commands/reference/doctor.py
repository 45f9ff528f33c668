"""Check the installation: versions, compilers, native libraries, cross tools, vendor SDK.

What is missing comes with the way to mend it. With FILE.pte: what can be known of that program, whoever made
it, and whether NXP's modelrunner firmware would run it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from openneutron.diagnostics import fail
from openneutron.environment.versions import EXECUTORCH, PYTHONS, SEEN, executorch_version

NAME = "doctor"
HELP = "check the installation"
OK, NOTE, BAD = "ok", "note", "bad"


@dataclass(frozen=True)
class Check:
    """One finding: what was looked at, how it is, and what to do if it is not well."""

    what: str
    state: str
    found: str
    remedy: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "file", nargs="?", metavar="FILE.pte", help="say of a program what can be known of it"
    )
    parser.add_argument(
        "--litert", metavar="F.tflite", help="the graph its delegate was made of: an estimate"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def execute(args: argparse.Namespace) -> int:
    """Print all findings; exit 1 if one is bad."""
    if args.file is not None:
        return _program(args)
    if args.litert:
        fail("ON104", "option --litert", "belongs to a program", "Give FILE.pte.")
    checks = examine()
    if args.json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        _print(checks)
    return int(any(check.state == BAD for check in checks))


def _program(args: argparse.Namespace) -> int:
    """What can be known of a program, whoever made it."""
    from openneutron.board.describe import describe_program
    from openneutron.package.pte import check_program, parse_program, read_program

    data, where = read_program(Path(args.file))
    info = parse_program(data, where, check_program(data, where))
    lines = describe_program(data, info, where)
    if args.litert:
        from openneutron.report.litert_estimate import litert_estimate

        lines.append(litert_estimate(Path(args.litert)).sentence)
    print(json.dumps({"program": args.file, "lines": lines}, indent=2) if args.json else "\n".join(lines))
    return 0


def examine() -> list[Check]:
    """Every finding."""
    return [
        _python(),
        *_packages(),
        *_executorch(),
        *_compilers(),
        *_native(),
        *_cross_tools(),
        *_sources(),
        _sdk(),
    ]


def _python() -> Check:
    first, last = (".".join(map(str, v)) for v in PYTHONS)
    fine = PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]
    remedy = "" if fine else f"Use Python {first} to {last}: make PYTHON=... setup"
    return Check("Python", OK if fine else BAD, platform.python_version(), remedy)


def _executorch() -> list[Check]:
    """What is known of each release of ExecuTorch, the installed one marked."""
    installed = executorch_version()
    return [
        Check(
            f"with executorch {version}",
            OK if version == EXECUTORCH else NOTE,
            seen,
            "installed" if version == installed else f"nothing to do: {EXECUTORCH} is wanted",
        )
        for version, seen in SEEN.items()
    ]


def _packages() -> list[Check]:
    checks = []
    for line in requires("openneutron") or []:
        if ";" in line:
            continue  # optional
        name, _, wanted = line.partition("==")
        name = name.split(">")[0].strip()
        try:
            installed = version(name)
        except PackageNotFoundError:
            checks.append(Check(name, BAD, "not installed", f"pip install '{line}'"))
            continue
        fits = not wanted or installed.split("+")[0] == wanted.strip()
        remedy = "" if fits else f"pip install '{line}': results are defined by this version"
        checks.append(Check(name, OK if fits else BAD, installed, remedy))
    return checks


def _compilers() -> list[Check]:
    checks = []
    for tool in ("gcc", "g++"):
        path = shutil.which(tool)
        remedy = "" if path else "Install a C and C++ compiler (Debian: apt-get install g++)"
        checks.append(Check(tool, OK if path else NOTE, "installed" if path else "not found", remedy))
    return checks


def _native() -> list[Check]:
    from openneutron.diagnostics import OpenNeutronError

    folder = Path(__file__).resolve().parents[2] / "_native"
    build = "make setup (in the repository), or install the package again"
    checks = []
    for name in ("libneutron.so", "libneutron_backend.so", "libneutron_cortex_m.so", "neutron_rehearse"):
        there = (folder / name).exists()
        checks.append(
            Check(name, OK if there else BAD, "built" if there else "missing", "" if there else build)
        )
    if all(check.state == OK for check in checks):
        try:
            from openneutron.run.delegate import load_runtime

            names = load_runtime().operator_registry.operator_names
            checks.append(Check("ExecuTorch delegate", OK, "loads and registers NeutronBackend"))
            checks.append(_cortex_m_kernels(names))
        except (OpenNeutronError, ImportError, OSError) as error:
            checks.append(Check("ExecuTorch delegate", BAD, str(error).splitlines()[0], build))
    checks.append(_clash())
    return checks


def _cortex_m_kernels(registered: set[str]) -> Check:
    from openneutron.run.delegate import cortex_m_operators

    missing = sorted(cortex_m_operators() - registered)
    if missing:
        remedy = "Programs that call these run on the target only; with the pinned executorch there are none"
        return Check("cortex_m kernels", NOTE, f"none for {', '.join(missing)}", remedy)
    return Check("cortex_m kernels", OK, f"all {len(cortex_m_operators())} operators registered for the host")


def _clash() -> Check:
    # Looked up, not imported: importing it is what would cause the clash.
    loaded = [m for m in sys.modules if m.startswith("executorch.backends.nxp")]
    if loaded:
        return Check("NeutronBackend", BAD, f"also in {loaded[0]}", "Import only one of the two in a process")
    return Check("NeutronBackend", OK, "only OpenNeutron's is imported")


def _cross_tools() -> list[Check]:
    package = {
        "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
        "arm-none-eabi-g++": "gcc-arm-none-eabi libstdc++-arm-none-eabi-newlib",
        "qemu-system-arm": "qemu-system-arm",
    }
    checks = []
    for tool, name in package.items():
        path = shutil.which(tool)
        remedy = "" if path else f"Only for firmware images: apt-get install {name}"
        checks.append(Check(tool, OK if path else NOTE, "installed" if path else "not found", remedy))
    return checks


def _sources() -> list[Check]:
    """What firmware with ExecuTorch's runtime is built of, and where it is kept once it is built."""
    from openneutron.firmware.sources import source_states
    from openneutron.firmware.toolchain import cache_folder

    checks = []
    for state in source_states():
        what = f"{state.name}'s source"
        if state.place is None:
            remedy = f"Only for firmware that runs whole programs: {state.command}"
            checks.append(Check(what, NOTE, state.problem, remedy))
        elif state.problem:
            checks.append(Check(what, BAD, f"{state.place}: {state.problem}", state.command))
        else:
            same = ": schema and operator lists equal the installed package's"
            checks.append(Check(what, OK, f"{state.place}{same if state.name == 'ExecuTorch' else ''}"))
    kept = cache_folder()
    checks.append(
        Check("firmware cache", OK, f"{kept}{'' if kept.exists() else ' (empty)'}", f"Wipe: rm -r {kept}")
    )
    return checks


def _sdk() -> Check:
    from openneutron.converter.eiq_versions import DISTRIBUTION, FIRMWARE, WANTED, fit, installed_version

    if importlib.util.find_spec(DISTRIBUTION) is None:
        remedy = f"Only for --converter eiq (NXP silicon); from NXP, version {WANTED}"
        return Check(DISTRIBUTION, NOTE, "not installed", remedy)
    installed = installed_version()
    if installed is None:
        return Check(DISTRIBUTION, NOTE, "version unknown", f"ExecuTorch {EXECUTORCH} asks for {WANTED}")
    if problem := fit(installed):
        return Check(
            DISTRIBUTION, NOTE, f"{installed}: {problem}", f"pip install {DISTRIBUTION}=={WANTED}, from NXP"
        )
    return Check(DISTRIBUTION, OK, f"{installed}, for the firmware of {FIRMWARE[installed]}")


def _print(checks: list[Check]) -> None:
    from rich.table import Table

    from openneutron.report.terminal import make_console, styled

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    style = {OK: "green", NOTE: "yellow", BAD: "bold red"}
    for check in checks:
        table.add_row(
            styled(f"[{style[check.state]}]{{}}[/]", check.state), check.what, check.found, check.remedy
        )
    make_console().print(table)
