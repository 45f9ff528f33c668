"""The Neutron targets: what each chip's NPU is, and which ones this backend compiles for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from openneutron.diagnostics import fail, nearest

MIB = 1024 * 1024


def _parameter(unit: str, source: str) -> Any:
    return field(metadata={"unit": unit, "source": source})


_FITTED = "fitted to the published times of CifarNet, DS-CNN and MobileNetV1 0.25-128"
_ASSUMED = "assumption, not measured: "
# Instructions under QEMU (benchmarks/bench_cpu_cost.py), times 1.2 cycles each, which is assumed.
_COUNTED = "counted instructions x 1.2 cycles: "
_OURS = f"{_COUNTED}runtime/cpu_kernels, "


@dataclass(frozen=True)
class CostModel:
    """The parameters of the cycle estimate of one target, each with its unit and where it comes from.

    `compiler.cost` uses those of the NPU, `estimate.cpu_cost` those that begin with `cpu_`.
    """

    call_cycles: int = _parameter("cycles per kernel call", f"{_FITTED}: the CPU starts the NPU and waits")
    step_cycles: int = _parameter(
        "cycles per step of a cascade",
        f"{_ASSUMED}half a call: what a call decodes and computes, a stage's steps find done",
    )
    drain_cycles: float = _parameter(
        "cycles per tile of `pipes` outputs", f"{_ASSUMED}one accumulator is rescaled and written each cycle"
    )
    sram_bytes_per_cycle: float = _parameter("bytes per cycle", f"{_FITTED}: reading and writing together")
    island_cycles: float = _parameter(
        "cycles per instruction and element", f"{_ASSUMED}two loads, a float operation and a store"
    )
    copy_setup_cycles: int = _parameter("cycles per callback", f"{_ASSUMED}starting or awaiting a copy")
    flash_bytes_per_second: int = _parameter("bytes per second", "data sheet: xSPI, 16 lanes at 250 MHz DDR")
    cpu_frequency_hz: int = _parameter("Hz", "the Cortex-M33's clock, as in NXP's logs")
    cpu_dispatch_cycles: int = _parameter(
        "cycles per operator", f"{_COUNTED}ExecuTorch finds and calls a kernel, which checks its arguments"
    )
    cpu_fast_quantize_cycles: float = _parameter("cycles per element", f"{_OURS}float to int8")
    cpu_fast_dequantize_cycles: float = _parameter("cycles per element", f"{_OURS}int8 to float")
    cpu_fast_element_cycles: float = _parameter("cycles per element", f"{_OURS}sums, products, maxima")
    cpu_fast_function_cycles: float = _parameter("cycles per element", f"{_OURS}softmax, exp, tanh")
    cpu_fast_move_cycles: float = _parameter("cycles per element", f"{_OURS}transposes, other layouts")
    cpu_fast_mac_cycles: float = _parameter("cycles per MAC", f"{_OURS}float products and convolutions")
    cpu_float_mac_cycles: float = _parameter("cycles per MAC", f"{_COUNTED}portable float products")
    cpu_int8_mac_cycles: float = _parameter("cycles per MAC", f"{_COUNTED}CMSIS-NN with the DSP extension")
    cpu_int8_short_mac_cycles: float = _parameter(
        "cycles per MAC", f"{_COUNTED}depthwise and transposed convolutions, batches of products"
    )
    cpu_float_element_cycles: float = _parameter(
        "cycles per element", f"{_COUNTED}portable kernels of one tensor: abs, neg, sums"
    )
    cpu_broadcast_cycles: float = _parameter(
        "cycles per element", f"{_COUNTED}portable kernels of two tensors, which broadcast and promote types"
    )
    cpu_int8_element_cycles: float = _parameter("cycles per element", f"{_COUNTED}CMSIS-NN and its like")
    cpu_function_cycles: float = _parameter("cycles per element", f"{_COUNTED}log, erf, softmax")
    cpu_move_cycles: float = _parameter("cycles per element", f"{_COUNTED}copies with computed indexes")
    cpu_quantize_cycles: float = _parameter("cycles per element", f"{_COUNTED}the Cortex-M kernel")
    cpu_portable_quantize_cycles: float = _parameter("cycles per element", f"{_COUNTED}the portable kernel")
    cpu_dequantize_cycles: float = _parameter("cycles per element", f"{_COUNTED}either kernel")
    cpu_transpose_cycles: float = _parameter(
        "cycles per byte", f"{_ASSUMED}the delegate's own transpose at a partition's border"
    )

    def table(self) -> Iterator[tuple[str, float, str, str]]:
        """Name, value, unit and source of every parameter."""
        for item in fields(self):
            yield item.name, getattr(self, item.name), item.metadata["unit"], item.metadata["source"]


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
    cost: CostModel
    known: bool = True  # False: an SDK's own target, of which nothing is known here but the name

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates of the whole NPU per cycle."""
        return self.units * self.pipes * self.macs_per_pipe

    @property
    def hw_version(self) -> str:
        """The NPU's name in NXP's scheme, e.g. N3-64."""
        return f"{self.generation}-{self.num_macs}" if self.known else "not known here"


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
_UNTRIED = "{chip} has a Neutron-C of which nothing is published that a compiler could be made from"

