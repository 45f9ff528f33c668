"""The Neutron targets: what each chip's NPU is, and which ones this backend compiles for."""

from __future__ import annotations

from dataclasses import dataclass

from openneutron.diagnostics import fail, nearest

MIB = 1024 * 1024


@dataclass(frozen=True)
class Target:
    """An NPU this backend compiles for. Sizes are the chip's; an application may leave the NPU less."""

    name: str
    chip: str
    generation: str
    units: int
    pipes: int  # pipelines of one unit: output channels computed side by side
    macs_per_pipe: int  # input channels multiplied and added per pipeline and cycle
    frequency_hz: int
    sram_bytes: int
    flash_bytes_per_second: int  # peak; the NPU cannot read flash, the CPU copies

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates of the whole NPU per cycle."""
        return self.units * self.pipes * self.macs_per_pipe

    @property
    def hw_version(self) -> str:
        """The NPU's name in NXP's scheme, e.g. N3-64."""
        return f"{self.generation}-{self.num_macs}"


@dataclass(frozen=True)
class RefusedTarget:
    """A chip with a Neutron NPU that cannot be compiled for, and why."""

    name: str
    chip: str
    reason: str


_NEUTRON_S = (
    "{chip} has a Neutron-S, which has its own controller and memory; "
    "this backend compiles for Neutron-C, which the host CPU drives. Kernel selection does not apply to it: "
    "its microcode brings the kernels it uses"
)
_N1 = "{chip} has a Neutron N1-16; this backend compiles for the N3 generation only"

# SRAM: "7.5 MB" taken as MiB. Clock: 325 MHz at most, NXP's own logs print 324.
# Flash: xSPI, 16 lanes at 250 MHz on both edges.
TARGETS: dict[str, Target] = {
    "imxrt700": Target(
        name="imxrt700",
        chip="i.MX RT700",
        generation="N3",
        units=1,
        pipes=8,
        macs_per_pipe=8,
        frequency_hz=324_000_000,
        sram_bytes=15 * MIB // 2,
        flash_bytes_per_second=1_000_000_000,
    ),
}
REFUSED_TARGETS: dict[str, RefusedTarget] = {
    name: RefusedTarget(name, chip, why.format(chip=chip))
    for name, chip, why in (
        ("mcxn94x", "MCX N94x", _N1),
        ("mcxn54x", "MCX N54x", _N1),
        ("imx95", "i.MX 95", _NEUTRON_S),
        ("imx943", "i.MX 943", _NEUTRON_S),
    )
}
DEFAULT_TARGET = "imxrt700"


def find_target(name: str) -> Target:
    """The target of that id, or an error that says why there is none."""
    if not isinstance(name, str):
        fail("ON104", "target", f"a target id is a string, got {type(name).__name__}", nearest("", TARGETS))
    if refused := REFUSED_TARGETS.get(name):
        fail("ON102", f"target '{name}'", refused.reason, "Supported: " + ", ".join(TARGETS))
    if name not in TARGETS:
        fail(
            "ON101", "target", f"'{name}' is not a known target", nearest(name, [*TARGETS, *REFUSED_TARGETS])
        )
    return TARGETS[name]


class NeutronTargetSpec:
    """The target to quantize, partition and compile for; refuses what cannot be compiled for."""

    def __init__(self, target: str = DEFAULT_TARGET):
        self._target = find_target(target)

    @property
    def target(self) -> Target:
        """The row of the target table."""
        return self._target

    @property
    def name(self) -> str:
        """The target id, as given."""
        return self._target.name

    @property
    def hw_version(self) -> str:
        """The NPU's hardware version, e.g. N3-64."""
        return self._target.hw_version

    @property
    def units(self) -> int:
        """Compute cores."""
        return self._target.units

    @property
    def pipes(self) -> int:
        """Pipelines of one core."""
        return self._target.pipes

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one pipeline per cycle."""
        return self._target.macs_per_pipe

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates of the NPU per cycle."""
        return self._target.num_macs

    @property
    def frequency_hz(self) -> int:
        """The NPU's clock."""
        return self._target.frequency_hz

    @property
    def sram_bytes(self) -> int:
        """The chip's SRAM."""
        return self._target.sram_bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NeutronTargetSpec) and self._target == other._target

    def __hash__(self) -> int:
        return hash(self._target)

    def __repr__(self) -> str:
        return f"NeutronTargetSpec('{self.name}')"
