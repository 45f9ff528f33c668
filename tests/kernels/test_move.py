"""Kernels that move data equal the oracle, case by case."""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import pytest

from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import Program, Ref, Region, descriptor, encode
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.ir import Builtin, Op, Tensor, constant
from tests.emulated import models
from tests.kernels.harness import Maker, check_cases


def _shape(make: Maker, low: int, high: int, most: int = 6) -> list[int]:
    return [make.size(1, most) for _ in range(make.size(low, high))]


def _like(make: Maker, source: Tensor, shape: object) -> Tensor:
    return make.tensor(shape, source.quant, source.dtype)  # type: ignore[arg-type]


def _any(make: Maker, shape: list[int]) -> Tensor:
    return make.tensor(shape, None, make.pick("int8", "int8", "int8", "float32"))


def transpose(make: Maker) -> Op:
    source = _any(make, _shape(make, 1, 6, 4))
    perm = make.rng.permutation(source.rank)
    out = _like(make, source, [source.shape[p] for p in perm])
    return Op(Builtin.TRANSPOSE, [source, make.ints(perm)], [out], {})


def slice_(make: Maker) -> Op:
    source = _any(make, _shape(make, 1, 5))
    begin = [make.size(0, d - 1) for d in source.shape]
    size = [make.size(1, d - b) for d, b in zip(source.shape, begin, strict=True)]
    return Op(Builtin.SLICE, [source, make.ints(begin), make.ints(size)], [_like(make, source, size)], {})


def strided_slice(make: Maker) -> Op:
    source = make.tensor(_shape(make, 1, 4, 9))
    begin, end, step, shape = [], [], [], []
    end_mask = 0
    for axis, d in enumerate(source.shape):
        b, s = make.size(0, d - 1), make.pick(1, 1, 2, 3, -1, -2)
        if s > 0:
            e = make.size(b + 1, d)
            shape.append(len(range(b, e, s)))
        else:
            e = 0
            end_mask |= 1 << axis  # down to index 0, which only the mask can say
            shape.append(len(range(b, -1, s)))
        begin, end, step = [*begin, b], [*end, e], [*step, s]
    options = {"beginMask": 0, "endMask": end_mask, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 0}
    inputs = [source, make.ints(begin), make.ints(end), make.ints(step)]
    return Op(Builtin.STRIDED_SLICE, inputs, [_like(make, source, shape)], options)


def concat(make: Maker) -> Op:
    shape = _shape(make, 1, 4)
    axis = make.size(0, len(shape) - 1)
    first = make.tensor(shape)
    parts = [first]
    for _ in range(make.size(1, 2)):
        parts.append(_like(make, first, [make.size(1, 5) if a == axis else d for a, d in enumerate(shape)]))
    total = [sum(p.shape[axis] for p in parts) if a == axis else d for a, d in enumerate(shape)]
    options = {"axis": make.pick(axis, axis - len(shape)), "fusedActivationFunction": 0}
    return Op(Builtin.CONCATENATION, list(parts), [_like(make, first, total)], options)


def pad(make: Maker) -> Op:
    source = make.tensor(_shape(make, 1, 4))
    pads = make.rng.integers(0, 3, (source.rank, 2))
    out = _like(make, source, np.array(source.shape) + pads.sum(axis=1))
    inputs = [source, make.ints(pads)]
    if make.size(0, 2) == 0:
        value = np.array([make.size(-128, 127)], np.int8)
        return Op(Builtin.PADV2, [*inputs, constant(f"{source.name}_v", value, source.quant)], [out], {})
    return Op(Builtin.PAD, inputs, [out], {})


def mirror_pad(make: Maker) -> Op:
    source = make.tensor(_shape(make, 1, 4))
    mode = make.size(0, 1)
    most = [d - 1 + mode for d in source.shape]
    pads = np.array([[make.size(0, m), make.size(0, m)] for m in most])
    out = _like(make, source, np.array(source.shape) + pads.sum(axis=1))
    return Op(Builtin.MIRROR_PAD, [source, make.ints(pads)], [out], {"mode": mode})


