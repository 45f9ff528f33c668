"""Matrix products: linear layers with constant weights, and products of two activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from openneutron.litert.ir import Builtin, Quant, Tensor
from openneutron.ops.common import FOR_EIQ, fused, nxp_limit, quant_of
from openneutron.ops.conv import bias_const, weight_quant
from openneutron.ops.spec import Call, Case, Constraint, Lowering, Observed, OpSpec, Value, Weighted


def _constant(name: str) -> Constraint:
    return Constraint(
        "Weights must be constant",
        lambda c: c[name].is_const,
        hint="A product of two activations is torch.bmm or torch.matmul.",
    )


def _symmetric(name: str) -> Constraint:
    return Constraint(
        "Weights must be symmetric (zero point 0)",
        lambda c: set(c[name].quant.zero_point) == {0},
        lambda c: c[name].quant.zero_point,
        hint="Quantize with NeutronQuantizer.",
    )


def _fully_connected(
    at: Lowering, call: Call, x: Value, weights: np.ndarray, quant: Quant, bias: Value | None
) -> Tensor:
    """FULLY_CONNECTED with weights [out, in] on the last dimension of `x`."""
    b = at.build
    assert x.quant is not None
    rows = (1, x.shape[0]) if x.rank == 1 else x.shape
    operands = [
        b.reshape(at(x), rows),
        b.const(weights, quant),
        bias_const(at, bias, x.quant, quant, weights.shape[0]),
    ]
    y = b.op(
        Builtin.FULLY_CONNECTED,
        operands,
        (*rows[:-1], weights.shape[0]),
        quant_of(call),
        options={"keepNumDims": len(rows) > 2, **fused(call)},
    )
    return b.reshape(y, call.out.shape)


def _lower_linear(at: Lowering, call: Call) -> Tensor:
    weight = call["weight"]
    return _fully_connected(
        at, call, call["input"], weight.array(), weight_quant(weight, 0), call.get("bias")
    )


def _lower_addmm(at: Lowering, call: Call) -> Tensor:
    weight = call["mat2"]
    return _fully_connected(at, call, call["mat1"], weight.array().T, weight_quant(weight, 0), call["self"])


def _lower_product(at: Lowering, call: Call) -> Tensor:
    """BATCH_MATMUL; a constant symmetric right side is a fully connected layer."""
    left, right = call.tensors
    assert right.quant is not None
    if right.is_const and right.rank == 2 and set(right.quant.zero_point) == {0}:
        return _fully_connected(at, call, left, right.array().T, weight_quant(right, 0), None)
    y = at.build.op(
        Builtin.BATCH_MATMUL,
        [at(left), at(right)],
        call.out.shape,
        quant_of(call),
        options={"adjX": False, "adjY": False},
    )
    return y


def _linear_case(label: str, shape: tuple[int, ...], relu: str = "", **kwargs: Any) -> Case:
    def make(torch: Any) -> Any:
        layer = torch.nn.Linear(shape[-1], 6, **kwargs)
        return torch.nn.Sequential(layer, getattr(torch.nn, relu)()) if relu else layer

    return Case(label, make, (shape,), qat=True)


LINEAR = OpSpec(
    ("aten.linear.default",),
    Weighted(),
    _lower_linear,
    fuses_activation=True,
    requires=(
        _constant("weight"),
        _symmetric("weight"),
    ),
    cases=(
        _linear_case("2d", (3, 8)),
        _linear_case("1d", (8,)),
        _linear_case("3d", (2, 3, 8)),
        _linear_case("4d", (1, 2, 3, 8)),
        _linear_case("no bias", (3, 8), bias=False),
        _linear_case("relu", (3, 8), "ReLU"),
        _linear_case("relu6", (3, 8), "ReLU6"),
        _linear_case("tanh", (3, 8), "Tanh"),
    ),
)


class _MatrixCases:
    """Modules for addmm and mm, whose weight is a parameter [in, out]."""

    @staticmethod
    def addmm(torch: Any) -> Any:
        class AddMM(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.randn(8, 6) * 0.3)
                self.bias = torch.nn.Parameter(torch.randn(6))

            def forward(self, x: Any) -> Any:
                return torch.addmm(self.bias, x, self.weight)

        return AddMM()

    @staticmethod
    def mm(torch: Any) -> Any:
        class MM(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.randn(8, 6) * 0.3)

            def forward(self, x: Any) -> Any:
                return torch.mm(x, self.weight)

        return MM()


ADDMM = OpSpec(
    ("aten.addmm.default",),
    Weighted(weight="mat2", bias="self", channel_axis=None),
    _lower_addmm,
    fuses_activation=True,
    requires=(
        _constant("mat2"),
        _symmetric("mat2"),
        Constraint(
            "alpha and beta must be 1",
            lambda c: c.get("alpha", 1) == 1 and c.get("beta", 1) == 1,
            lambda c: [c["alpha"], c["beta"]],
        ),
    ),
    cases=(Case("2d", _MatrixCases.addmm, ((3, 8),)),),
)


MM = OpSpec(
    ("aten.mm.default",),
    Observed(),
    _lower_product,
    requires=(
        nxp_limit("Both operands must be 2-D", lambda c: all(t.rank == 2 for t in c.tensors)),
        nxp_limit(
            "The second operand must be constant",
            lambda c: c.tensors[1].is_const,
            violated_by=Case("two inputs", lambda torch: torch.mm, ((3, 8), (8, 4))),
        ),
    ),
    cases=(
        Case("two inputs", lambda torch: torch.mm, ((3, 8), (8, 4))),
        Case("constant", _MatrixCases.mm, ((3, 8),)),
    ),
)
BMM = OpSpec(
    ("aten.bmm.default",),
    Observed(),
    _lower_product,
    requires=(
        nxp_limit(
            "Both operands must have zero point 0",
            lambda c: all(t.quant.zero_point == (0,) for t in c.tensors),  # type: ignore[union-attr]
            lambda c: [t.quant.zero_point[0] for t in c.tensors],  # type: ignore[union-attr]
            Case("shifted", lambda torch: lambda x, y: torch.bmm(torch.relu(x), y), ((2, 3, 4), (2, 4, 5))),
            hint=FOR_EIQ,
        ),
    ),
    quantize_eiq=lambda args: Observed(symmetric=True),
    cases=(
        Case("3d", lambda torch: torch.bmm, ((2, 3, 4), (2, 4, 5))),
        Case(
            "transposed", lambda torch: lambda x, y: torch.bmm(x, y.transpose(1, 2)), ((2, 3, 4), (2, 5, 4))
        ),
        Case("relu", lambda torch: lambda x, y: torch.bmm(torch.relu(x), y), ((2, 3, 4), (2, 4, 5))),
    ),
)
