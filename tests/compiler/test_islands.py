"""Float islands of several int8 tensors: one microcode, the oracle's bits, no float tensor of full size."""

from __future__ import annotations

import numpy as np
import pytest

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.microcode import format as mc
from openneutron.litert.build import Builder
from openneutron.litert.ir import Builtin, Graph, Quant, Tensor
from openneutron.litert.reference import run_reference
from openneutron.ops.common import apply
from openneutron.options import CompileOptions
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target

TARGET = find_target("imxrt700")


def compile_and_compare(graph: Graph, rng: np.random.Generator, runs: int = 2, **options) -> mc.Program:
    """The program of a graph, after it has given the oracle's bytes for random inputs."""
    compiled = compile_graph(graph, TARGET, CompileOptions(**options))
    model = NativeModel(compiled.microcode, compiled.weights)
    for _ in range(runs):
        inputs = [rng.integers(-128, 128, t.shape, np.int8) for t in graph.inputs]
        for want, got in zip(run_reference(graph, inputs), model.run(inputs), strict=True):
            np.testing.assert_array_equal(got.reshape(want.shape), want)
    return compiled.program


def reduce(b: Builder, kind: Builtin, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    shape = [1 if a in axes else d for a, d in enumerate(x.shape)]
    options = {"keepDims": True}
    return b.op(kind, [x, b.ints(axes)], shape, dtype="float32", options=options)


def quant(rng: np.random.Generator) -> Quant:
    return Quant.per_tensor(float(rng.uniform(0.005, 0.1)), int(rng.integers(-128, 128)))


def layer_norm(b: Builder, x: Tensor, axes: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    weight = b.const(np.linspace(-2, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape))
    real = b.dequantize(x)
    centered = apply(b, Builtin.SUB, real, reduce(b, Builtin.MEAN, real, axes))
    variance = reduce(b, Builtin.MEAN, apply(b, Builtin.MUL, centered, centered), axes)
    inverse = apply(b, Builtin.RSQRT, apply(b, Builtin.ADD, variance, 1e-5))
    y = apply(b, Builtin.MUL, apply(b, Builtin.MUL, centered, inverse), weight)
    return b.quantize(apply(b, Builtin.ADD, y, weight), Quant.per_tensor(0.03, 3))


@pytest.mark.parametrize("optimise", ["performance", "size"])
@pytest.mark.parametrize(
    ("shape", "axes", "weight"),
    [
        ((1, 6, 40), (2,), (40,)),
        ((1, 5, 7, 8), (3,), (8,)),
        ((2, 5, 7, 3), (1, 2), (3,)),
        ((1, 4, 6), (0, 2), (4, 1)),
    ],
)
def test_layer_norm_rounds_once(shape, axes, weight, optimise):
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.input("x", shape, quant=quant(rng))
    graph = b.graph([layer_norm(b, x, axes, weight)])
    program = compile_and_compare(graph, rng, optimise=optimise)
    assert {call.kernel for call in program.calls} == {mc.Kernel.ISLAND}
    assert program.scratch_bytes < 4 * x.nbytes  # statistics only, never the tensor in float


def test_magnitude_and_its_logarithm():
    """log(sqrt(x^2 + y^2) + eps): the logarithm is no IEEE operation, and still the oracle's to the bit."""
    rng = np.random.default_rng(1)
    b = Builder()
    x, y = (b.input(n, (1, 9, 33), quant=Quant.per_tensor(0.04, z)) for n, z in (("x", 3), ("y", -7)))
    real = [b.dequantize(t) for t in (x, y)]
    squares = [apply(b, Builtin.MUL, t, t) for t in real]
    magnitude = apply(b, Builtin.SQRT, apply(b, Builtin.ADD, *squares))
    log = apply(b, Builtin.LOG, apply(b, Builtin.ADD, magnitude, 1e-3))
    outputs = [
        b.quantize(magnitude, Quant.per_tensor(0.028, -128)),
        b.quantize(log, Quant.per_tensor(0.04, 80)),
    ]
    program = compile_and_compare(b.graph(outputs), rng, 4)
    forms = [call.result for call in program.calls if isinstance(call, mc.Island)]
    assert sorted(forms) == [mc.ResultForm.INT8, mc.ResultForm.STEPS] and not program.scratch_bytes


def test_falling_function_and_quotient():
    rng = np.random.default_rng(2)
    b = Builder()
    x, y = (b.input(n, s, quant=quant(rng)) for n, s in (("x", (4, 8)), ("y", (4, 1))))
    quotient = apply(b, Builtin.DIV, b.dequantize(x), b.dequantize(y))
    bounded = apply(b, Builtin.MINIMUM, apply(b, Builtin.MAXIMUM, quotient, -5.0), 5.0)
    falling = apply(b, Builtin.EXP, apply(b, Builtin.NEG, bounded))
    outputs = [b.quantize(bounded, Quant.per_tensor(0.04)), b.quantize(falling, Quant.per_tensor(0.3, -128))]
    compile_and_compare(b.graph(outputs), rng, 6)


_UNARY = (Builtin.ABS, Builtin.NEG, Builtin.SQRT, Builtin.RSQRT, Builtin.SQUARE, Builtin.FLOOR,
          Builtin.SIGN, Builtin.RELU, Builtin.RELU6, Builtin.RELU_N1_TO_1)  # fmt: skip
_BINARY = (Builtin.ADD, Builtin.SUB, Builtin.MUL, Builtin.DIV, Builtin.MAXIMUM, Builtin.MINIMUM,
           Builtin.SQUARED_DIFFERENCE)  # fmt: skip
_COMPARE = (Builtin.LESS, Builtin.LESS_EQUAL, Builtin.GREATER, Builtin.GREATER_EQUAL, Builtin.EQUAL,
            Builtin.NOT_EQUAL)  # fmt: skip
_REDUCE = (Builtin.MEAN, Builtin.SUM, Builtin.REDUCE_MAX, Builtin.REDUCE_MIN)


def random_island(rng: np.random.Generator) -> Graph:
    """A float graph of random operators over broadcast int8 tensors, with one or two quantized results."""
    b = Builder()
    shape = tuple(int(d) for d in rng.integers(1, 8, rng.integers(1, 5)))
    values: list[Tensor] = []
    for number in range(int(rng.integers(1, 4))):
        own = tuple(1 if rng.random() < 0.3 else d for d in shape)
        values.append(b.dequantize(b.input(f"x{number}", own if number else shape, quant=quant(rng))))
    if rng.random() < 0.5:
        values.append(b.const(rng.normal(0, 1, shape[-1:]).astype(np.float32)))
    pick = lambda items: items[int(rng.integers(len(items)))]  # noqa: E731
    for _ in range(int(rng.integers(1, 14))):
        a, c = pick(values), pick(values)
        if a.is_const:
            continue
        match int(rng.integers(6)):
            case 0:
                values.append(apply(b, pick(_UNARY), a))
            case 1:
                axes = tuple(sorted({int(i) for i in rng.integers(0, a.rank, 2)}))
                values.append(reduce(b, pick(_REDUCE), a, axes))
            case 2:
                test = apply(b, pick(_COMPARE), a, c, result="bool")
                values.append(apply(b, Builtin.SELECT_V2, test, a, pick(values)))
            case 3:
                values.append(apply(b, pick(_BINARY), a, float(rng.normal())))
            case _:
                values.append(apply(b, pick(_BINARY), a, c))
    made = [t for t in values if not t.is_const]
    if rng.random() < 0.3:
        bounded = apply(b, Builtin.MINIMUM, made[-1], 6.0)  # what overflows is not monotone in LiteRT
        made.append(apply(b, pick((Builtin.EXP, Builtin.TANH, Builtin.LOGISTIC)), bounded))
    return b.graph([b.quantize(t, quant(rng)) for t in made[-2:]])


@pytest.mark.parametrize("seed", range(4))
def test_random_islands(seed):
    rng = np.random.default_rng(seed)
    for _ in range(40):
        compile_and_compare(random_island(rng), rng, 1, optimise="size" if seed % 2 else "performance")


def test_large_expression_is_cut():
    """More operands, instructions and registers than one call has: several calls, the same bits."""
    rng = np.random.default_rng(5)
    b = Builder()
    reals = [b.dequantize(b.input(f"x{i}", (3, 5), quant=quant(rng))) for i in range(20)]
    while len(reals) > 1:
        reals = [
            apply(b, Builtin.MUL, apply(b, Builtin.ADD, p, q), 0.5)
            for p, q in zip(reals[::2], reals[1::2], strict=False)
        ] + reals[len(reals) // 2 * 2 :]
    x = reals[0]
    for _ in range(70):
        x = apply(b, Builtin.ADD, x, apply(b, Builtin.MUL, reals[0], 0.01))
    program = compile_and_compare(b.graph([b.quantize(x, quant(rng))]), rng)
    assert len(program.calls) > 3
