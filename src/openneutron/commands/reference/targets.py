"""The chips: what is known of each, what is assumed, which are refused and why.

--table prints the published times beside the estimates. --predict writes predictions for a list of networks
to a file, before anything is measured; --measured says what new measurements do to the estimate.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.diagnostics import fail, printable
from openneutron.targets.chip import Target
from openneutron.targets.table import MEASURED, REFUSED_TARGETS, TARGETS, find_target

if TYPE_CHECKING:
    from openneutron.bench.published import Refit

NAME = "targets"
HELP = "the chips, how good their estimates are, predictions"
_MOST_ROWS = 200
_LEAST_TO_FIT = 3
_FIELDS = {"network", "target", "microseconds", "source"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("name", nargs="?", metavar="TARGET", help="only this chip")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--table", action="store_true", help="published times beside the estimates")
    what.add_argument("--predict", metavar="LIST", help="a file: a network and chips a line (zoo: all of it)")
    what.add_argument("--measured", metavar="FILE.json", help="new times: old and new errors, each left out")
    add("--add", action="store_true", help="with --measured: keep them in the table of a clone")
    add("--fit", action="store_true", help="with --add: the fitted parameters are the chip's from now on")
    add("-o", "--output", metavar="FILE", help="of --predict: JSON; of --measured: the fitted chip as TOML")
    add("--json", action="store_true", help="as JSON")


def execute(args: argparse.Namespace) -> None:
    """Print or write what was asked for."""
    if args.add and not args.measured:
        fail("ON104", "option --add", "is of --measured", "Leave it out.")
    if args.fit and not args.add:
        fail("ON104", "option --fit", "is of --add", "Leave it out, or keep the times too: --add --fit.")
    if args.output and not (args.predict or args.measured):
        fail("ON104", "option --output", "is of --predict and --measured", "Leave it out.")
    if args.name and (args.predict or args.measured):
        option = "--predict" if args.predict else "--measured"
        fail("ON104", f"target '{args.name}'", f"has no effect on {option}", "Its file names the chips.")
    if args.predict:
        _predict(args)
    elif args.measured:
        _measured(args)
    elif args.table:
        _table(args)
    else:
        _list(args)


def _chosen(name: str | None) -> list[Target]:
    if name is None:
        return list(TARGETS.values())
    return [] if name in REFUSED_TARGETS else [find_target(name)]


def describe(target: Target) -> dict[str, Any]:
    """What is known of a chip, as plain data."""
    facts = [{"text": f.text, "source": f.source, "assumed": f.assumed} for f in target.facts]
    return {
        "name": target.name,
        "chip": target.chip,
        "npu": target.hw_version,
        "pipes": target.pipes,
        "macs_per_pipe": target.macs_per_pipe,
        "frequency_hz": target.frequency_hz,
        "sram_bytes": target.sram_bytes,
        "flash_bytes": target.flash_bytes,
        "reads_flash": target.reads_flash,
        "cores": [core.name for core in target.cores],
        "facts": facts,
        "published": len(target.published),
        "fitted": sum(p.fitted for p in target.published),
        "invented": target.invented,
    }


def _list(args: argparse.Namespace) -> None:
    targets = _chosen(args.name)
    refused = [entry for entry in REFUSED_TARGETS.values() if args.name in (None, entry.name)]
    if args.json:
        rows = [{"name": r.name, "chip": r.chip, "reason": r.reason, "runtime": r.runtime} for r in refused]
        print(json.dumps({"targets": [describe(t) for t in targets], "refused": rows}, indent=2))
        return
    for target in targets:
        flash = "reads flash" if target.reads_flash else "weights are copied from flash"
        print(f"{target.name}: {target.chip}, {target.hw_version}, {target.frequency_hz / 1e6:g} MHz, "
              f"{target.sram_bytes:,} bytes of SRAM, {flash}")  # fmt: skip
        if target.invented:
            print(f"  invented: {target.invented}")
        for fact in target.facts:
            print(f"  {'assumed' if fact.assumed else 'known'}: {fact.text} ({fact.source})")
        fitted = sum(p.fitted for p in target.published)
        print(f"  published times: {len(target.published)}, {fitted} used for fitting")
    for entry in refused:
        print(f"{entry.name}: refused: {entry.reason}. With --converter eiq, if the SDK takes it, a program "
              f"runs on {entry.runtime}.")  # fmt: skip


def _table(args: argparse.Namespace) -> None:
    from openneutron.report.cost_model import band, error_label, measurements

    names = [t.name for t in _chosen(args.name)]
    rows = [m for m in measurements() if m.target in names]
    if args.name and not rows and not args.json:
        print(f"of {args.name} no time is published")
        return
    if args.json:
        data = [{**vars(m), "error": round(m.error, 4)} for m in rows]
        print(json.dumps({"published": data, "label": error_label()}, indent=2))
        return
    print(f"{'chip':<10}{'on':<5}{'network':<44}{'published us':>13}{'estimated':>11}{'error':>8}  used for")
    for m in rows:
        used = "fitting" if m.fitted else f"shown only: {m.set_aside}" if m.set_aside else "checking"
        micro = m.estimated_cycles / m.published_cycles * m.microseconds
        print(f"{m.target:<10}{m.on:<5}{m.model:<44}{m.microseconds:>13,.0f}{micro:>11,.0f}{m.error:>+8.1%}"
              f"  {used}; {m.source}")  # fmt: skip
    print(f"bands: NPU {band('npu')}, CPU {band('cpu')}, single layers on the CPU {band('cpu', layers=True)}")


def _predict(args: argparse.Namespace) -> None:
    from openneutron.commands.progress import Steps
    from openneutron.commands.reference.predictions import predict, read_list
    from openneutron.files import check_writable, write_atomically

    questions = read_list(Path(args.predict))
    if args.output:
        check_writable(Path(args.output))
    with Steps().step(f"Predicting {len(questions)} network(s)"):
        data = predict(questions)
    text = json.dumps(data, indent=1) + "\n"
    if not args.output:
        print(text, end="")
        return
    write_atomically(Path(args.output), text.encode())
    refused = sum(row["npu"] is None for row in data["predictions"])
    print(
        f"{printable(args.output)}: {len(data['predictions'])} predictions, {refused} refused; {data['date']}"
    )


def read_measured(path: Path) -> dict[str, list[Any]]:
    """New measurements by chip; the file comes from anywhere, so every field is checked."""
    from openneutron.bench.published import find_network
    from openneutron.files import read_text
    from openneutron.targets.chip import Published

    hint = 'Rows: [{"network": "cifarnet", "target": "imxrt700", "microseconds": 1010, "source": "my board"}]'
    try:
        rows = json.loads(read_text(path, "ON602"))
    except (ValueError, RecursionError) as error:
        fail("ON602", str(path), f"is not JSON: {error}", hint)
    if not isinstance(rows, list) or not 0 < len(rows) <= _MOST_ROWS:
        fail("ON602", str(path), f"is not a list of 1 to {_MOST_ROWS} measurements", hint)
    by_network: dict[str, list[Any]] = {}
    for number, row in enumerate(rows):
        where = f"{path}: row {number}"
        if not isinstance(row, dict) or not _FIELDS <= set(row) <= _FIELDS | {"on", "weights_in_flash"}:
            fail("ON602", where, "has not network, target, microseconds, source (on, weights_in_flash)", hint)
        micro, texts = row["microseconds"], [row["network"], row["target"], row["source"]]
        on, in_flash = row.get("on", "npu"), row.get("weights_in_flash", False)
        if on not in ("npu", "cpu") or not isinstance(in_flash, bool):
            fail("ON602", where, "on is npu or cpu, weights_in_flash true or false", hint)
        if not all(isinstance(text, str) and 0 < len(text) < 500 for text in texts):
            fail("ON602", where, "network, target and source are texts", hint)
        if isinstance(micro, bool) or not isinstance(micro, int | float) or not 0 < micro < 1e12:
            fail("ON602", where, "microseconds is not a number above 0", hint)
        if (target := find_target(row["target"])).invented:
            fail("ON602", where, f"nobody has measured an invented chip ({target.invented})", hint)
        if in_flash and (target.reads_flash or on == "cpu"):
            fail("ON602", where, "weights_in_flash is for weights that the CPU copies for the NPU", hint)
        find_network(row["network"])
        kept = Published(row["network"], micro, row["source"], on, weights_in_flash=in_flash)
        by_network.setdefault(row["target"], []).append(kept)
    return by_network


def _measured(args: argparse.Namespace) -> None:
    from openneutron.bench.published import add_measured, refit
    from openneutron.commands.progress import Steps
    from openneutron.files import write_atomically

    measured = read_measured(Path(args.measured))
    if args.output and len(measured) > 1:
        fail("ON104", "option --output", "takes one chip", "Give the measurements of one chip.")
    with Steps().step("Fitting"):
        fits = [refit(find_target(name), rows) for name, rows in measured.items()]
    for entry in fits if args.fit else ():
        if (count := sum(p.on == "npu" for p in entry.rows)) < _LEAST_TO_FIT:
            fail("ON104", "option --fit", f"fits two parameters to {count} times of {entry.target.name}",
                 f"Measure at least {_LEAST_TO_FIT} networks on the NPU, or leave it out.")  # fmt: skip
    if args.json:
        print(json.dumps([_as_data(f) for f in fits], indent=2))
    else:
        for entry in fits:
            _print_refit(entry)
    if args.add:
        add_measured(fits, args.fit)
        print(f"kept in {MEASURED}")
    if args.output:
        (entry,) = fits
        text = (
            f"# Fitted to {len(entry.rows)} times of {entry.target.chip}; use it with --target-file.\n"
            f'base = "{entry.target.name}"\nname = "{entry.target.name}-fitted"\n\n[cost]\n'
            f"call_cycles = {max(1, entry.fitted.call_cycles)}\n"
            f"sram_bytes_per_cycle = {entry.fitted.sram_bytes_per_cycle}\n"
        )
        write_atomically(Path(args.output), text.encode())


def _as_data(entry: Refit) -> dict[str, Any]:
    rows = zip(entry.rows, entry.before, entry.after, entry.left_out, strict=True)
    cost = entry.target.cost
    return {
        "target": entry.target.name,
        "old": {"call_cycles": cost.call_cycles, "sram_bytes_per_cycle": cost.sram_bytes_per_cycle},
        "new": {k: getattr(entry.fitted, k) for k in ("call_cycles", "sram_bytes_per_cycle")},
        "rows": [
            {"network": p.network, "on": p.on, "weights_in_flash": p.weights_in_flash,
             "microseconds": p.microseconds, "source": p.source,
             "old_error": a, "new_error": b, "error_when_left_out": c}
            for p, a, b, c in rows
        ],
    }  # fmt: skip


def _print_refit(entry: Refit) -> None:
    old, new = entry.target.cost, entry.fitted
    print(f"{entry.target.name}: call_cycles {old.call_cycles} -> {new.call_cycles}, sram_bytes_per_cycle "
          f"{old.sram_bytes_per_cycle:g} -> {new.sram_bytes_per_cycle:g}")  # fmt: skip
    if new.at_the_edge:
        print("note: the fit ends at the edge of what is tried; measure more networks before using it")
    head = f"{'network':<36}{'on':<4}{'measured us':>12}{'old error':>11}{'new error':>11}{'left out':>10}"
    print(f"{head}  source")
    for p, a, b, c in zip(entry.rows, entry.before, entry.after, entry.left_out, strict=True):
        left = "-" if c is None else f"{c:+.1%}"
        print(f"{p.network:<36}{p.on:<4}{p.microseconds:>12,.0f}{a:>+11.1%}{b:>+11.1%}{left:>10}  {p.source}")
