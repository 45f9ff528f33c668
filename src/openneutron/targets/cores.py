"""The processors firmware is built for, and the boards QEMU emulates them on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Core:
    """A processor: how code is compiled for it, and where it runs."""

    name: str
    flags: tuple[str, ...]
    board: str  # QEMU's name of it
    tick: float  # nanoseconds, so instructions, of the board's clock: the counts are exact to that
    script: str  # the linker script, in runtime/firmware
    flash_bytes: int  # as the linker script has them
    sram_bytes: int
    code_bytes: int = 4096  # of the flash, left for code where an image takes programs
    target: int = 0  # the number of the chip that code for it is built for

    @property
    def machine(self) -> tuple[str, ...]:
        """QEMU's options; with `-icount shift=0` every instruction takes a nanosecond of its clock."""
        return ("-M", self.board, "-cpu", self.name, "-display", "none", "-monitor", "none",
                "-serial", "none", "-semihosting-config", "enable=on,target=native",
                "-icount", "shift=0")  # fmt: skip


def cortex_m33(script: str, flash_bytes: int, sram_bytes: int, code_bytes: int = 4096) -> Core:
    """A Cortex-M33 with floating point and the DSP extension."""
    flags = ("-mcpu=cortex-m33", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16")
    return Core("cortex-m33", flags, "mps2-an505", 50.0, script, flash_bytes, sram_bytes, code_bytes)


def cortex_m55(script: str, flash_bytes: int, sram_bytes: int) -> Core:
    """A Cortex-M55 with MVE."""
    flags = ("-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard")
    return Core("cortex-m55", flags, "mps3-an547", 31.25, script, flash_bytes, sram_bytes)
