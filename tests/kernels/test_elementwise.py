"""Element-by-element kernels equal the oracle, case by case."""

from __future__ import annotations

import numpy as np
import pytest

from openneutron.compiler.microcode.format import encode
from openneutron.litert.ir import Activation, Builtin, Op, Quant, constant
from tests.emulated import models
from tests.kernels.harness import Maker, assert_agree, check_cases, program_of


def _shapes(make: Maker, most: int) -> tuple[list[int], list[int]]:
    """Two shapes that broadcast: equal, one with ones, or one of lower rank."""
    full = [make.size(1, 5) for _ in range(make.size(1, most))]
    a, b = list(full), list(full)
    match make.size(0, 3):
        case 0:
            a = [d if make.size(0, 1) else 1 for d in a]
        case 1:
            b = [d if make.size(0, 1) else 1 for d in b]
        case 2:
            b = b[make.size(0, len(b) - 1) :]
    return a, b


def _binary(make: Maker, kind: Builtin, most: int = 5, options: dict | None = None, same: bool = False) -> Op:
    a_shape, b_shape = _shapes(make, most)
    a = make.tensor(a_shape)
    quant = a.quant if same else make.quant()
    b = make.tensor(b_shape, quant)
    if make.size(0, 3) == 0:
        b = constant(b.name, make.values(b), quant)
    out = make.tensor(np.broadcast_shapes(a.shape, b.shape), quant if same else make.quant(1e-3, 4.0))
    return Op(kind, [a, b], [out], options or {})


def _activated(make: Maker, kind: Builtin) -> Op:
    return _binary(make, kind, options={"fusedActivationFunction": int(make.pick(*Activation))})


def add(make: Maker) -> Op:
    return _activated(make, Builtin.ADD)


def sub(make: Maker) -> Op:
    return _activated(make, Builtin.SUB)


def mul(make: Maker) -> Op:
    return _activated(make, Builtin.MUL)


def extremum(make: Maker) -> Op:
    return _binary(make, make.pick(Builtin.MAXIMUM, Builtin.MINIMUM), same=True)


def squared_difference(make: Maker) -> Op:
    return _binary(make, Builtin.SQUARED_DIFFERENCE, most=4)


def prelu(make: Maker) -> Op:
    shape = [make.size(1, 5) for _ in range(4)]
    source = make.tensor(shape)
    slope_shape = [d if make.size(0, 1) else 1 for d in shape[1:]]
    quant = make.quant()
    slope = constant(f"{source.name}_slope", make.rng.integers(-128, 128, slope_shape, np.int8), quant)
    return Op(Builtin.PRELU, [source, slope], [make.tensor(shape, make.quant(1e-3, 2.0))])


def softmax(make: Maker) -> Op:
    depth = make.pick(1, 2, 10, 63, 255, 511)  # the oracle aborts where the sum reaches 512
    source = make.tensor((make.size(1, 4), depth), make.quant(1e-3, 1.0))
    out = make.tensor(source.shape, Quant.per_tensor(1 / 256, -128))
    return Op(Builtin.SOFTMAX, [source], [out], {"beta": float(make.pick(1.0, 1.0, 0.5, 2.0))})


def quantize(make: Maker) -> Op:
    source = make.tensor((make.size(1, 40),), None, "float32")
    return Op(Builtin.QUANTIZE, [source], [make.tensor(source.shape)])


def requantize(make: Maker) -> Op:
    source = make.tensor((256,))
    return Op(Builtin.QUANTIZE, [source], [make.tensor((256,))])


def dequantize(make: Maker) -> Op:
    source = make.tensor((make.size(1, 40),))
    return Op(Builtin.DEQUANTIZE, [source], [make.tensor(source.shape, None, "float32")])


_UNARY = {
    Builtin.ABS: {}, Builtin.EXP: {}, Builtin.HARD_SWISH: {}, Builtin.LEAKY_RELU: {"alpha": 0.1},
    Builtin.RELU: {}, Builtin.RELU6: {}, Builtin.RELU_N1_TO_1: {}, Builtin.GELU: {"approximate": False},
}  # fmt: skip


def unary(make: Maker) -> Op:
    kind, options = make.pick(*_UNARY.items())
    source = make.tensor((make.size(1, 6), make.size(1, 60)), make.quant(1e-2, 0.1))
    return Op(kind, [source], [make.tensor(source.shape, make.quant(1e-2, 0.1))], options)


def fixed_unary(make: Maker) -> Op:
    kind, quant = make.pick(
        (Builtin.LOGISTIC, Quant.per_tensor(1 / 256, -128)), (Builtin.TANH, Quant.per_tensor(1 / 128, 0))
    )
    source = make.tensor((make.size(1, 300),), make.quant(1e-3, 0.1))
    return Op(kind, [source], [make.tensor(source.shape, quant)])


CASES = (
    (add, 1000),
    (sub, 500),
    (mul, 800),
    (extremum, 400),
    (squared_difference, 400),
    (prelu, 400),
    (softmax, 500),
    (quantize, 300),
    (dequantize, 300),
    (requantize, 100),
    (unary, 100),
    (fixed_unary, 50),
)


@pytest.mark.parametrize(("case", "count"), CASES)
def test_equals_oracle(case, count):
    check_cases(case, count, seed=3)


def test_softmax_of_many_equal_values():
    """1000 equal classes: every share is 1/1000, which is 0 in steps of 1/256. The oracle aborts here."""
    make = Maker(np.random.default_rng(6))
    source = make.tensor((1, 1000), Quant.per_tensor(0.1))
    op = Op(
        Builtin.SOFTMAX, [source], [make.tensor((1, 1000), Quant.per_tensor(1 / 256, -128))], {"beta": 1.0}
    )
    program, weights, _, _ = program_of([op])
    for model in models(encode(program), weights).values():
        (got,) = model.run([np.zeros((1, 1000), np.int8)])
        assert (got == -128).all()


def test_all_pairs_of_values():
    """Every pair of int8 values through the binary kernels, for a few quantizations."""
    make = Maker(np.random.default_rng(4))
    every = np.arange(-128, 128, dtype=np.int8)
    for kind in (Builtin.ADD, Builtin.SUB, Builtin.MUL):
        ops = []
        for _ in range(4):
            a = make.tensor((256, 1))
            b = constant(f"{a.name}_b", np.tile(every, 1), make.quant())
            ops.append(Op(kind, [a, b], [make.tensor((256, 256), make.quant(1e-3, 2.0))], {}))
        make.values = lambda t: every.reshape(256, 1)  # type: ignore[method-assign]
        assert_agree(make, ops)


def test_quantize_edges():
    """Halves, infinities, numbers beyond int32 and NaN convert as in the oracle."""
    make = Maker(np.random.default_rng(5))
    numbers = [0.0, 0.5, 1.5, 2.5, 126.5, 127.49, 0.49999997, 8388609.0, 1e9, 2.0**31, 3e9, 1e30, np.inf]
    edges = np.array([*numbers, *(-n for n in numbers), np.nan], np.float32)
    make.values = lambda t: edges  # type: ignore[method-assign]
    ops = []
    for scale in (1.0, 0.25, 0.1):
        for zero in (0, -128, 127):
            source = make.tensor(edges.shape, None, "float32")
            ops.append(
                Op(Builtin.QUANTIZE, [source], [make.tensor(edges.shape, Quant.per_tensor(scale, zero))])
            )
    assert_agree(make, ops)
