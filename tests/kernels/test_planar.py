"""A convolution of a picture in planes equals the oracle's on the same picture, channels last."""

from __future__ import annotations

import numpy as np

from openneutron.compiler.graph.fuse_conv import PLANAR
from openneutron.compiler.microcode.format import encode
from openneutron.litert.ir import Builtin, Graph, Op, Padding
from openneutron.litert.reference import run_reference
from tests.emulated import models
from tests.kernels.harness import Maker, program_of


def _case(make: Maker) -> tuple[Op, Op]:
    """The same convolution for the oracle and for the runtime."""
    kernel, stride = make.pick(1, 2, 3, 5), make.size(1, 2)
    h, w, in_c, out_c = make.size(kernel, 12), make.size(kernel, 40), make.size(1, 4), make.pick(5, 8, 16, 32)
    source = make.tensor((1, h, w, in_c))
    weights = make.weights((out_c, kernel, kernel, in_c), axis=0)
    padding = int(make.pick(*Padding))
    if padding == Padding.SAME:
        size = (-(-h // stride), -(-w // stride))
    else:
        size = ((h - kernel) // stride + 1, (w - kernel) // stride + 1)
    out = make.tensor((1, *size, out_c), make.quant(0.02, 2.0))
    operands = [weights, make.bias(out_c, source, weights)]
    options = {"padding": padding, "strideH": stride, "strideW": stride, "dilationHFactor": 1,
               "dilationWFactor": 1, "fusedActivationFunction": 0}  # fmt: skip
    picture = make.tensor((1, in_c, h, w), source.quant)
    planar = make.tensor(out.shape, out.quant)
    return (
        Op(Builtin.CONV_2D, [source, *operands], [out], options),
        Op(Builtin.CUSTOM, [picture, *operands], [planar], options,
           custom_name=PLANAR),
    )  # fmt: skip


def test_equals_channels_last() -> None:
    make = Maker(np.random.default_rng(7))
    pairs = [_case(make) for _ in range(60)]
    program, weights, inputs, _ = program_of([planar for _, planar in pairs])
    values = [make.values(t) for t in inputs]
    for name, model in models(encode(program), weights).items():
        results = model.run(values)
        for (op, _), value, got in zip(pairs, values, results, strict=True):
            graph = Graph([op.operand(0)], [op.output], [op])
            (want,) = run_reference(graph, [np.ascontiguousarray(value.transpose(0, 2, 3, 1))])
            np.testing.assert_array_equal(want, got, f"{name}: {op!r}")
