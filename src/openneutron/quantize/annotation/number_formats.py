"""The number formats of Neutron as torchao quantization specs.

Activations: int8 affine, one scale per tensor. Weights: int8 symmetric without -128, per tensor or per output
channel. Bias: int32, its scale the product of the input's and the weight's, as the accumulator needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node
from torchao.quantization import pt2e
from torchao.quantization.pt2e.quantizer import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    QuantizationSpec,
)

from openneutron.ops.spec import FixedOutput
from openneutron.quantize.annotation.observer import RangeObserver

# The product of two scales is the scale of a bias, and must be an ordinary float32. Nothing else limits them.
FLOOR = 2.0**-62
_BIAS_STEPS = 2.0**30  # of a bias at most: half of what its 32 bits hold, the rest is for the products
ACTIVATION_RANGE = (-128, 127)
WEIGHT_RANGE = (-127, 127)


class _BiasFits:
    """The scale of weights is large enough for the bias, whose scale is the product of it and the input's.

    A channel that batch norm has all but switched off has weights of 1e-9 and a bias of 1: in steps made for
    such weights the bias would not fit 32 bits.
    """

    limit: tuple[Any, torch.Tensor] | None = None  # the input's observer, and the bias

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero point."""
        scale, zero = super().calculate_qparams()  # type: ignore[misc]
        if self.limit is not None:
            source, bias = self.limit
            unit = source.calculate_qparams()[0].double() * _BIAS_STEPS
            least = (bias.detach().double().abs() / unit).to(scale.dtype)
            scale = torch.maximum(scale, least.reshape(-1) if scale.numel() > 1 else least.amax())
        return scale, zero


