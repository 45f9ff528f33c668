"""A target as ExecuTorch's NXP backend names it, and what that backend's callers ask of one."""

from __future__ import annotations

from enum import Enum
from typing import Any

from openneutron.targets.chip import Target
from openneutron.targets.table import DEFAULT_TARGET, find_target


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
        return hw_version_of(self._target)

    @property
    def neutron_target_info(self) -> NeutronTargetInfo:
        """What the NPU computes in one go with a convolution or a linear layer."""
        return NeutronTargetInfo()


class NeutronHWVersion(Enum):
    """Generations of Neutron-C, by the numbers of NXP's SDK."""

    OTHER = 0  # of a chip whose generation that SDK has no number for
    N1 = 1
    N3 = 2


def hw_version_of(target: Target) -> NeutronHWVersion:
    """The generation of a chip's NPU."""
    return NeutronHWVersion.__members__.get(target.generation, NeutronHWVersion.OTHER)


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
