"""The targets as NXP's SDK describes them: a name, and what its NPU is made of."""

from __future__ import annotations

from dataclasses import dataclass

from openneutron.diagnostics import fail, nearest
from openneutron.targets.spec import NeutronHWVersion, hw_version_of
from openneutron.targets.table import REFUSED_TARGETS, TARGETS


@dataclass(frozen=True)
class NeutronNpu:
    """The NPU of a target; of those that the open converter does not compile for only the kind is known."""

    subsystem: bool
    hwVersion: int
    numUnits: int = 1
    numPipes: int = 0
    numMacs: int = 0


@dataclass(frozen=True)
class NeutronTarget:
    """A target, by the names of NXP's SDK."""

    name: str
    npu: NeutronNpu


def getNeutronTargets() -> list[NeutronTarget]:
    """All targets that NXP's SDK knows; the open converter compiles for some of them only."""
    ours = [
        NeutronTarget(t.name, NeutronNpu(False, hw_version_of(t).value, t.units, t.pipes, t.macs_per_pipe))
        for t in TARGETS.values()
    ]
    others = [
        NeutronTarget(t.name, NeutronNpu("Neutron-S" in t.reason, NeutronHWVersion.N3.value))
        for t in REFUSED_TARGETS.values()
    ]
    return ours + others


def isNeutronTarget(name: str) -> bool:
    """Whether there is such a target."""
    return name in TARGETS or name in REFUSED_TARGETS


def getNeutronTarget(name: str) -> NeutronTarget:
    """The target of that name."""
    if not isNeutronTarget(name):
        fail(
            "ON101", "target", f"'{name}' is not a known target", nearest(name, [*TARGETS, *REFUSED_TARGETS])
        )
    return next(target for target in getNeutronTargets() if target.name == name)
