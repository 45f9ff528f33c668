"""Many small ops at once against the oracle: one interpreter, one microcode, exact equality."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openneutron.compiler.microcode.format import Program, Ref, Region, descriptor, encode
from openneutron.compiler.select.constants import ConstPool
from openneutron.compiler.select.select import select
from openneutron.litert.ir import Builtin, Graph, Op, Quant, Tensor, constant
from openneutron.litert.reference import Reference
from tests.emulated import models


@dataclass
class Maker:
    """Random tensors and ops with names of their own."""

    rng: np.random.Generator
    numbers: Any = field(default_factory=itertools.count)
    limits: dict[str, int] = field(default_factory=dict)  # of indices, by name

    def pick(self, *values: Any) -> Any:
        """One of the values."""
        return values[int(self.rng.integers(len(values)))]

    def size(self, low: int, high: int) -> int:
        """A number from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def quant(self, low: float = 1e-3, high: float = 0.5) -> Quant:
        """A random per-tensor quantization; edges of the zero point often."""
        scale = float(np.exp(self.rng.uniform(np.log(low), np.log(high))))
        return Quant.per_tensor(scale, self.pick(0, -128, 127, self.size(-128, 127)))

    def tensor(self, shape: Sequence[int], quant: Quant | None = None, dtype: str = "int8") -> Tensor:
        """A fresh activation."""
        if quant is None and dtype == "int8":
            quant = self.quant()
        return Tensor(f"t{next(self.numbers)}", tuple(map(int, shape)), dtype, quant)

    def indices(self, shape: Sequence[int], limit: int) -> Tensor:
        """Indices below a limit that are only known at run time."""
        tensor = self.tensor(shape, None, self.pick("int32", "int64"))
        self.limits[tensor.name] = limit
        return tensor

    def ints(self, values: Any) -> Tensor:
        """A constant int32 parameter."""
        return constant(f"c{next(self.numbers)}", np.array(values, np.int32))

    def weights(self, shape: Sequence[int], axis: int | None = None, scale: float = 0.02) -> Tensor:
        """Constant int8 weights, with extreme values often; per axis if asked for."""
        data = self.rng.integers(-127, 128, shape, np.int8)
        if self.rng.random() < 0.1:
            data = np.where(data > 0, 127, -127).astype(np.int8)
        if axis is None:
            quant = Quant.per_tensor(scale)
        else:
            quant = Quant.per_axis(scale * self.rng.uniform(0.1, 3.0, shape[axis]), axis=axis)
        return constant(f"w{next(self.numbers)}", data, quant)

    def bias(self, count: int, source: Tensor, weights: Tensor) -> Tensor:
        """A constant int32 bias."""
        limit = self.pick(100, 20000, 2**30)
        data = self.rng.integers(-limit, limit, count, np.int32)
        assert source.quant and weights.quant
        scales = np.array(weights.quant.scale) * source.quant.scale[0]
        quant = Quant.per_tensor(scales[0]) if len(scales) == 1 else Quant.per_axis(scales)
        return constant(f"b{next(self.numbers)}", data, quant)

    def values(self, tensor: Tensor) -> np.ndarray:
        """Random values for an input: all of the range, its ends, or few values."""
        if tensor.dtype == "float32":
            return self.rng.normal(0, 3, tensor.shape).astype(np.float32)
        if tensor.name in self.limits:
            return self.rng.integers(0, self.limits[tensor.name], tensor.shape, tensor.dtype)
        if tensor.dtype == "uint8":
            return self.rng.integers(0, 256, tensor.shape, np.uint8)
        assert tensor.dtype == "int8"
        match self.size(0, 4):
            case 0:
                return self.rng.choice(np.array([-128, 127], np.int8), tensor.shape)
            case 1:
                return np.full(tensor.shape, self.size(-128, 127), np.int8)
            case _:
                return self.rng.integers(-128, 128, tensor.shape, np.int8)


def program_of(ops: Sequence[Op]) -> tuple[Program, bytes, list[Tensor], list[Tensor]]:
    """A microcode of independent ops: their activations are its inputs, their results its outputs."""
    inputs = list(dict.fromkeys(t for op in ops for t in op.inputs if t is not None and not t.is_const))
    outputs = [t for op in ops for t in op.outputs]
    place = {t: Ref(Region.INPUT, i) for i, t in enumerate(inputs)}
    place |= {t: Ref(Region.OUTPUT, i) for i, t in enumerate(outputs)}
    pool = ConstPool()
    calls = tuple(call for op in ops for call in select(op, place.__getitem__, pool))
    weights = pool.bytes()
    program = Program(
        calls=calls,
        inputs=tuple(descriptor(t.dtype, t.shape) for t in inputs),
        outputs=tuple(descriptor(t.dtype, t.shape) for t in outputs),
        weights_bytes=len(weights),
        scratch_bytes=0,
        weights_crc=zlib.crc32(weights),
    )
    return program, weights, inputs, outputs


def assert_agree(make: Maker, ops: Sequence[Op], runs: int = 1) -> int:
    """Every build of the runtime gives what the oracle gives; returns the number of cases."""
    program, weights, inputs, outputs = program_of(ops)
    reference = Reference(Graph(inputs, outputs, list(ops)))
    builds = models(encode(program), weights)
    for _ in range(runs):
        values = [make.values(t) for t in inputs]
        wanted = reference.run(values)
        for name, model in builds.items():
            for tensor, want, got in zip(outputs, wanted, model.run(values), strict=True):
                want = want.reshape(got.shape)
                if not np.array_equal(want, got, equal_nan=want.dtype == np.float32):
                    op = next(o for o in ops if tensor in o.outputs)
                    at = tuple(np.argwhere(want != got)[0])
                    given = ", ".join(map(repr, (t for t in op.inputs if t is not None)))
                    raise AssertionError(
                        f"{name}: {op!r}\n  inputs {given}\n  output {tensor!r}\n"
                        f"  {np.count_nonzero(want != got)} of {want.size} differ, "
                        f"first at {at}: oracle {want[at]}, runtime {got[at]}"
                    )
    return len(ops) * runs


def check_cases(case: Callable[[Maker], Op], count: int, seed: int, batch: int = 100) -> None:
    """`count` cases from a generator, in batches."""
    make = Maker(np.random.default_rng(seed))
    done = 0
    while done < count:
        ops = [case(make) for _ in range(min(batch, count - done))]
        done += assert_agree(make, ops)


__all__ = ["Builtin", "Maker", "Op", "Quant", "assert_agree", "check_cases", "constant", "program_of"]
