"""Every constraint of the table has a use that breaks it, and the user is then told exactly its sentence."""

from __future__ import annotations

import pytest

from openneutron import generate_neutron_compile_spec
from openneutron.litert.ir import Quant
from openneutron.ops import TABLE, find
from openneutron.ops.spec import EIQ, OPEN, Call, Constraint, OpSpec, Value
from tests.lowering import Bundle, look, make_inputs, quantize

_PAIRS = [(spec, constraint) for spec in TABLE for constraint in spec.requires]


def _activation(*shape: int, zero_point: int = 0, scale: float = 0.1, dtype: str = "int8") -> Value:
    return Value("x", shape, dtype, Quant.per_tensor(scale, zero_point))


def _constant(*shape: int, zero_point: int = 0) -> Value:
    return Value("w", shape, "int8", Quant.per_tensor(0.1, zero_point), data=lambda: None)  # type: ignore[arg-type,return-value]


def _conv(weight: Value, bias: Value | None = None, groups: int = 1) -> Call:
    args = {
        "input": _activation(1, 8, 4, 4),
        "weight": weight,
        "bias": bias,
        "stride": [1, 1],
        "padding": [0, 0],
        "dilation": [1, 1],
        "transposed": False,
        "output_padding": [0, 0],
        "groups": groups,
    }
    return Call("n", "aten.convolution.default", args, _activation(1, 8, 4, 4))


def _matmul(op: str, **args: object) -> Call:
    return Call("n", op, args, _activation(2, 2))


def _sum(name: str) -> Call:
    args = {"self": _activation(2), "other": _activation(2), "alpha": 2}
    return Call("n", f"aten.{name}.Tensor", args, _activation(2))


def _average(size: int, out: int, **args: object) -> Call:
    window = {
        "kernel_size": [3, 3],
        "stride": [2, 2],
        "padding": [1, 1],
        "self": _activation(1, 2, size, size),
    }
    how = {"ceil_mode": False, "count_include_pad": True, "divisor_override": None, **args}
    return Call("n", "aten.avg_pool2d.default", {**window, **how}, _activation(1, 2, out, out))


# NeutronQuantizer never makes these, or they would need too large a tensor: the call is written down.
def _put(count: int, **more: object) -> Call:
    rows = _activation(count, dtype="int64")
    return _matmul(
        "aten.index_put.default",
        self=_activation(4, 2),
        indices=(rows,),
        values=_activation(count, 2),
        **more,
    )


_BY_HAND: dict[str, list[Call]] = {
    "Weights must be symmetric (zero point 0)": [
        _conv(_constant(8, 8, 1, 1, zero_point=3)),
        _matmul(
            "aten.linear.default", input=_activation(2, 2), weight=_constant(2, 2, zero_point=1), bias=None
        ),
        _matmul(
            "aten.addmm.default",
            self=_constant(2),
            mat1=_activation(2, 2),
            mat2=_constant(2, 2, zero_point=1),
        ),
    ],
    "Weights must be constant": [
        _conv(_activation(8, 8, 1, 1)),
        _matmul("aten.linear.default", input=_activation(2, 2), weight=_activation(2, 2), bias=None),
        _matmul("aten.addmm.default", self=_constant(2), mat1=_activation(2, 2), mat2=_activation(2, 2)),
    ],
    "alpha and beta must be 1": [  # the passes write them as products
        _matmul(
            "aten.addmm.default",
            self=_constant(2),
            mat1=_activation(2, 2),
            mat2=_constant(2, 2),
            alpha=1,
            beta=2,
        )
    ],
    "The order of a norm must be positive, 0 or infinite": [
        _matmul("aten.linalg_vector_norm.default", self=_activation(2, 2), ord=-2.0)
    ],
    "divisor_override must be None": [_average(6, 3, divisor_override=3)],
    "ceil_mode with counted padding must not reach beyond it": [_average(6, 4, ceil_mode=True)],
    "alpha must be 1": [_sum("add"), _sum("sub")],  # NeutronQuantizer's passes make alpha a product
    "Padding mode must be constant or reflect": [  # a circular pad is decomposed before any quantizer sees it
        Call(
            "n",
            "aten.pad.default",
            {"self": _activation(1, 4), "pad": [1, 1], "mode": "circular"},
            _activation(1, 6),
        )
    ],
    "Bias must be constant": [_conv(_constant(8, 8, 1, 1), bias=_activation(8))],
    "Both operands must be 2-D": [
        _matmul("aten.mm.default", self=_activation(1, 2, 2), mat2=_activation(2, 2))
    ],
    "The slope must be constant": [
        Call(
            "n",
            "aten.prelu.default",
            {"self": _activation(1, 2), "weight": _activation(2)},
            _activation(1, 2),
        )
    ],
    "Batch norm must use constant running statistics": [
        Call(
            "n",
            "aten.batch_norm.default",
            {"input": _activation(1, 2), "running_mean": None},
            _activation(1, 2),
        )
    ],
    "Kernel must be at most 4096": [
        Call(
            "n",
            "aten.adaptive_avg_pool2d.default",
            {"self": _activation(1, 1, 1, 4097), "output_size": [1, 1]},
            _activation(1, 1, 1, 1),
        ),
    ],
    "Stride must be at most 4096": [
        Call(
            "n",
            "aten.max_pool2d.default",
            {"self": _activation(1, 1, 1, 9), "kernel_size": [1, 1], "stride": [1, 4097]},
            _activation(1, 1, 1, 1),
        ),
    ],
    "Inputs and output must share quantization parameters": [
        Call(
            "n",
            name,
            {"self": _activation(2, 4), "other": _activation(2, 4, scale=0.2)},
            _activation(2, 4),
        )
        for name in ("aten.maximum.default", "aten.minimum.default")
    ]
    + [
        Call("n", name, {"self": _activation(2, 4), "dim": [1]}, _activation(2, scale=0.2))
        for name in ("aten.mean.dim", "aten.sum.dim_IntList")
    ],
    "One operand must have as many elements as the result": [
        Call("n", f"aten.{name}", {"self": _activation(2, 1), "other": _activation(1, 4)}, _activation(2, 4))
        for name in ("add.Tensor", "sub.Tensor", "mul.Tensor", "maximum.default", "minimum.default")
    ],
    "The slice must not be empty": [
        Call(
            "n",
            "aten.slice_copy.Tensor",
            {"self": _activation(4), "dim": 0, "start": 2, "end": 2, "step": 1},
            _activation(0),
        )
    ],
    "All inputs must share quantization parameters": [
        Call(
            "n",
            "aten.cat.default",
            {"tensors": (_activation(2), _activation(2, scale=0.2)), "dim": 0},
            _activation(4),
        )
    ],
    "Convolution must be 1-D or 2-D": [  # NeutronQuantizer's passes write 3-D ones as 2-D ones
        Call(
            "n",
            "aten.convolution.default",
            {**_conv(_constant(8, 8, 1, 1, 1)).args, "input": _activation(1, 8, 4, 4, 4)},
            _activation(1, 8, 4, 4, 4),
        )
    ],
    "Indices must be int32 or int64": [
        _matmul("aten.index_select.default", self=_activation(4, 2), dim=0, index=_activation(3)),
        _matmul("aten.embedding.default", weight=_constant(4, 2), indices=_activation(3)),
    ],
    "The table must be constant": [
        _matmul("aten.embedding.default", weight=_activation(4, 2), indices=_activation(3)),
    ],
    "The base must be positive": [_matmul("aten.pow.Scalar", self=-2.0, exponent=_activation(2, 2))],
    "The base must not be negative": [
        _matmul("aten.pow.Tensor_Tensor", self=_activation(2, 2), exponent=_activation(2, 2))
    ],
    "One dimension must be indexed, by a list of numbers if it is constant": [
        _matmul(op, self=_activation(4, 2), indices=(_constant(3), _constant(3)), values=_activation(3))
        for op in ("aten.index.Tensor", "aten.index_put.default")
    ],
    "Values must be put, not added": [_put(3, accumulate=True)],
    "At most 64 rows can be put": [_put(65)],
    "The type must not change": [
        Call(
            "n",
            "dim_order_ops._to_dim_order_copy.default",
            {"self": _activation(4)},
            _activation(4, dtype="int16"),
        )
    ],
}


