"""Weight ranges: a little is clipped where that makes the error of the layer's result smaller."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from openneutron.fx import bind_args
from openneutron.quantize.accuracy_methods.judged import JudgedModel, Progress
from openneutron.quantize.prepared_model.model import observer_of, value_of
from openneutron.quantize.prepared_model.patches import is_measurable, moments
from openneutron.quantize.prepared_model.walk import Step

_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)


def apply(judged: JudgedModel, progress: Progress) -> tuple[GraphModule | None, str]:
    """Clip the weights of every layer where that helps it."""
    count = 0

    def visit(step: Step) -> None:
        nonlocal count
        count += clip_weights(step)

    model = judged.walk(visit, progress)
    return model, f"the weight ranges of {count} layers" if model else judged.too_few()


def clip_weights(step: Step) -> bool:
    """Choose the range of one layer's weights; whether another than the widest was chosen."""
    layer = step.layer
    observer: Any = observer_of(step.prepared, bind_args(layer.node)["weight"])
    if not is_measurable(layer) or not hasattr(observer, "min_val"):
        return False
    weight = value_of(step.prepared, layer.weight)
    matrix = weight.double().reshape(layer.groups, weight.shape[0] // layer.groups, -1)
    moment = moments(step, weight.shape).rounded
    scale = observer.calculate_qparams()[0].double()
    per_channel = scale.numel() > 1
    full = scale.expand(weight.shape[0]).reshape(layer.groups, -1, 1)
    errors = torch.stack([_errors(matrix, moment, full * share, observer) for share in _SHARES])
    if per_channel:
        chosen = torch.tensor(_SHARES, dtype=torch.float64)[errors.argmin(0)].flatten()
    else:
        chosen = torch.tensor([_SHARES[int(errors.sum((1, 2)).argmin())]], dtype=torch.float64)
    if bool((chosen == 1.0).all()):
        return False
    chosen = chosen.to(observer.min_val.dtype)
    chosen = chosen.reshape(observer.min_val.shape)
    observer.min_val, observer.max_val = observer.min_val * chosen, observer.max_val * chosen
    step.renew()
    return True


def _errors(weight: Tensor, moment: Tensor, scale: Tensor, observer: Any) -> Tensor:
    """The squared error of every output channel when weights are rounded in these steps."""
    rounded = (weight / scale).round().clamp(observer.quant_min, observer.quant_max) * scale
    difference = weight - rounded
    return ((difference @ moment) * difference).sum(-1)