class _OfGroups:
    """The range of each channel becomes that of its group of neighbours."""

    min_val: torch.Tensor
    max_val: torch.Tensor

    def __init__(self, *args: Any, groups: int, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.groups = groups

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = super().forward(x)  # type: ignore[misc]
        low, high = self.min_val.reshape(self.groups, -1), self.max_val.reshape(self.groups, -1)
        self.min_val.copy_(low.amin(1, True).expand_as(low).reshape(-1))
        self.max_val.copy_(high.amax(1, True).expand_as(high).reshape(-1))
        return result


# torchao tells observers per channel by their names.
class WeightObserver(_BiasFits, pt2e.MinMaxObserver):
    """One scale."""


class WeightPerChannelObserver(_BiasFits, pt2e.PerChannelMinMaxObserver):
    """A scale per output channel."""


class GroupedPerChannelObserver(_BiasFits, _OfGroups, pt2e.PerChannelMinMaxObserver):
    """A scale per group of output channels."""


class MovingWeightObserver(_BiasFits, pt2e.MovingAverageMinMaxObserver):
    """One scale, in training."""


class MovingWeightPerChannelObserver(_BiasFits, pt2e.MovingAveragePerChannelMinMaxObserver):
    """A scale per output channel, in training."""


class MovingGroupedPerChannelObserver(_BiasFits, _OfGroups, pt2e.MovingAveragePerChannelMinMaxObserver):
    """A scale per group of output channels, in training."""


def let_bias_fit(bias_observer: Any, bias: torch.Tensor | None) -> None:
    """Tell the observer of a layer's weights which bias its scale must leave room for."""
    source, weight = bias_observer.obs_or_fqs
    weight = getattr(weight, "activation_post_process", weight)  # in training it is inside a fake quantizer
    if isinstance(weight, _BiasFits) and bias is not None:
        weight.limit = source, bias


@dataclass(frozen=True)
class Scheme:
    """Which observers stand behind each number format."""

    is_qat: bool = False
    per_channel: bool = False

    def activation(self) -> QuantizationSpec:
        """A tensor the program computes."""
        low, high = ACTIVATION_RANGE
        observer: Any = RangeObserver.with_args(eps=FLOOR)
        if self.is_qat:
            observer = pt2e.FakeQuantize.with_args(observer=pt2e.MovingAverageMinMaxObserver, eps=FLOOR)
        return QuantizationSpec(
            dtype=torch.int8,
            quant_min=low,
            quant_max=high,
            qscheme=torch.per_tensor_affine,
            observer_or_fake_quant_ctr=observer,
        )

    def symmetric(self) -> QuantizationSpec:
        """A tensor whose zero point is 0."""
        return replace(self.activation(), qscheme=torch.per_tensor_symmetric)

    def constant(self) -> QuantizationSpec:
        """A constant used where an activation could stand: its range is known, no histogram is needed."""
        if self.is_qat:
            return self.activation()
        low, high = ACTIVATION_RANGE
        return QuantizationSpec(
            dtype=torch.int8,
            quant_min=low,
            quant_max=high,
            qscheme=torch.per_tensor_affine,
            observer_or_fake_quant_ctr=pt2e.MinMaxObserver.with_args(eps=FLOOR),
        )

    def fixed(self, intent: FixedOutput) -> FixedQParamsQuantizationSpec:
        """A tensor whose range is known from the operator."""
        low, high = ACTIVATION_RANGE
        return FixedQParamsQuantizationSpec(
            dtype=torch.int8,
            scale=intent.scale,
            zero_point=intent.zero_point,
            quant_min=low,
            quant_max=high,
            qscheme=torch.per_tensor_affine,
        )

    def _per_channel(self, channel_axis: int | None, groups: int) -> bool:
        return channel_axis is not None and (self.per_channel or groups > 1)

    def weight(self, channel_axis: int | None, groups: int = 1) -> QuantizationSpec:
        """Weights: one scale; one per channel if that was asked for and the operator has a channel axis; one
        per group of a grouped convolution, whose groups are layers of their own."""
        low, high = WEIGHT_RANGE
        per_channel = self._per_channel(channel_axis, groups)
        kind: Any = WeightPerChannelObserver if per_channel else WeightObserver
        moving: Any = MovingWeightPerChannelObserver if per_channel else MovingWeightObserver
        more: dict[str, Any] = {}
        if per_channel and not self.per_channel:
            kind, moving, more = (
                GroupedPerChannelObserver,
                MovingGroupedPerChannelObserver,
                {"groups": groups},
            )
        observer: Any = kind.with_args(eps=FLOOR, **more)
        if self.is_qat:
            # Averaging constant 1: the range of the weights as they are now, not of the training so far.
            # torchao hands ch_axis on only to classes with PerChannel in their name, so it is bound here.
            observer = pt2e.FakeQuantize.with_args(
                observer=moving,
                averaging_constant=1.0,
                eps=FLOOR,
                **more,
                **({"ch_axis": channel_axis} if per_channel else {}),
            )
        return QuantizationSpec(
            dtype=torch.int8,
            quant_min=low,
            quant_max=high,
            qscheme=torch.per_channel_symmetric if per_channel else torch.per_tensor_symmetric,
            ch_axis=channel_axis if per_channel else None,
            observer_or_fake_quant_ctr=observer,
        )

    def bias(
        self, source: Node, weight: Node, user: Node, channel_axis: int | None, groups: int = 1
    ) -> DerivedQuantizationSpec:
        """The bias of `user`, which multiplies `source` by `weight`."""
        per_channel = self._per_channel(channel_axis, groups)
        info = torch.iinfo(torch.int32)
        return DerivedQuantizationSpec(
            derived_from=[(source, user), (weight, user)],
            derive_qparams_fn=bias_parameters,
            dtype=torch.int32,
            quant_min=info.min,
            quant_max=info.max,
            qscheme=torch.per_channel_symmetric if per_channel else torch.per_tensor_symmetric,
            ch_axis=0 if per_channel else None,
        )


def bias_parameters(observers: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point of a bias from the observers of what is multiplied."""
    source, weight = (observer.calculate_qparams()[0] for observer in observers)
    scale = source * weight
    # Of 64 bits, as PyTorch's observers have them: ExecuTorch's kernel reads no other.
    return scale, torch.zeros_like(scale, dtype=torch.int64)