def _by_hand(spec: OpSpec, constraint: Constraint) -> list[Call]:
    return [c for c in _BY_HAND.get(constraint.sentence, []) if find(c.op) is spec]


def test_every_constraint_has_a_case_that_breaks_it() -> None:
    shared = {id(c) for s, c in _PAIRS if c.violated_by or _by_hand(s, c)}  # families share constraints
    assert [(s.name, c.sentence) for s, c in _PAIRS if id(c) not in shared] == []


@pytest.mark.parametrize(
    ("spec", "constraint"),
    [pytest.param(s, c, id=f"{s.name}-{c.sentence}") for s, c in _PAIRS if _by_hand(s, c)],
)
def test_call_that_breaks_it_yields_its_sentence(spec: OpSpec, constraint: Constraint) -> None:
    for call in _by_hand(spec, constraint):
        reject = spec.check(call, constraint.converters[0])
        assert reject is not None
        assert reject.code == "ON203"
        assert reject.reason.split(" (got ")[0] == constraint.sentence


@pytest.mark.parametrize("converter", [OPEN, EIQ])
def test_model_that_breaks_it_yields_its_sentence(converter: str) -> None:
    """All breaking models of one converter in one program; eiq's limits hold for eiq only."""
    pairs = [(s, c) for s, c in _PAIRS if c.violated_by and converter in c.converters]
    cases = [c.violated_by for _, c in pairs if c.violated_by]
    batches = [make_inputs(cases, seed) for seed in range(2)]
    partitioner = look(
        quantize(Bundle(cases), batches),
        batches[0],
        generate_neutron_compile_spec("imxrt700", converter=converter),
    )
    told = [(find(e.op), e.reject.reason.split(" (got ")[0]) for e in partitioner.rejected]
    # At the Edge level another entry of the family may stand for the operator; it has the same constraint.
    heard = {id(c) for spec, sentence in told if spec for c in spec.requires if c.sentence == sentence}
    assert [(s.name, c.sentence) for s, c in pairs if id(c) not in heard] == []


def test_limits_of_eiq_do_not_bind_the_open_converter() -> None:
    published = [c for _, c in _PAIRS if c.converters == (EIQ,) and c.violated_by is not None]
    assert len(published) >= 15
    cases = [c.violated_by for c in published if c.violated_by and max(map(len, c.violated_by.shapes)) < 4]
    batches = [make_inputs(cases, seed) for seed in range(2)]
    partitioner = look(quantize(Bundle(cases), batches), batches[0])
    assert [str(r.reject) for r in partitioner.rejected] == []
