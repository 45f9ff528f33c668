"""All that can be wrong with a firmware, said before anything is built."""

from __future__ import annotations

from pathlib import Path

from openneutron.diagnostics import fail
from openneutron.firmware.core_check import check_core
from openneutron.firmware.cores import Core
from openneutron.firmware.operators import PRIM, uses_cmsis_nn, wheel_operators
from openneutron.firmware.sources import Sources, find_sources
from openneutron.firmware.toolchain import check_tools
from openneutron.firmware.whole import WholeProgram, check_memory


def check_whole(
    program: WholeProgram,
    core: Core,
    executorch: str | Path | None = None,
    cmsis_nn: str | Path | None = None,
    *,
    sram_bytes: int | None = None,
) -> Sources:
    """The sources for a program's firmware, if it, the tools and the sources are as they must be."""
    check_memory(program, core, sram_bytes)
    check_core(program.data, core.name, program.name)
    unknown = sorted(op for op in set(program.operators) - wheel_operators() if not op.startswith(PRIM))
    if unknown:
        fail("ON709", program.name, f"there is no kernel for the target for {', '.join(unknown)}",
             "Compile the model so that it is not needed.")  # fmt: skip
    check_tools(cxx=True, emulator=True)
    return find_sources(executorch, cmsis_nn, needs_cmsis_nn=uses_cmsis_nn(program.operators))