# SRAM: "7.5 MB" taken as MiB. Clock: 325 MHz at most, NXP's own logs print 324.
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
        cost=CostModel(
            call_cycles=500,
            step_cycles=250,
            drain_cycles=8,
            sram_bytes_per_cycle=3,
            island_cycles=4,
            copy_setup_cycles=500,
            flash_bytes_per_second=1_000_000_000,
            cpu_frequency_hz=324_000_000,
            cpu_dispatch_cycles=1_210,
            cpu_fast_quantize_cycles=12,
            cpu_fast_dequantize_cycles=8.3,
            cpu_fast_element_cycles=9.7,
            cpu_fast_function_cycles=121,
            cpu_fast_move_cycles=4.2,
            cpu_fast_mac_cycles=5.1,
            cpu_float_mac_cycles=60,
            cpu_int8_mac_cycles=2.5,
            cpu_int8_short_mac_cycles=7.2,
            cpu_float_element_cycles=50,
            cpu_broadcast_cycles=750,
            cpu_int8_element_cycles=25,
            cpu_function_cycles=139,
            cpu_move_cycles=6.6,
            cpu_quantize_cycles=19,
            cpu_portable_quantize_cycles=215,
            cpu_dequantize_cycles=32,
            cpu_transpose_cycles=4,
        ),
    ),
}
REFUSED_TARGETS: dict[str, RefusedTarget] = {
    name: RefusedTarget(name, chip, why.format(chip=chip))
    for name, chip, why in (
        ("mcxn94x", "MCX N94x", _N1),
        ("mcxn54x", "MCX N54x", _N1),
        ("imx95", "i.MX 95", _NEUTRON_S),
        ("imx943", "i.MX 943", _NEUTRON_S),
        ("imx952", "i.MX 952", _NEUTRON_S),
        ("s32n79", "S32N79", _NEUTRON_S),
        ("s32k5", "S32K5", _UNTRIED),
    )
}
DEFAULT_TARGET = "imxrt700"


def find_target(name: str, converter: str = "open") -> Target:
    """The target of that id, or an error that says why there is none.

    With the `eiq` converter any name goes: the installed SDK says itself which targets it supports.
    """
    if not isinstance(name, str):
        fail("ON104", "target", f"a target id is a string, got {type(name).__name__}", nearest("", TARGETS))
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


def _unknown_target(name: str) -> Target:
    """A target of the SDK's: its memory, clock and times are not known; the CPU is taken as usual."""
    chip = REFUSED_TARGETS[name].chip if name in REFUSED_TARGETS else name
    return replace(TARGETS[DEFAULT_TARGET], name=name, chip=chip, sram_bytes=0, known=False)


class NeutronTargetSpec:
    """The target to quantize, partition and compile for; refuses what cannot be compiled for."""

    def __init__(self, target: str = DEFAULT_TARGET, *, converter: str = "open"):
        self._target = find_target(target, converter)
        self.converter = converter

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

    # ----------------------------------------------------------------------------------------------
    # The same by the names that ExecuTorch's NXP backend has for them

    def get_name(self) -> str:
        """The target id."""
        return self.name

    def is_subsystem(self) -> bool:
        """Whether the NPU is a Neutron-S, with a controller of its own; those are refused."""
        return False

    def get_num_units(self) -> int:
        """Compute cores."""
        return self.units

    def get_num_pipes(self) -> int:
        """Pipelines of one core."""
        return self.pipes

    def get_num_macs(self) -> int:
        """Multiply-accumulates of one pipeline per cycle."""
        return self.macs

    def get_hw_version(self) -> NeutronHWVersion:
        """The generation of the NPU."""
        return NeutronHWVersion[self._target.generation]

    @property
    def neutron_target_info(self) -> NeutronTargetInfo:
        """What the NPU computes in one go with a convolution or a linear layer."""
        return NeutronTargetInfo()


class NeutronHWVersion(Enum):
    """Generations of Neutron-C."""

    N1 = 1
    N3 = 3


class NeutronTargetInfo:
    """Which nodes become one operation of the NPU, asked of aten or Edge graphs."""

    def is_supported_fused_activation__aten(self, node_: Any) -> bool:
        """Whether a node is an activation that a convolution or linear layer computes along with its own."""
        name = _operator(node_)
        if name == "hardtanh":
            given = dict(zip(("min_val", "max_val"), node_.args[1:], strict=False)) | dict(node_.kwargs)
            return (given.get("min_val", -1), given.get("max_val", 1)) == (0, 6)
        return name in ("relu", "relu6", "sigmoid", "tanh")

    def is_fusable_conv_or_linear__aten(self, node_: Any) -> bool:
        """Whether a node computes an activation along with its own result."""
        return _operator(node_) in ("conv1d", "conv2d", "convolution", "linear", "addmm", "mm")

    is_supported_fused_activation__edge = is_supported_fused_activation__aten
    is_fusable_conv_or_linear__edge = is_fusable_conv_or_linear__aten


def _operator(node: Any) -> str:
    """The name of an aten operator, also of the one behind an Edge operator: `relu`, for `relu_` too."""
    space, _, name = str(getattr(getattr(node.target, "_schema", None), "name", "")).partition("::")
    return name.removesuffix("_") if space == "aten" else ""
