"""The cores firmware is built for, by the names that `--core` takes; a chip's file says what they are."""

from __future__ import annotations

from dataclasses import replace

from openneutron.diagnostics import fail, nearest
from openneutron.targets.chip import Target
from openneutron.targets.cores import Core
from openneutron.targets.table import DEFAULT_TARGET, find_target

__all__ = ("CORES", "DEFAULT", "Core", "cores_of", "find_firmware_core")


def cores_of(target: Target) -> dict[str, Core]:
    """The cores of a chip by name; code for them runs microcode of that chip alone."""
    return {core.name: replace(core, target=target.number) for core in target.cores}


def find_firmware_core(name: str | None = None, target: str = DEFAULT_TARGET) -> Core:
    """The core of that name, or the chip's own; an unknown one is an error with a suggestion."""
    chip = find_target(target)
    if chip.invented:
        fail("ON112", f"target '{target}'", f"there is no firmware for an invented chip ({chip.invented})",
             "The simulator runs its programs: openneutron run FILE.pte.")  # fmt: skip
    cores = cores_of(chip)
    if name is not None and name not in cores:
        fail("ON112", "core", f"there is no firmware for '{name}' of {chip.chip}", nearest(name, list(cores)))
    return cores[name or next(iter(cores))]


CORES = cores_of(find_target(DEFAULT_TARGET))
DEFAULT = next(iter(CORES.values()))
