"""Every pair of int8 values under scales of many sizes: multipliers must be LiteRT's to the last bit.

A multiplier that is off by its last bits changes a result in one of ten thousand pairs, where the first of
two roundings is a near tie; LiteRT computes some multipliers in float32 and some in double precision.
"""

import numpy as np
import pytest

from openneutron.compiler.compile import compile_graph
from openneutron.litert.reference import Reference
from openneutron.litert.text import parse_graph
from openneutron.options import CompileOptions
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target

BYTES = np.arange(-128, 128).astype(np.int8)
LISTED = ", ".join(map(str, BYTES))
MATMUL = "with adjX=False, adjY=False, asymmetricQuantizeInputs=False"
DENSE = "with fusedActivationFunction=0, keepNumDims=False, weightsFormat=0"
GRAPHS = {
    "MUL": "(a: int8[1,256,1] {a}, b: int8[1,1,256] {b})\n"
    "  o: int8[1,256,256] {o} = MUL(a, b) with fusedActivationFunction=0",
    "BATCH_MATMUL": "(a: int8[1,256,1] {a}, b: int8[1,1,256] {b})\n"
    "  o: int8[1,256,256] {o} = BATCH_MATMUL(a, b) " + MATMUL,
    "PRELU": "(a: int8[1,256,256] {a})\n"
    "  o: int8[1,256,256] {o} = PRELU(a, b: int8[1,1,256] {b} {{" + LISTED + "}})",
    "FULLY_CONNECTED": "(a: int8[256,1] {a})\n"
    "  o: int8[256,255] {o} = FULLY_CONNECTED(a, b: int8[255,1] {w} {{" + LISTED[6:] + "}}) " + DENSE,
}  # fmt: skip


def given(kind: str) -> list[np.ndarray]:
    if kind == "PRELU":
        return [np.repeat(BYTES, 256).reshape(1, 256, 256)]
    if kind == "FULLY_CONNECTED":
        return [BYTES.reshape(256, 1)]
    return [BYTES.reshape(1, 256, 1), BYTES.reshape(1, 1, 256)]


@pytest.mark.parametrize("kind", GRAPHS)
def test_all_pairs(kind):
    rng = np.random.default_rng(0)
    for _ in range(150):
        a, b = (np.float32(10 ** rng.uniform(-4, 1)) for _ in range(2))
        scales = (a, b, np.float32(a * b * np.float32(rng.uniform(20, 200))))
        pairs = zip(scales, rng.integers(-128, 128, 3), strict=True)
        names = dict(zip("abo", (f"{float(scale)!r}@{zero}" for scale, zero in pairs), strict=True))
        text = GRAPHS[kind].format(**names, w=f"{float(b)!r}@0")
        graph = parse_graph(f"graph main{text}\n  return o\n")
        compiled = compile_graph(graph, find_target("imxrt700"), CompileOptions())
        (wanted,) = Reference(graph).run(given(kind))
        (found,) = NativeModel(compiled.microcode, compiled.weights).run(given(kind))
        assert int((wanted != found).sum()) == 0, names