def tile(make: Maker) -> Op:
    source = make.tensor(_shape(make, 1, 4, 4))
    repeats = [make.size(1, 3) for _ in source.shape]
    out = _like(make, source, np.array(source.shape) * repeats)
    return Op(Builtin.TILE, [source, make.ints(repeats)], [out], {})


def broadcast_to(make: Maker) -> Op:
    shape = _shape(make, 1, 5, 4)
    given = [d if make.size(0, 1) else 1 for d in shape][make.size(0, len(shape) - 1) :]
    source = make.tensor(given)
    return Op(Builtin.BROADCAST_TO, [source, make.ints(shape)], [_like(make, source, shape)], {})


def depth_space(make: Maker) -> Op:
    block = make.size(1, 3)
    n, h, w, c = make.size(1, 2), make.size(1, 4), make.size(1, 4), make.size(1, 5)
    shallow, deep = (n, h * block, w * block, c), (n, h, w, c * block * block)
    kind = make.pick(Builtin.DEPTH_TO_SPACE, Builtin.SPACE_TO_DEPTH)
    before, after = (deep, shallow) if kind is Builtin.DEPTH_TO_SPACE else (shallow, deep)
    source = make.tensor(before)
    return Op(kind, [source], [_like(make, source, after)], {"blockSize": block})


