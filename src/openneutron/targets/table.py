"""The Neutron targets by name: the chips this backend compiles for, and why it refuses the others."""

from __future__ import annotations

import importlib
import json
import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from openneutron.diagnostics import fail, nearest
from openneutron.files import write_atomically
from openneutron.targets import chips
from openneutron.targets.chip import Published, RefusedTarget, Target
from openneutron.targets.what_if import SUFFIX, read_invented

DEFAULT_TARGET = "imxrt700"
# What `targets --measured --add` keeps in a clone: times from boards, and the parameters fitted to them.
MEASURED = Path(__file__).with_name("measured.json")


def _collect() -> tuple[dict[str, Target], dict[str, RefusedTarget]]:
    """What the modules of `targets.chips` define; a name or number that two have is a mistake there."""
    targets: dict[str, Target] = {}
    refused: dict[str, RefusedTarget] = {}
    for item in pkgutil.iter_modules(chips.__path__):
        module = importlib.import_module(f"{chips.__name__}.{item.name}")
        for target in getattr(module, "TARGETS", ()):
            taken = [t.name for t in targets.values() if t.name == target.name or t.number == target.number]
            assert not taken, f"{item.name}: {target.name}, number {target.number}, is that of {taken[0]}"
            targets[target.name] = target
        refused |= {target.name: target for target in getattr(module, "REFUSED", ())}
    by_number = sorted(targets.values(), key=lambda target: target.number)
    return {target.name: target for target in by_number}, refused


def read_measured() -> dict[str, dict[str, Any]]:
    """The measurements that are kept, by chip: `times`, and the parameters of `cost` that were fitted."""
    try:
        data: dict[str, dict[str, Any]] = json.loads(MEASURED.read_text())
    except FileNotFoundError:
        return {}
    return data


def _with_measured(target: Target, kept: dict[str, Any]) -> Target:
    times, cost = (Published(**row) for row in kept.get("times", ())), kept.get("cost", {})
    sources = tuple((name, f"fitted to the times in {MEASURED.name}") for name in cost)
    return replace(
        target,
        published=(*target.published, *times),
        cost=replace(target.cost, **cost, sources=(*target.cost.sources, *sources)),
    )


def keep_measured(data: dict[str, dict[str, Any]]) -> None:
    """Write the measurements that are kept, and give them to the chips."""
    write_atomically(MEASURED, (json.dumps(data, indent=1) + "\n").encode())
    TARGETS.update((name, _with_measured(chip, data.get(name, {}))) for name, chip in _CHIPS.items())


_CHIPS, REFUSED_TARGETS = _collect()
TARGETS = {name: _with_measured(chip, read_measured().get(name, {})) for name, chip in _CHIPS.items()}


def find_target(name: str, converter: str = "open") -> Target:
    """The target of that id, or an error that says why there is none.

    A name that ends in .toml is a file that changes a chip (`targets.what_if`). With the `eiq` converter any
    name goes: the installed SDK says itself which targets it supports.
    """
    if not isinstance(name, str):
        fail("ON104", "target", f"a target id is a string, got {type(name).__name__}", nearest("", TARGETS))
    if name.endswith(SUFFIX):
        if converter == "eiq":
            fail("ON113", name, "NXP's converter makes nothing for an invented chip", "Use --converter open.")
        return read_invented(Path(name), TARGETS, REFUSED_TARGETS)
    if converter == "eiq" and name and name not in TARGETS:
        return _unknown_target(name)
    if refused := REFUSED_TARGETS.get(name):
        hint = f"Supported: {', '.join(TARGETS)}. NXP's SDK may take it: --converter eiq."
        fail("ON102", f"target '{name}'", refused.reason, hint)
    if name not in TARGETS:
        fail(
            "ON101", "target", f"'{name}' is not a known target", nearest(name, [*TARGETS, *REFUSED_TARGETS])
        )
    return TARGETS[name]


def core_of(name: str, converter: str = "open") -> str:
    """The CPU of a target; of one whose CPU is not known here, the default target's."""
    cores = find_target(name, converter).cores or TARGETS[DEFAULT_TARGET].cores
    return cores[0].name


def _unknown_target(name: str) -> Target:
    """A target of the SDK's: its memory, clock and times are not known; the CPU is taken as usual."""
    refused = REFUSED_TARGETS.get(name)
    chip, runtime = (refused.chip, refused.runtime) if refused else (name, "NXP's Neutron runtime of its SDK")
    usual = TARGETS[DEFAULT_TARGET]
    return replace(usual, name=name, chip=chip, sram_bytes=0, runtime=runtime, known=False, published=(),
                   facts=(), cores=())  # fmt: skip
