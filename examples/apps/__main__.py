"""Run an example: `python -m examples.apps NAME`; `--list` names them, `--pages` writes their pages anew."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from examples.apps.frame import APPS, PICTURES, missing, save_figures
from examples.apps.pages import print_figures, write_pages
from openneutron.diagnostics import OpenNeutronError


def names() -> list[str]:
    """The examples there are."""
    return sorted(file.parent.name for file in APPS.glob("*/app.py"))


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; 1 if it could not be."""
    parser = argparse.ArgumentParser(prog="python -m examples.apps", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(names())}; without, all")
    parser.add_argument("--short", action="store_true", help="little training and few samples, for tests")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/apps"), help="default: out/apps")
    parser.add_argument("--keep", action="store_true", help="keep figures and pictures for the pages")
    parser.add_argument(
        "--pages", action="store_true", help="write the pages from the figures that were kept"
    )
    parser.add_argument("--list", action="store_true", help="name the examples")
    args = parser.parse_args(arguments)
    if args.list:
        print("\n".join(names()))
        return 0
    if unknown := set(args.names) - set(names()):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    if args.keep and args.short:
        parser.error("--keep keeps figures of whole runs, not of --short ones")
    torch.set_num_threads(1)  # the same sums on every machine
    failed = False
    for name in () if args.pages and not args.names else args.names or names():
        failed |= not run(name, args.output / name, args.short, args.keep)
    if args.pages:
        write_pages(names())
    return int(failed)


def core_seconds() -> float:
    """What this process and those it waited for have computed: the same on a machine that others use too."""
    return sum(os.times()[:4])


def run(name: str, out: Path, short: bool, keep: bool) -> bool:
    """Run one example; whether it could be."""
    began, computed = time.monotonic(), core_seconds()
    out.mkdir(parents=True, exist_ok=True)
    try:
        app = importlib.import_module(f"examples.apps.{name}.app")
        if reason := missing(app.NEEDS):
            print(f"{name}: {reason}", file=sys.stderr)
            return False
        figures = app.main(out, short)
    except OpenNeutronError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    print_figures(name, figures, time.monotonic() - began)
    if keep:
        minutes = round((core_seconds() - computed) / 60, 1)
        save_figures(name, replace(figures, minutes=minutes), APPS / name)
        PICTURES.mkdir(parents=True, exist_ok=True)
        (PICTURES / f"{name}.png").write_bytes((out / f"{name}.png").read_bytes())
    return True


if __name__ == "__main__":
    sys.exit(main())
