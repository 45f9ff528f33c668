"""Bias correction: what quantization shifts the mean of a layer's channels by is taken back in its bias."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from openneutron.quantize.accuracy_methods.judged import JudgedModel, Progress
from openneutron.quantize.plan import ROUND
from openneutron.quantize.prepared_model.model import ensure_bias, layers_of, set_value, value_of
from openneutron.quantize.prepared_model.walk import Step


def apply(judged: JudgedModel, progress: Progress) -> tuple[GraphModule | None, str]:
    """Correct the biases alone, unless rounding has corrected them."""
    if ROUND in judged.taken:
        return None, "done with the rounding of the weights"
    model = judged.walk(correct_bias, progress)
    if model is None:
        return None, judged.too_few()
    return model, f"{len(layers_of(model))} biases on {len(judged.fitted)} samples"


def correct_bias(step: Step) -> None:
    """Correct the bias of one layer."""
    try:
        bias = ensure_bias(step.prepared, step.layer)
    except LookupError:  # nothing says what units a bias would have
        return
    step.renew()
    found = step.outputs()
    axis = -1 if "linear" in str(step.layer.node.target) else 1
    shifts = torch.stack(
        [
            (target - value).double().movedim(axis, 0).flatten(1).mean(1)
            for target, value in zip(step.targets, found, strict=True)
        ]
    )
    # What differs from sample to sample is no shift: the mean is trusted as far as it stands out of that.
    mean, doubt = shifts.mean(0), shifts.var(0) / len(shifts)
    shift = mean * mean.square() / (mean.square() + doubt).clamp(min=1e-30)
    old = value_of(step.prepared, bias)
    set_value(step.prepared, bias, old.double() + shift.reshape(old.shape))
    step.renew()
