"""Matrix products and normalizations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from openneutron.onnx.ops.window import is_constant_weight
from openneutron.onnx.spec import Call, Case, OnnxOp, Unsupported, normalized
from openneutron.onnx.values import Dequantized, Tensor


def turned_weight(call: Call, index: int) -> Tensor:
    """A constant matrix [in, out] as a linear layer has it, [out, in]."""
    value = call.values[index]
    if isinstance(value, Dequantized):
        call.value(index)
        return value.transposed().real()
    return call.constant("weight", lambda: call.real_constant(index).t().contiguous())


def _gemm(call: Call) -> Tensor:
    alpha, beta = float(call.attr("alpha", 1.0)), float(call.attr("beta", 1.0))
    bias = call.optional(2)
    linear = alpha == 1.0 and len(call.shape(1)) == 2 and is_constant_weight(call, 1)
    linear = linear and (bias is None or (beta == 1.0 and bias.dim() == 1 and bias.shape[0] != 1))
    x = call.tensor(0)
    x = x.transpose(0, 1) if call.attr("transA", 0) else x
    if linear:
        weight = call.tensor(1) if call.attr("transB", 0) else turned_weight(call, 1)
        return F.linear(x, weight, bias)
    y = call.tensor(1)
    product = torch.matmul(x, y.transpose(0, 1) if call.attr("transB", 0) else y)
    if alpha != 1.0:
        product = product * (alpha if product.is_floating_point() else int(alpha))
    if bias is None:
        return product
    return product + (bias if beta == 1.0 else bias * (beta if bias.is_floating_point() else int(beta)))


def matmul(call: Call, left: int = 0, right: int = 1) -> Tensor:
    """A product; with a constant matrix on the right it is a linear layer."""
    x = call.tensor(left)
    if (
        x.dim() > 1
        and len(call.shape(right)) == 2
        and is_constant_weight(call, right)
        and x.is_floating_point()
    ):
        return F.linear(x, turned_weight(call, right))
    return torch.matmul(x, call.tensor(right))


def _einsum(call: Call) -> Tensor:
    equation = str(call.required("equation")).replace(" ", "")
    return torch.einsum(equation, *call.tensors())


# --------------------------------------------------------------------------------------------------
# Normalization


def _batch_norm(call: Call) -> Any:
    if not call.attr("spatial", 1):
        raise Unsupported("its attribute spatial is 0", "Statistics per channel are read.")
    if call.attr("training_mode", 0):
        return _norm_by_batch(call)
    if len([o for o in call.node.outputs if o]) > 1:
        raise Unsupported("it is in training mode", "Export the model in evaluation mode.")
    x, scale, bias, mean, variance = call.tensors()
    if x.dtype != scale.dtype or x.dtype != mean.dtype:
        kind = mean.dtype
        y = F.batch_norm(
            x.to(kind), mean, variance, scale.to(kind), bias.to(kind), False, 0.0, _epsilon(call)
        )
        return y.to(x.dtype)
    return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, _epsilon(call))


def _norm_by_batch(call: Call) -> tuple[Tensor, ...]:
    """In training mode: by the statistics of what is given, and with them the running ones moved on."""
    x, scale, bias, mean, variance = call.tensors()
    dims = [0, *range(2, x.dim())]
    seen = x.mean(dims, True)
    spread = (x - seen).square().mean(dims, True)
    lines = [1, -1] + [1] * (x.dim() - 2)
    y = (x - seen) * torch.rsqrt(spread + _epsilon(call)) * scale.reshape(lines) + bias.reshape(lines)
    kept = float(call.attr("momentum", 0.9))
    running = [old * kept + new.reshape(-1) * (1 - kept) for old, new in ((mean, seen), (variance, spread))]
    return (y.to(x.dtype), *running)[: len(call.node.outputs)]


def _epsilon(call: Call) -> float:
    return float(call.attr("epsilon", 1e-5))


def _instance_norm(call: Call) -> Tensor:
    x, scale, bias = call.tensors()
    return F.instance_norm(x, None, None, scale, bias, True, 0.0, _epsilon(call))


def _layer_norm(call: Call) -> Any:
    x, scale = call.tensor(0), call.tensor(1)
    axis = call.axis(-1, x.dim())
    shape = [int(d) for d in x.shape[axis:]]
    bias = call.optional(2)
    if len(call.node.outputs) == 1 and list(scale.shape) == shape:
        return F.layer_norm(x, shape, scale, bias, _epsilon(call))
    dims = list(range(axis, x.dim()))
    mean = x.mean(dims, True)
    inverse = torch.rsqrt((x - mean).square().mean(dims, True) + _epsilon(call))
    y = (x - mean) * inverse * scale
    return (y if bias is None else y + bias, mean, inverse)[: len(call.node.outputs)]


def _group_norm(call: Call) -> Tensor:
    x, scale, bias = call.tensors()
    groups = int(call.required("num_groups"))
    if call.version < 21 and scale.shape[0] == groups != x.shape[1]:  # one scale per group
        each = int(x.shape[1]) // groups
        scale, bias = scale.repeat_interleave(each), bias.repeat_interleave(each)
    return F.group_norm(x, groups, scale, bias, _epsilon(call))


def _rms_norm(call: Call) -> Tensor:
    x, scale = call.tensor(0), call.tensor(1)
    dims = list(range(call.axis(-1, x.dim()), x.dim()))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return (wide * torch.rsqrt(wide.square().mean(dims, True) + _epsilon(call))).to(x.dtype) * scale


def _lp_norm(call: Call) -> Tensor:
    x = call.tensor(0)
    axis, p = call.axis(-1, x.dim()), int(call.choice("p", (1, 2), 2))
    norm = x.abs().sum(axis, True) if p == 1 else x.square().sum(axis, True).sqrt()
    return torch.where(
        norm == 0, torch.zeros_like(x), x / torch.where(norm == 0, torch.ones_like(norm), norm)
    )


def _lrn(call: Call) -> Tensor:
    x, size = call.tensor(0), int(call.required("size"))
    alpha, beta, bias = (float(call.attr(*a)) for a in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    before = (size - 1) // 2
    pads = [0, 0] * (x.dim() - 2) + [before, size - 1 - before]
    squares = F.pad(x.square(), pads)
    channels = int(x.shape[1])
    total = squares.narrow(1, 0, channels)
    for i in range(1, size):
        total = total + squares.narrow(1, i, channels)
    return x / torch.pow(bias + alpha / size * total, beta)


def _mean_variance(call: Call) -> Tensor:
    x = call.tensor(0)
    dims = [normalized(int(a), x.dim()) for a in call.attr("axes", [0, 2, 3])]
    centred = x - x.mean(dims, True)
    return centred / ((x.square().mean(dims, True) - x.mean(dims, True).square()).sqrt() + 1e-9)


def _det(call: Call) -> Tensor:
    return torch.linalg.det(call.tensor(0))


def _case(label: str, *shapes: Any, constants: tuple[int, ...] = (), **attributes: Any) -> Case:
    return Case(label, shapes, attributes, constants)


OPERATORS: tuple[OnnxOp, ...] = (
    OnnxOp(
        "Gemm",
        13,
        _gemm,
        cases=(
            _case("linear", (2, 8), (5, 8), (5,), constants=(1, 2), transB=1),
            _case("not turned", (2, 8), (8, 5), (5,), constants=(1, 2)),
            _case("alpha", (2, 8), (8, 5), (5,), constants=(1, 2), alpha=0.5, beta=2.0),
            _case("activations", (8, 2), (8, 5), (2, 1), transA=1),
        ),
    ),
    OnnxOp(
        "MatMul",
        13,
        matmul,
        cases=(
            _case("weights", (2, 3, 8), (8, 5), constants=(1,)),
            _case("batch", (2, 3, 8), (2, 8, 5)),
            _case("vector", (8,), (8, 5), constants=(1,)),
        ),
    ),
    OnnxOp("Einsum", 12, _einsum, cases=(_case("matmul", (2, 3, 4), (2, 4, 5), equation="bij, bjk -> bik"),)),
    OnnxOp("Det", 22, _det),
    OnnxOp(
        "BatchNormalization",
        15,
        _batch_norm,
        oldest=7,
        statistics=(3, 4),
        cases=(Case("rank 3", ((2, 3, 8), (3,), (3,), (3,), ("positive", (3,))), constants=(1, 2, 3, 4)),),
    ),
    OnnxOp("InstanceNormalization", 22, _instance_norm),
    OnnxOp("LayerNormalization", 17, _layer_norm),
    OnnxOp("GroupNormalization", 21, _group_norm),
    OnnxOp("RMSNormalization", 23, _rms_norm),
    OnnxOp("LpNormalization", 22, _lp_norm),
    OnnxOp("LRN", 13, _lrn),
    OnnxOp("MeanVarianceNormalization", 13, _mean_variance),
)
