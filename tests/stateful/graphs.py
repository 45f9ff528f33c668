"""LiteRT graphs that remember."""

from __future__ import annotations

import numpy as np

from openneutron.litert.build import Builder
from openneutron.litert.ir import Builtin, Graph, Quant, Tensor

QUANT = Quant.per_tensor(0.1, 3)
NO_CLAMP = {"fusedActivationFunction": 0}


def changing_places() -> Graph:
    """Three states that change places, one of which is read, beside a ring of two frames."""
    build = Builder()
    x = build.input("x", (1, 4), "int8", QUANT)
    starts = np.full((1, 4), 33, np.int8), np.array([[1, 2, 3, 4]], np.int8), np.zeros((1, 4), np.int8)
    a, b, c = (build.state(name, start, QUANT) for name, start in zip("abc", starts, strict=True))
    ring = build.state("ring", np.arange(8, dtype=np.int8).reshape(1, 2, 4), QUANT)
    for state, new in ((a, b), (b, c), (c, a)):
        build.remember(state, new)
    sums = build.op(Builtin.ADD, [a, x], (1, 4), QUANT, options={"fusedActivationFunction": 0})
    frame = build.reshape(sums, (1, 1, 4))
    window = build.op(Builtin.CONCATENATION, [ring, frame], (1, 3, 4), QUANT, options={"axis": 1})
    build.remember(ring, build.op(Builtin.SLICE, [window, build.ints([0, 1, 0]), build.ints([1, 2, 4])],
                                  (1, 2, 4), QUANT))  # fmt: skip
    return build.graph([window])


def random_window(seed: int) -> Graph:
    """A part of a window is kept, anywhere in it and along any axis; who reads what is random too."""
    rng = np.random.default_rng(seed)
    build = Builder()
    axis = int(rng.integers(0, 4))
    shape = [int(d) for d in rng.integers(1, 4, 4)]
    kept, parts = int(rng.integers(1, 6)), int(rng.integers(1, 3))

    def sized(length: int) -> tuple[int, ...]:
        return (*shape[:axis], length, *shape[axis + 1 :])

    def added(a: Tensor, b: Tensor) -> Tensor:
        return build.op(Builtin.ADD, [a, b], a.shape, QUANT, options=NO_CLAMP)

    def cut(source: Tensor, begin: int, length: int) -> Tensor:
        begins = build.ints([begin if a == axis else 0 for a in range(4)])
        return build.op(Builtin.SLICE, [source, begins, build.ints(sized(length))], sized(length), QUANT)

    whole = bool(rng.integers(0, 2))  # the window is the state, or what is kept of it
    lengths = [int(n) for n in rng.integers(1, 4, parts)]
    length = kept + sum(lengths)
    begin = int(rng.integers(0, length - kept + 1))
    given = [build.input(f"x{i}", sized(n), "int8", QUANT) for i, n in enumerate(lengths)]
    start = rng.integers(-128, 128, sized(length if whole else kept)).astype(np.int8)
    state = build.state("ring", start if rng.integers(0, 2) else np.full_like(start, 5), QUANT)
    ring = cut(state, begin, kept) if whole else state
    new = [x if rng.integers(0, 2) else added(x, x) for x in given]
    if rng.integers(0, 4) == 0 and lengths[0] <= kept:  # made of what is remembered
        new[0] = added(new[0], cut(ring, kept - lengths[0], lengths[0]))
    new.insert(int(rng.integers(0, parts + 1)), ring)
    window = build.op(Builtin.CONCATENATION, new, sized(length), QUANT, options={"axis": axis, **NO_CLAMP})
    results = [window if rng.integers(0, 4) == 0 else added(window, window)]
    if rng.integers(0, 3) == 0:
        results.append(added(ring, cut(window, length - kept, kept)))  # the old beside the new
    if rng.integers(0, 6) == 0:
        results.append(state)  # as it was
    if rng.integers(0, 6) == 0:  # the old in another window too
        results.append(build.op(Builtin.CONCATENATION, [window, ring], sized(length + kept), QUANT,
                                options={"axis": axis, **NO_CLAMP}))  # fmt: skip
    build.remember(state, window if whole else cut(window, begin, kept))
    return build.graph(results)


def adding_up(seed: int) -> Graph:
    """A float state that is a mean, and another that the first was."""
    rng = np.random.default_rng(seed)
    build = Builder()
    shape = (1, int(rng.integers(1, 9)))
    x = build.dequantize(build.input("x", shape, "int8", QUANT))
    mean = build.state("mean", rng.normal(0, 1, shape).astype(np.float32))
    before = build.state("before", np.zeros(shape, np.float32))

    def real(kind: Builtin, a: Tensor, b: Tensor | float) -> Tensor:
        b = b if isinstance(b, Tensor) else build.const(np.float32(b).reshape(1))
        return build.op(kind, [a, b], shape, dtype="float32", options=NO_CLAMP)

    new = real(Builtin.ADD, real(Builtin.MUL, mean, 0.9), real(Builtin.MUL, x, 0.1))
    build.remember(before, mean)
    build.remember(mean, new)
    return build.graph([build.quantize(real(Builtin.SUB, new, before), QUANT)])


def cache(seed: int) -> Graph:
    """Rows that are written where an input says."""
    rng = np.random.default_rng(seed)
    build = Builder()
    rows, width = (int(n) for n in rng.integers(2, 6, 2))
    x, at = build.input("x", (1, 1, width), "int8", QUANT), build.input("at", (1,), "int32")
    state = build.state("cache", rng.integers(-128, 128, (1, rows, width)).astype(np.int8), QUANT)
    begin = build.op(Builtin.CONCATENATION, [build.ints([0]), at, build.ints([0])], (3,), dtype="int32",
                     options={"axis": 0, **NO_CLAMP})  # fmt: skip
    new = build.op(Builtin.DYNAMIC_UPDATE_SLICE, [state, x, begin], state.shape, QUANT)
    build.remember(state, new)
    return build.graph([build.op(Builtin.ADD, [new, new], state.shape, QUANT, options=NO_CLAMP)])
