"""The cores firmware is built for, and the boards QEMU emulates them on."""

from __future__ import annotations

from dataclasses import dataclass

from openneutron.diagnostics import fail, nearest


@dataclass(frozen=True)
class Core:
    """A processor: how code is compiled for it, and where it runs."""

    name: str
    flags: tuple[str, ...]
    board: str  # QEMU's name of it, and of its linker script
    tick: float  # nanoseconds, so instructions, of the board's clock: the counts are exact to that

    @property
    def machine(self) -> tuple[str, ...]:
        """QEMU's options; with `-icount shift=0` every instruction takes a nanosecond of its clock."""
        return ("-M", self.board, "-cpu", self.name, "-display", "none", "-monitor", "none",
                "-serial", "none", "-semihosting-config", "enable=on,target=native",
                "-icount", "shift=0")  # fmt: skip

    @property
    def script(self) -> str:
        """The linker script, in runtime/firmware."""
        return f"{self.board}.ld"


CORES = {
    core.name: core
    for core in (
        Core("cortex-m33", ("-mcpu=cortex-m33", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
             "mps2-an505", 50.0),
        Core("cortex-m55", ("-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard"), "mps3-an547", 31.25),
    )
}  # fmt: skip
DEFAULT = CORES["cortex-m33"]
FLASH_BYTES = 8 * 1024 * 1024  # of both boards: their linker scripts
SRAM_BYTES = 7680 * 1024


def find_firmware_core(name: str) -> Core:
    """The core of that name; an unknown one is an error with a suggestion."""
    if name not in CORES:
        fail("ON112", "core", f"there is no firmware for '{name}'", nearest(name, list(CORES)))
    return CORES[name]
