"""LiteRT graphs that remember."""

from __future__ import annotations

import numpy as np

from openneutron.litert.build import Builder
from openneutron.litert.ir import Builtin, Graph, Quant

QUANT = Quant.per_tensor(0.1, 3)


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
