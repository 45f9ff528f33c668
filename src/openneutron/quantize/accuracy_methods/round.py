"""Adaptive rounding: weights are rounded so that the layer's result, not each weight, is nearest to float.

Layer by layer on calibration data, no labels and no training. First the weights are moved a little to make up
for what the layers before have lost (least squares against the float result, held near the old weights). Then
they are rounded one input after the other, and what rounding one costs is taken back by those that are still
free, in proportion to how their inputs go together: a triangular solve, not a search, and the same each time.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule

from openneutron.fx import bind_args
from openneutron.quantize.accuracy_methods.bias import correct_bias
from openneutron.quantize.accuracy_methods.judged import JudgedModel, Progress
from openneutron.quantize.prepared_model.model import Rounding, observer_of, set_value, value_of
from openneutron.quantize.prepared_model.patches import Moments, is_measurable, moments
from openneutron.quantize.prepared_model.walk import Step

DAMPING = 0.01  # of the mean of the diagonal: holds the solution where few samples say anything
HOLD = 4.0  # the same for moving weights before they are rounded: less fits the samples, not the network
_BLOCK = 64  # inputs rounded before the others are told

_LARGEST = 1536  # inputs of an output channel whose weights the balanced plan still rounds


def apply(judged: JudgedModel, progress: Progress) -> tuple[GraphModule | None, str]:
    """Round the weights of every layer for the least error of its result, and correct its bias."""
    count = 0

    def visit(step: Step) -> None:
        nonlocal count
        count += round_weights(step, None if judged.plan.thorough else _LARGEST)
        correct_bias(step)

    model = judged.walk(visit, progress)
    if model is None:
        return None, judged.too_few()
    return model, f"the weights of {count} layers on {len(judged.fitted)} samples, biases with them"


def round_weights(step: Step, largest: int | None = None) -> bool:
    """Round the weights of one layer, of at most `largest` inputs each; whether it could be done."""
    layer = step.layer
    if not is_measurable(layer):
        return False
    weight = value_of(step.prepared, layer.weight)
    if largest is not None and weight[0].numel() > largest:
        return False
    rounding = Rounding(observer_of(step.prepared, bind_args(layer.node)["weight"]))
    found = moments(step, weight.shape)
    if found.count < weight[0].numel():  # fewer patches than inputs: what would be fitted is chance
        return False
    matrix = weight.double().reshape(layer.groups, weight.shape[0] // layer.groups, -1)
    scale = rounding.scale.double().expand(weight.shape[0]) if rounding.axis is None else rounding.scale
    scale = scale.double().reshape(layer.groups, -1, 1)
    moved = _moved(matrix, found)
    result = _rounded(moved, found.rounded, scale, rounding.low, rounding.high)
    set_value(step.prepared, layer.weight, result.reshape(weight.shape))
    step.renew()
    return True


def _moved(weight: Tensor, found: Moments) -> Tensor:
    """The weights that give the float result from rounded inputs, held near the old ones."""
    ridge = HOLD * _mean_diagonal(found.rounded) * torch.eye(weight.shape[-1], dtype=torch.float64)
    wanted = weight @ (found.crossed + ridge)
    return torch.linalg.solve((found.rounded + ridge).mT, wanted.mT).mT


def _mean_diagonal(matrix: Tensor) -> Tensor:
    mean = matrix.diagonal(dim1=1, dim2=2).mean(1)
    return mean.clamp(min=1e-12)[:, None, None]


def _rounded(weight: Tensor, moment: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    size = weight.shape[-1]
    eye = torch.eye(size, dtype=torch.float64)
    damped = moment + DAMPING * _mean_diagonal(moment) * eye
    order = damped.diagonal(dim1=1, dim2=2).mean(0).argsort(descending=True)  # what weighs most comes first
    damped = damped[:, order][:, :, order]
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    upper = torch.linalg.cholesky(inverse, upper=True)
    left, result = weight[:, :, order].clone(), torch.empty_like(weight)
    for start in range(0, size, _BLOCK):
        end = min(start + _BLOCK, size)
        block, errors = left[:, :, start:end].clone(), torch.empty_like(left[:, :, start:end])
        for j in range(end - start):
            row = upper[:, start + j : start + j + 1, start:end]
            column = block[:, :, j : j + 1]
            value = (column / scale).round().clamp(low, high) * scale
            result[:, :, start + j : start + j + 1] = value
            error = (column - value) / row[:, :, j : j + 1]
            errors[:, :, j : j + 1] = error
            block[:, :, j + 1 :] -= error * row[:, :, j + 1 :]
        left[:, :, end:] -= errors @ upper[:, start:end, end:]
    return result[:, :, order.argsort()]
