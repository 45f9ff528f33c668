"""The commands: modules with NAME, HELP, `add_arguments(parser)` and `execute(args)`, cheap to import."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Protocol

from openneutron.commands.compiling import compile, convert, merge_kernels
from openneutron.commands.devices import disasm, firmware, run
from openneutron.commands.measuring import bench, check, compare, diff, evaluate, report
from openneutron.commands.reference import completion, doctor, explain, ops, targets
from openneutron.commands.searching import sweep, tune


class Command(Protocol):
    """What a command's module provides."""

    NAME: str
    HELP: str
    __doc__: str | None

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare its arguments."""

    def execute(self, args: Namespace) -> int | None:
        """Do it; None and 0 mean done."""


COMMANDS: tuple[Command, ...] = (
    compile,
    convert,
    run,
    evaluate,
    compare,
    diff,
    check,
    report,
    ops,
    targets,
    explain,
    disasm,
    merge_kernels,
    firmware,
    bench,
    sweep,
    tune,
    doctor,
    completion,
)
