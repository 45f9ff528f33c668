"""`eiq_neutron_sdk.neutron_converter`, as ExecuTorch's NXP backend calls it: a context, a model converted.

Names are those of the caller. An option that NXP's converter has not is an AttributeError, as there.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from openneutron.converter.kernel_selection import SUFFIX
from openneutron.converter.open import OpenConverter
from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.litert.file import read, write
from openneutron.options import CompileOptions
from openneutron.sdk.console import converter_log
from openneutron.sdk.session import tell
from openneutron.sdk.sums import sums_as_means
from openneutron.sdk.targets import NeutronTarget, getNeutronTarget
from openneutron.targets.table import find_target

__all__ = ["CompilationContext", "CompilationOptions", "convertModel", "getNeutronTarget"]

_WHERE = "eiq_neutron_sdk (OpenNeutron's)"


@dataclass(slots=True)
class CompilationOptions:
    """What a caller may set; most of it steers passes of NXP's converter and changes nothing here."""

    minNumOpsPerGraph: int = 1
    excludeGraphPasses: str = ""
    fetchConstantsToSRAM: bool = False
    dumpKernelSelectionCode: bool = False
    useProfiling: bool = False
    dumpAfterImport: str = ""
    dumpAfterGenerate: str = ""
    verbose: bool = False


@dataclass(slots=True)
class CompilationContext:
    """One conversion: for which target, and how."""

    targetOpts: NeutronTarget | None = None
    compilationOpts: CompilationOptions = field(default_factory=CompilationOptions)


def convertModel(model: Iterable[int], context: CompilationContext) -> list[int]:
    """The LiteRT model with one NeutronGraph operator in place of all others.

    What the open converter refuses is an error that is also told on the standard error of the whole process:
    the caller may have redirected its own.
    """
    try:
        return list(_convert(bytes(model), context))
    except OpenNeutronError as error:
        tell(f"error: {error}")
        raise


def _convert(litert: bytes, context: CompilationContext) -> bytes:
    if context.targetOpts is None:
        fail("ON104", _WHERE, "the context has no target", "Set targetOpts = getNeutronTarget(NAME).")
    given = context.compilationOpts
    options = CompileOptions(
        config=context.targetOpts.name,
        converter="open",
        fetch_constants_to_sram=bool(given.fetchConstantsToSRAM),
        dump_kernel_selection_code=bool(given.dumpKernelSelectionCode),
    )
    graph = sums_as_means(read(litert))
    converted = OpenConverter().convert(write(graph), options, find_target(options.config))
    if converted.kernel_selection_code is not None:
        Path(os.curdir, SUFFIX).write_text(converted.kernel_selection_code)
    if "console" in (given.dumpAfterImport, given.dumpAfterGenerate):
        _print(converter_log(litert, converted))
    return converted.neutron_litert


def _print(text: str) -> None:
    """To file descriptor 1, as a program in C++ does: who captures that has put another file there."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    with open(1, "w", encoding="utf-8", closefd=False) as file:
        file.write(f"{text}\n")
