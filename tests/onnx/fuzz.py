"""Damaged ONNX files in any number: `python -m tests.onnx.fuzz --count 3000 --seed 1`.

Bytes are flipped, cut, doubled and exchanged, and fields of the message changed by name (dimensions, types,
attributes, edges). Whatever comes of it, the reader gives a module or one error with a code, in bounded time
and memory. The default suite runs a few hundred (`test_fuzz.py`).
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from onnx import ModelProto, helper

from openneutron.diagnostics import OpenNeutronError
from openneutron.onnx.file import parse_onnx
from openneutron.onnx.importer import import_model
from tests.onnx.graphs import model, value

LONGEST = 20.0  # CPU seconds of one file
MOST_BYTES = 2 << 30  # of the process, above what it had at the start
_NUMBERS = (0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**40, 2**63 - 1, -(2**31), -(2**63))


def seeds() -> list[ModelProto]:
    """Models that have something of everything: layers, shape arithmetic, a branch, quantization, a loop."""
    random_ = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return random_.standard_normal(shape).astype(np.float32)

    made = helper.make_node
    layers = model(
        [
            made("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], name="conv"),
            made("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"], epsilon=1e-3),
            made("MaxPool", ["n"], ["p"], kernel_shape=[2, 2], strides=[1, 1], ceil_mode=1),
            made("Resize", ["p", "", "scales"], ["r"], mode="linear"),
            made("Shape", ["r"], ["s"]),
            made("Gather", ["s", "zero"], ["batch"]),
            made("Concat", ["batch", "rest"], ["wanted"], axis=0),
            made("Reshape", ["r", "wanted"], ["f"]),
            made("Pad", ["f", "pads"], ["q"]),
            made("Slice", ["q", "zero", "four", "one"], ["l"]),
            made("Gemm", ["l", "g", "h"], ["y"], transB=1, alpha=0.5),
        ],
        [value("x", ["N", 2, 8, 8])],
        [value("y", None)],
        {
            "w": array(3, 2, 3, 3), "b": array(3), "v": np.abs(array(3)) + 1, "zero": np.array([0]),
            "one": np.array([1]), "four": np.array([4]), "rest": np.array([-1]), "g": array(5, 4),
            "h": array(5), "scales": np.array([1, 1, 2, 2], np.float32), "pads": np.array([0, 0, 0, 2]),
        },
    )  # fmt: skip
    branch = {
        name: helper.make_graph([made(op, ["a"], [name])], name, [], [value(name, [4, 2])])
        for name, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    sequence = model(
        [
            made("GRU", ["x", "w", "r"], ["all", "last"], hidden_size=2, direction="bidirectional"),
            made("Transpose", ["last"], ["t"], perm=[1, 0, 2]),
            made("Reshape", ["t", "flat"], ["a"]),
            made("If", ["yes"], ["i"], **branch),
            made("Einsum", ["i", "i"], ["e"], equation="ij,kj->ik"),
            made("Split", ["e"], ["s", "u"], axis=1, num_outputs=2),
            made("TopK", ["s", "one"], ["y", "k"]),
        ],
        [value("x", [3, 2, 2])],
        [value("y", None), value("u", None)],
        {
            "w": array(2, 6, 2), "r": array(2, 6, 2), "flat": np.array([4, 2]), "yes": np.array(True),
            "one": np.array([1]),
        },
    )  # fmt: skip
    quantized = model(
        [
            made("QuantizeLinear", ["x", "s", "z"], ["q"]),
            made("QLinearConv", ["q", "s", "z", "w", "ws", "wz", "s", "z"], ["c"], kernel_shape=[1, 1]),
            made("DequantizeLinear", ["c", "s", "z"], ["d"]),
            made("Softmax", ["d"], ["y"], axis=1),
        ],
        [value("x", [1, 2, 3, 3])],
        [value("y", None)],
        {
            "s": np.float32(0.05), "z": np.array(3, np.uint8), "w": np.ones((2, 2, 1, 1), np.int8),
            "ws": np.array([0.1, 0.2], np.float32), "wz": np.zeros(2, np.int8),
        },
    )  # fmt: skip
    return [layers, sequence, quantized]


def mutate(data: bytes, draw: random.Random) -> bytes:
    """A damaged form of a model's bytes."""
    if draw.random() < 0.5:
        return _bytes(data, draw)
    changed = ModelProto.FromString(data)
    for _ in range(draw.randint(1, 3)):
        _field(changed, draw)
    return changed.SerializeToString()