def space_to_batch(make: Maker) -> Op:
    block, n, c = [make.size(1, 3), make.size(1, 3)], make.size(1, 2), make.size(1, 4)
    given = [make.size(1, 8), make.size(1, 8)]
    before = [make.size(0, b) for b in block]
    after = [-(d + p) % b + b * make.size(0, 1) for d, p, b in zip(given, before, block, strict=True)]
    steps = [(d + p + a) // b for d, p, a, b in zip(given, before, after, block, strict=True)]
    source = make.tensor((n, *given, c))
    pads = np.stack([before, after], axis=1)
    out = _like(make, source, (n * block[0] * block[1], *steps, c))
    return Op(Builtin.SPACE_TO_BATCH_ND, [source, make.ints(block), make.ints(pads)], [out], {})


def batch_to_space(make: Maker) -> Op:
    block, n, c = [make.size(1, 3), make.size(1, 3)], make.size(1, 2), make.size(1, 4)
    steps = [make.size(2, 4), make.size(2, 4)]
    crops = [[make.size(0, b), make.size(0, b - 1)] for b in block]
    out = [s * b - sum(crop) for s, b, crop in zip(steps, block, crops, strict=True)]
    source = make.tensor((n * block[0] * block[1], *steps, c))
    inputs = [source, make.ints(block), make.ints(crops)]
    return Op(Builtin.BATCH_TO_SPACE_ND, inputs, [_like(make, source, (n, *out, c))], {})


def gather(make: Maker) -> Op:
    source = make.tensor(_shape(make, 1, 4))
    axis = make.size(0, source.rank - 1)
    index = make.rng.integers(0, source.shape[axis], _shape(make, 1, 2, 4))
    out = _like(make, source, (*source.shape[:axis], *index.shape, *source.shape[axis + 1 :]))
    return Op(Builtin.GATHER, [source, make.ints(index)], [out], {"axis": axis, "batchDims": 0})


def lookup(make: Maker) -> Op:
    """A gather whose indices are an input; its source is a table or an activation."""
    shape = _shape(make, 1, 4)
    source = make.pick(make.tensor(shape), make.weights(shape))
    axis = make.size(0, source.rank - 1)
    index = make.indices(_shape(make, 1, 2, 4), source.shape[axis])
    out = _like(make, source, (*source.shape[:axis], *index.shape, *source.shape[axis + 1 :]))
    return Op(Builtin.GATHER, [source, index], [out], {"axis": axis, "batchDims": 0})


def update(make: Maker) -> Op:
    """An update along one axis at most, whose start is an input: one that is in range there."""
    target = _any(make, _shape(make, 1, 4))
    axis = make.size(0, target.rank - 1)
    length = make.size(1, target.shape[axis])
    part = _like(make, target, [length if a == axis else d for a, d in enumerate(target.shape)])
    start = make.indices([target.rank], target.shape[axis] - length + 1)
    out = _like(make, target, target.shape)
    return Op(Builtin.DYNAMIC_UPDATE_SLICE, [target, part, start], [out], {})


def resize(make: Maker) -> Op:
    kind = make.pick(Builtin.RESIZE_NEAREST_NEIGHBOR, Builtin.RESIZE_BILINEAR)
    source = make.tensor((make.size(1, 2), make.size(1, 8), make.size(1, 8), make.size(1, 5)))
    size = (make.size(1, 20), make.size(1, 20))
    align, half = make.pick((False, False), (True, False), (False, True))
    out = _like(make, source, (source.shape[0], *size, source.shape[3]))
    return Op(kind, [source, make.ints(size)], [out], {"alignCorners": align, "halfPixelCenters": half})


CASES = (
    (transpose, 600),
    (slice_, 300),
    (strided_slice, 400),
    (concat, 400),
    (pad, 500),
    (mirror_pad, 300),
    (tile, 200),
    (broadcast_to, 200),
    (depth_space, 200),
    (space_to_batch, 200),
    (batch_to_space, 200),
    (gather, 200),
    (lookup, 200),
    (update, 200),
    (resize, 700),
)


@pytest.mark.parametrize(("case", "count"), CASES)
def test_equals_oracle(case, count):
    check_cases(case, count, seed=7, batch=60)


def woven(planes: int, rows: int, length: int) -> Program:
    """A program that returns its input, in scratch, ordered by rows instead of by planes."""
    place = descriptor("int8", (planes, rows, length), 0), descriptor("int8", (rows, planes, length), 0)
    call = mc.Weave(Ref(Region.SCRATCH), planes, rows, length)
    return Program((call,), place[:1], place[1:], 0, planes * rows * length)


@pytest.mark.parametrize("shape", [(3, 8, 5), (1, 7, 3), (4, 1, 9), (2, 31, 300), (3, 224, 16), (4, 2048, 2)])
def test_planes_woven_in_place_equal_a_transpose(shape):
    x = np.random.default_rng(0).integers(-128, 128, shape, np.int8)
    for name, model in models(encode(woven(*shape)), b"").items():
        (got,) = model.run([x])
        np.testing.assert_array_equal(x.transpose(1, 0, 2), got, name)


def looked_up(sizes: tuple[int, int, int, int, int], table: bytes) -> Program:
    """A program that looks up some channels of its input, and leaves the others as they are."""
    rows, runs, length, channels, first = sizes
    place = descriptor("int8", (rows, runs, channels), 0)
    ref, pitch = Ref(Region.SCRATCH, offset=first), channels * runs
    call = mc.TableRuns(ref, ref, Ref(Region.WEIGHTS), rows, length, pitch, pitch, runs, channels, channels)
    size = rows * runs * channels
    return Program((call,), (place,), (place,), 256, size, weights_crc=zlib.crc32(table))


@pytest.mark.parametrize(
    "sizes", [(5, 7, 3, 8, 2), (1, 9, 8, 8, 0), (3, 1, 1, 4, 3), (2, 40, 70, 200, 64), (6, 3, 64, 65, 1)]
)
def test_a_table_of_some_channels(sizes):
    rows, runs, length, channels, first = sizes
    random = np.random.default_rng(0)
    x = random.integers(-128, 128, (rows, runs, channels), np.int8)
    table = random.integers(-128, 128, 256, np.int8)
    wanted, part = x.copy(), slice(first, first + length)
    wanted[..., part] = table[x[..., part].view(np.uint8)]
    for name, model in models(encode(looked_up(sizes, table.tobytes())), table.tobytes()).items():
        (got,) = model.run([x])
        np.testing.assert_array_equal(wanted, got, name)


@pytest.mark.parametrize(
    "changes",
    [
        {"input_run_pitch": 2},  # runs that lie over one another
        {"output_run_pitch": 2},
        {"input_pitch": 50},  # rows that do
        {"output_pitch": 50},
        {"runs": 8},  # beyond the map
        {"rows": 6},
        {"length": 7},
    ],
)
def test_a_table_of_some_channels_stays_within_its_map(changes):
    program = looked_up((5, 7, 3, 8, 2), bytes(256))
    wrong = dataclasses.replace(program, calls=(dataclasses.replace(program.calls[0], **changes),))
    with pytest.raises(OpenNeutronError):
        next(iter(models(encode(wrong), bytes(256)).values()))
