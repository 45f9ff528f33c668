"""The commands: modules with NAME, HELP, `add_arguments(parser)` and `execute(args)`, cheap to import."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Protocol

from openneutron.commands import (
    bench,
    check,
    compare,
    compile,
    completion,
    convert,
    diff,
    disasm,
    doctor,
    evaluate,
    explain,
    firmware,
    merge_kernels,
    ops,
    report,
    run,
    sweep,
    tune,
)


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