def _bytes(data: bytes, draw: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        at, kind = draw.randrange(len(out)), draw.randrange(5)
        if kind == 0:
            out[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            out[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del out[at : at + draw.randint(1, 16)]
        elif kind == 3:
            out[at:at] = out[at : at + draw.randint(1, 64)]
        else:
            other = draw.randrange(len(out))
            out[at : at + 8], out[other : other + 8] = out[other : other + 8], out[at : at + 8]
        if not out:
            return b""
    return bytes(out) if draw.random() < 0.9 else bytes(out[: draw.randrange(len(out))])


def _field(changed: ModelProto, draw: random.Random) -> None:
    """Change one thing that a message says, so that it still parses."""
    graph = changed.graph
    node = draw.choice(graph.node) if graph.node else None
    names = [n for each in graph.node for n in (*each.input, *each.output)] or ["x"]
    kind = draw.randrange(9)
    if kind == 0 and graph.initializer:
        weight = draw.choice(graph.initializer)
        if weight.dims:
            weight.dims[draw.randrange(len(weight.dims))] = draw.choice(_NUMBERS)
    elif kind == 1 and graph.initializer:
        draw.choice(graph.initializer).data_type = draw.randrange(26)
    elif kind == 2 and node is not None and node.attribute:
        item = draw.choice(node.attribute)
        item.i = draw.choice(_NUMBERS)
        if item.ints:
            item.ints[draw.randrange(len(item.ints))] = draw.choice(_NUMBERS)
        item.f = draw.choice((0.0, -1.0, float("nan"), float("inf"), 1e38))
    elif kind == 3 and node is not None and node.input:
        node.input[draw.randrange(len(node.input))] = draw.choice((*names, "", "nowhere"))
    elif kind == 4 and node is not None and node.output:
        node.output[draw.randrange(len(node.output))] = draw.choice((*names, ""))
    elif kind == 5 and node is not None:
        node.op_type = draw.choice([each.op_type for each in graph.node])
    elif kind == 6 and graph.input:
        dims = draw.choice(graph.input).type.tensor_type.shape.dim
        if dims:
            draw.choice(dims).dim_value = draw.choice(_NUMBERS)
    elif kind == 7:
        changed.opset_import[0].version = draw.choice((0, 1, 6, 7, 9, 11, 13, 18, 26, 2**40, -1))
    elif graph.initializer:  # the numbers inside of what is computed now
        weight = draw.choice(graph.initializer)
        raw = bytearray(weight.raw_data)
        if raw:
            size = min(8, len(raw))
            at = draw.randrange(len(raw) - size + 1)
            raw[at : at + size] = draw.choice(_NUMBERS).to_bytes(8, "little", signed=True)[:size]
            weight.raw_data = bytes(raw)


def try_file(data: bytes, folder: Path) -> str:
    """The code that a file is refused with, or `read`; anything else is raised."""
    try:
        import_model(parse_onnx(data, folder / "model.onnx"), {}, {}, True)
    except OpenNeutronError as error:
        return error.diagnostic.code
    return "read"


def fuzz(count: int, seed: int, folder: Path) -> Counter[str]:
    """Try so many files; the first that breaks a promise is named and raised."""
    whole = [made.SerializeToString() for made in seeds()]
    assert {try_file(data, folder) for data in whole} == {"read"}, "the seeds are sound"
    found: Counter[str] = Counter()
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        data, began = mutate(draw.choice(whole), draw), time.process_time()
        try:
            found[try_file(data, folder)] += 1
        except Exception as error:
            raise AssertionError(f"--seed {seed}, file {number}: {type(error).__name__}: {error}") from error
        taken = time.process_time() - began
        assert taken < LONGEST, f"--seed {seed}, file {number}: {taken:.0f} s"
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - start
        assert more < MOST_BYTES, f"--seed {seed}, file {number}: {more >> 20} MB more than at the start"
    return found


def main() -> None:
    """As the module's docstring says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    found = fuzz(args.count, args.seed, Path("."))
    print(f"{args.count} files: " + ", ".join(f"{n} {code}" for code, n in found.most_common()))
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
