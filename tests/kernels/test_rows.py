"""Window kernels computed stripe by stripe, through rolling buffers, give the same bits as whole."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest

from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import Program, Ref, Region, descriptor, encode
from openneutron.compiler.select.accumulate import accumulate
from openneutron.compiler.select.constants import ConstPool
from openneutron.compiler.select.context import Context
from openneutron.compiler.select.select import select
from openneutron.litert.ir import Builtin, Graph, Op
from openneutron.litert.reference import run_reference
from tests.emulated import models
from tests.kernels import test_conv
from tests.kernels.harness import Maker


def _rows_of(call: mc.Params, y0: int, y1: int, source: Ref, held: int) -> mc.Params:
    """The call restricted to output rows y0..y1, its input in a rolling buffer of `held` rows."""
    window = replace(call.window, y0=y0, y1=y1)  # type: ignore[attr-defined]
    view = replace(call.input, ref=replace(source, rows=held))  # type: ignore[attr-defined]
    return replace(call, window=window, input=view)  # type: ignore[call-arg]


def _striped(op: Op, height: int) -> tuple[Program, bytes]:
    """Input rows are copied into a rolling buffer just before the stripe that first needs them."""
    pool = ConstPool()
    place = {op.operand(0): Ref(Region.INPUT), op.output: Ref(Region.OUTPUT)}
    (whole,) = select(op, place.__getitem__, pool)
    window = whole.window  # type: ignore[attr-defined]
    row = window.in_w * window.in_c
    held = min((height - 1) * window.stride_h + (window.kernel_h - 1) * window.dilation_h + 1, window.in_h)
    calls: list[mc.Params] = []
    loaded = 0
    for y0 in range(0, window.out_h, height):
        y1 = min(y0 + height, window.out_h)
        last = (y1 - 1) * window.stride_h - window.pad_top + (window.kernel_h - 1) * window.dilation_h
        for y in range(loaded, min(last + 1, window.in_h)):
            dims, strides = (1, 1, 1, 1, 1, row), (0, 0, 0, 0, 0, 1)
            target = Ref(Region.SCRATCH, offset=y % held * row)
            calls.append(mc.Copy(Ref(Region.INPUT, offset=y * row), target, 1, dims, strides, strides))
            loaded = y + 1
        calls.append(_rows_of(whole, y0, y1, Ref(Region.SCRATCH), held))
    weights = pool.bytes()
    shapes = [(descriptor(t.dtype, t.shape),) for t in (op.operand(0), op.output)]
    return Program(tuple(calls), *shapes, len(weights), held * row, weights_crc=zlib.crc32(weights)), weights


@pytest.mark.parametrize("case", [test_conv.conv, test_conv.depthwise, test_conv.pool])
def test_stripes_equal_whole(case):
    make = Maker(np.random.default_rng(11))
    done = 0
    while done < 25:
        op = case(make)
        if op.operand(0).shape[0] != 1:
            continue
        x = make.values(op.operand(0))
        (want,) = run_reference(Graph([op.operand(0)], [op.output], [op]), [x])
        for height in {1, 2, op.output.shape[1]}:
            program, weights = _striped(op, height)
            for name, model in models(encode(program), weights).items():
                (got,) = model.run([x])
                np.testing.assert_array_equal(want, got, f"{name}, {height} rows: {op!r}")
        done += 1


def takes_all_rows(make: Maker) -> Op:
    """An operator whose result takes all rows of a map: a reduction, a pool, a fully connected layer."""
    x = make.tensor((1, make.size(2, 9), make.size(1, 5), make.size(1, 40)))
    kind = make.pick(Builtin.MEAN, Builtin.REDUCE_MAX, Builtin.REDUCE_MIN, Builtin.AVERAGE_POOL_2D,
                     Builtin.MAX_POOL_2D, *[Builtin.FULLY_CONNECTED] * 3)  # fmt: skip
    if kind is Builtin.FULLY_CONNECTED:
        x = make.tensor((*x.shape[:3], 4 * make.size(1, 12)))
        weights = make.weights((make.size(1, 150), x.elements), 0)
        bias, out = make.bias(weights.shape[0], x, weights), make.tensor((1, weights.shape[0]))
        options = {"fusedActivationFunction": make.size(0, 3), "keepNumDims": False}
        return Op(kind, [x, weights, bias], [out], options)
    quant = make.quant() if kind is Builtin.MEAN else x.quant
    out = make.tensor((1, 1, 1, x.shape[3]), quant)
    if kind in (Builtin.AVERAGE_POOL_2D, Builtin.MAX_POOL_2D):
        options = {"padding": 1, "strideH": 1, "strideW": 1, "filterHeight": x.shape[1],
                   "filterWidth": x.shape[2], "fusedActivationFunction": make.size(0, 3)}  # fmt: skip
        return Op(kind, [x], [out], options)
    return Op(kind, [x, make.ints([1, 2])], [out], {"keepDims": True})


def accumulated(op: Op, height: int) -> tuple[Program, bytes]:
    """A cascade: rows of the input are copied into a ring of `height` rows, and the operator takes them."""
    source, pool = op.operand(0), ConstPool()
    rows, row = source.shape[1], source.nbytes // source.shape[1]
    ring = Ref(Region.SCRATCH, rows=height)
    sums = Ref(Region.SCRATCH, offset=-(-height * row // 4) * 4)
    places = {source: ring, op.output: Ref(Region.OUTPUT)}
    call = accumulate(op, Context(places.__getitem__, pool), sums)
    assert call is not None
    dims, strides = (rows, 1, 1, 1, 1, row), (row, 0, 0, 0, 0, 1)
    copy = mc.Copy(Ref(Region.INPUT), ring, 1, dims, strides, strides)
    steps = [mc.Step(stage, y, min(y + height, rows)) for y in range(0, rows, height) for stage in range(2)]
    raw = pool.bytes()
    shapes = [(descriptor(t.dtype, t.shape),) for t in (source, op.output)]
    calls = (mc.Cascade(2, len(steps), tuple(steps)), copy, call)
    scratch = sums.offset + call.carried()
    return Program(calls, *shapes, len(raw), scratch, weights_crc=zlib.crc32(raw)), raw


def test_rows_taken_in_parts_equal_all_at_once():
    make = Maker(np.random.default_rng(12))
    for _ in range(80):
        op = takes_all_rows(make)
        x = make.values(op.operand(0))
        (want,) = run_reference(Graph([op.operand(0)], [op.output], [op]), [x])
        for height in {1, 3, op.operand(0).shape[1]}:
            program, weights = accumulated(op, min(height, op.operand(0).shape[1]))
            for name, model in models(encode(program), weights).items():
                (got,) = model.run([x])
                np.testing.assert_array_equal(want, got, f"{name}, {height} rows: {op!r}")
