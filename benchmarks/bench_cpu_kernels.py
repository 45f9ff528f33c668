"""Instructions of the kernels of runtime/cpu_kernels and of ExecuTorch's portable ones, per element or MAC.

Both are called with the same arguments under QEMU, on a Cortex-M33 and an M55, in three sizes; what they
write is compared too. A call's fixed amount (finding out whether the kernel takes it) is in
the figures, so the largest size tells the loop.

Needs the cross tools, EXECUTORCH_SOURCE and CMSIS_NN_SOURCE (docs/firmware.md).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from openneutron.diagnostics import OpenNeutronError
from openneutron.firmware.cores import CORES
from openneutron.firmware.sources import find_sources
from tests.cpu_kernels.calls import RANGES, M, Q
from tests.cpu_kernels.compare import TYPES, Call, build, out, run

# Where CMSIS-NN's vectors, its kernel for few elements, or double precision in the FPU stay.
KEPT = ("gelu", "quantize, cortex_m", "dequantize, cortex_m", "int8 add", "int8 mul")
Row = tuple[str, list[Call]]
SIZES = (64, 512, 4096)
LAST = (0, 2, 3, 1)
# Instructions a Cortex-M33 should take at most, by what a row's name begins with.
AIMS = {"transposed": 5, "quantize": 10, "dequantize": 8, "broadcast": 20, "softmax": 60, "log_softmax": 60,
        "permute": 6, "transpose": 6, "expand": 6, "to channels last": 6, "mm": 5, "bmm": 5, "addmm": 5,
        "convolution": 5, "pointwise": 5, "depthwise": 5, "add": 12, "sub": 12, "mul": 12, "div": 12,
        "minimum": 12, "maximum": 12, "relu": 12, "clamp": 12, "rsqrt": 12,
        "reciprocal": 12, "where": 12, "flip": 6, "int8 softmax": 60, "int8": 12, "slice": 6,
        "select": 6, "cat": 6}  # fmt: skip


def rows() -> Iterator[tuple[str, list[Call]]]:
    """Every operator in three sizes, with the work that its instructions are divided by."""
    rng = np.random.default_rng(0)

    def values(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype("float32")

    def sized(name: str, operator: str, arguments: Callable[[int], tuple[object, ...]]) -> Row:
        return name, [Call(operator, arguments(n), n) for n in SIZES]

    for dtype, (low, high) in RANGES.items():
        more = (0.02, 3, low, high, TYPES[dtype])
        pairs = [(values(n), rng.integers(low, high, n).astype(dtype)) for n in SIZES]
        yield (
            f"quantize to {dtype}",
            [Call(Q + "quantize_per_tensor.out", (x, *more, out(x.shape, dtype)), x.size) for x, _ in pairs],
        )
        yield (
            f"dequantize {dtype}",
            [Call(Q + "dequantize_per_tensor.out", (x, *more, None, out(x.shape)), x.size) for _, x in pairs],
        )
    per_channel = (np.full(8, 0.02), np.zeros(8, "int64"), 0, -128, 127, TYPES["int8"])
    yield sized("quantize per channel", Q + "quantize_per_channel.out",
                lambda n: (values(8, n // 8), *per_channel, out((8, n // 8), "int8")))  # fmt: skip
    yield sized("dequantize per channel", Q + "dequantize_per_channel.out",
                lambda n: (np.ones((8, n // 8), "int8"), *per_channel, None, out((8, n // 8))))  # fmt: skip
    for name in ("add", "sub", "mul", "div", "minimum", "maximum"):
        alpha = (1,) if name in ("add", "sub") else ()
        operator = f"aten::{name}.out"
        yield name, [Call(operator, (values(n), values(n), *alpha, out((n,))), n) for n in SIZES]
        shapes = [(4, 8, n // 32) for n in SIZES]
        yield (
            f"broadcast {name}",
            [Call(operator, (values(*s), values(8, 1), *alpha, out(s)), int(np.prod(s))) for s in shapes],
        )
    for name in ("add", "mul", "div"):
        alpha = (1,) if name == "add" else ()
        operator = f"aten::{name}.Scalar_out"
        yield f"{name} a number", [Call(operator, (values(n), 2.5, *alpha, out((n,))), n) for n in SIZES]
    yield sized("compare", "aten::lt.Tensor_out", lambda n: (values(n), values(n), out((n,), "bool")))
    yield sized("compare with a number", "aten::gt.Scalar_out", lambda n: (values(n), 0.5, out((n,), "bool")))
    yield sized("where", "aten::where.self_out",
                lambda n: (values(n) > 0, values(n), values(n), out((n,))))  # fmt: skip
    yield sized("broadcast where", "aten::where.self_out",
                lambda n: (values(1, n // 32) > 0, values(1, 1), values(32, n // 32),
                           out((32, n // 32))))  # fmt: skip
    for name in ("relu", "abs", "neg", "sqrt", "rsqrt", "reciprocal", "exp", "tanh", "sigmoid"):
        yield name, [Call(f"aten::{name}.out", (abs(values(n)), out((n,))), n) for n in SIZES]
    yield sized("gelu", "aten::gelu.out", lambda n: (values(n), "none", out((n,))))
    yield sized("clamp", "aten::clamp.out", lambda n: (values(n), -1.0, 1.0, out((n,))))
    yield sized("permute", "aten::permute_copy.out",
                lambda n: (values(2, 8, n // 16), [0, 2, 1], out((2, n // 16, 8))))  # fmt: skip
    yield sized("transpose", "aten::transpose_copy.int_out",
                lambda n: (values(8, n // 8), 0, 1, out((n // 8, 8))))  # fmt: skip
    yield sized("expand", "aten::expand_copy.out",
                lambda n: (values(8, 1), [8, n // 8], False, out((8, n // 8))))  # fmt: skip
    yield sized("to channels last", "dim_order_ops::_to_dim_order_copy.out",
                lambda n: (values(1, 4, 4, n // 16), False, list(LAST),
                           out((1, 4, 4, n // 16), order=LAST)))  # fmt: skip
    yield sized("flip", "aten::flip.out", lambda n: (values(8, n // 8), [1], out((8, n // 8))))
    yield sized("sum of rows", "aten::sum.IntList_out",
                lambda n: (values(8, n // 8), [1], False, None, out((8,))))  # fmt: skip
    yield sized("mean of pixels", "aten::mean.out",
                lambda n: (values(1, 4, 4, n // 16), [2, 3], True, None, out((1, 4, 1, 1))))  # fmt: skip
    for name in ("softmax", "log_softmax"):
        operator = f"aten::_{name}.out"
        yield name, [Call(operator, (values(2, n // 2), -1, False, out((2, n // 2))), n) for n in SIZES]
    yield sized("layer norm", "aten::native_layer_norm.out",
                lambda n: (values(2, n // 2), [n // 2], values(n // 2), values(n // 2), 1e-5,
                           out((2, n // 2)), out((2, 1)), out((2, 1))))  # fmt: skip
    sides = (8, 24, 64)
    yield "mm", [Call("aten::mm.out", (values(4, n), values(n, n), out((4, n))), 4 * n * n) for n in sides]
    yield (
        "bmm",
        [Call("aten::bmm.out", (values(2, 4, n), values(2, n, n), out((2, 4, n))), 8 * n * n) for n in sides],
    )
    yield (
        "addmm",
        [
            Call("aten::addmm.out", (values(n), values(4, n), values(n, n), 1, 1, out((4, n))), 4 * n * n)
            for n in sides
        ],
    )
    for name, dense, kernel in (("convolution", True, 3), ("pointwise", True, 1), ("depthwise", False, 3)):
        calls = []
        for c, side in ((4, 8), (8, 12), (16, 16)):
            image, each = (1, c, side, side), c if dense else 1
            pad = [kernel // 2] * 2
            more = ([1, 1], pad, [1, 1], False, [0, 0], 1 if dense else c)
            arguments = (values(*image), values(c, each, kernel, kernel), values(c), *more, out(image))
            work = c * side * side * each * kernel * kernel
            calls.append(Call("aten::convolution.out", arguments, work))
        yield name, calls
    for name, corners in (("nearest", ()), ("bilinear", (False,))):
        images = [((1, c, side, side), (1, c, 2 * side, 2 * side)) for c, side in ((1, 4), (8, 4), (16, 8))]
        operator = f"aten::upsample_{name}2d.vec_out"
        yield (
            f"upsample {name}",
            [Call(operator, (values(*a), list(b[2:]), *corners, None, out(b)), int(np.prod(b)))
             for a, b in images],
        )  # fmt: skip
    calls, pools = [], {"average pool": [], "max pool": []}
    for c, side in ((4, 8), (8, 12), (16, 16)):
        image, twice, half = (1, c, side, side), (1, c, 2 * side, 2 * side), (1, c, side // 2, side // 2)
        more = ([2, 2], [0, 0], [1, 1], True, [0, 0], 1)
        arguments = (values(*image), values(c, c, 2, 2), values(c), *more, out(twice))
        calls.append(Call("aten::convolution.out", arguments, c * c * side * side * 4))
        given, work = (values(*image), [2, 2], [2, 2], [0, 0]), c * side * side
        average = Call("aten::avg_pool2d.out", (*given, False, True, None, out(half)), work)
        largest = (*given, [1, 1], False, out(half), out(half, "int64"))
        pools["average pool"].append(average)
        pools["max pool"].append(Call("aten::max_pool2d_with_indices.out", largest, work))
    yield "transposed convolution", calls
    yield from pools.items()
    yield from _parts(values)
    yield from _int8(rng)


def _parts(values: Callable[..., np.ndarray]) -> Iterator[Row]:
    """Slices and the like, of rows of four, where each row costs most."""
    rows: dict[str, list[Call]] = {"slice": [], "select": [], "cat": []}
    for n in SIZES:
        wide, rest = values(n // 4, 8), (out((n // 4, 4)),)
        rows["slice"].append(Call("aten::slice_copy.Tensor_out", (wide, 1, 0, 8, 2, *rest), n))
        rows["select"].append(Call("aten::select_copy.int_out", (values(n, 2), 1, 0, out((n,))), n))
        rows["cat"].append(Call("aten::cat.out", ([values(n // 4, 2)] * 2, 1, *rest), n))
    yield from rows.items()


def _int8(rng: np.random.Generator) -> Iterator[Row]:
    """Operators of the Cortex-M dialect; `portable` is CMSIS-NN, in vectors where a core has them."""

    def values(*shape: int) -> np.ndarray:
        return rng.integers(-128, 128, shape).astype("int8")

    rows: dict[str, list[Call]] = {name: [] for name in (*KEPT[1:], "int8 softmax")}
    half = (2**30, 0)
    for n in SIZES:
        add = (values(n), 3, *half, values(n), -5, *half, 0, 2**30, -18, -128, 127, out((n,), "int8"))
        rows["int8 add"].append(Call(M + "quantized_add.out", add, n))
        mul = (values(n), 3, values(n), -5, 0, 2**30, -6, out((n,), "int8"))
        rows["int8 mul"].append(Call(M + "quantized_mul.out", mul, n))
        more = (0.02, 3, -128, 127, TYPES["int8"])
        given = (rng.standard_normal(n).astype("float32"), *more, out((n,), "int8"))
        rows["quantize, cortex_m"].append(Call(M + "quantize_per_tensor.out", given, n))
        back = Call(M + "dequantize_per_tensor.out", (values(n), *more, out((n,))), n)
        rows["dequantize, cortex_m"].append(back)
        softmax = (values(n // 64, 64), -1, 0, -128, 2**30, 22, -255, out((n // 64, 64), "int8"))
        rows["int8 softmax"].append(Call(M + "softmax.out", softmax, n))
    yield from rows.items()


def main() -> int:
    """Print a row for every operator."""
    try:
        sources = find_sources()
        images = {core: build(sources, core) for core in CORES.values()}
    except OpenNeutronError as error:
        print(f"skipped: {error}")
        return 0
    print(
        f"{'operator':<24}"
        + "".join(f"{f'{c.name}: portable':>26}{'ours':>20}" for c in CORES.values())
        + f"{'aim':>6}"
    )
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        chosen = [row for row in rows() if not sys.argv[1:] or any(a in row[0] for a in sys.argv[1:])]
        for name, calls in chosen:
            line = f"{name:<24}"
            for core, image in images.items():
                found = run(image, calls, Path(folder), core)
                left = 0 if name in KEPT else sum(o.fell_back for o in found)
                wrong += sum(o.what != "equal" for o in found) + left
                for width, which in ((26, "portable"), (20, "ours")):
                    each = (getattr(o, which) / c.work for o, c in zip(found, calls, strict=True))
                    line += f"{' '.join(f'{e:.1f}' for e in each):>{width}}"
            aim = next((str(a) for key, a in AIMS.items() if name.startswith(key)), "")
            print(f"{line}{aim:>6}", flush=True)
    print(f"{wrong} calls differ or are not taken")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
