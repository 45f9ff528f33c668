"""ExecuTorch's own cortex_m kernels on CMSIS-NN, built for the host of their sources, under sanitizers."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openneutron.firmware.operators import find_kernels
from openneutron.firmware.sources import Sources
from openneutron.firmware.toolchain import CXX, Unit, cache_folder, compile_units
from openneutron.firmware.whole import CORE_FILES, DEFINES
from openneutron.package.pte import inspect_program
from openneutron.run.delegate import cortex_m_operators
from tests.cortex_m.cases import Arguments, Maker

SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize=alignment", "-fno-sanitize-recover=undefined")
# CMSIS-NN shifts negative numbers to the left, which every compiler it is for defines.
NN_FLAGS = ("-w", "-std=gnu11", "-fno-sanitize=shift")
SCRATCH = 1 << 15


@dataclass(frozen=True)
class Host:
    """This machine, as a core to compile for."""

    name: str = "host"
    flags: tuple[str, ...] = ("-O1", "-g1", *SANITIZE)


class ChipMaker(Maker):
    """Arguments that CMSIS-NN is defined for: ExecuTorch's passes make no others."""

    nhwc = False

    def tensor(self, *shape: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
        return super().tensor(*shape, dtype=torch.int16 if dtype == torch.int16 else torch.int8)

    def layout(self, tensor: torch.Tensor) -> torch.Tensor:
        channels_last = tensor.dim() == 4 and not self.nhwc
        return tensor.to(memory_format=torch.channels_last) if channels_last else tensor.contiguous()

    def bounds(self) -> tuple[int, int]:
        low, high = sorted((self.zero(), self.zero()))
        return (low, high) if self.flip() and low < high else (-128, 127)

    def multiplier(self) -> int:
        return self.integer(1 << 30, (1 << 31) - 1)

    def shift(self, middle: int) -> int:
        return max(-30, self.integer(middle - 2, middle + 2))

    def scratch(self) -> torch.Tensor:
        return torch.zeros(SCRATCH, dtype=torch.uint8)


def chip_arguments(operator: str, arguments: Arguments) -> Arguments | None:
    """The same for the chip, with values that belong together; None if its kernel is not defined for them."""
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    first = tensors[0]
    if first.numel() == 0 or first.dim() == 0:
        return None
    if operator in ("quantize_per_tensor", "dequantize_per_tensor"):
        return arguments if _quantized(operator, *arguments) else None
    if first.dtype != torch.int8 and operator != "quantized_div":
        return None
    if operator in ("minimum", "maximum"):
        return arguments if all(t.dim() <= 4 and t.dtype == torch.int8 for t in tensors) else None
    if operator == "transpose":
        x, order = arguments
        order = [d % x.dim() for d in order]  # CMSIS-NN transposes a matrix whatever it is told
        return (x, order) if x.dim() <= 4 and order != [0, 1] else None
    if operator == "softmax":  # longer rows of equal values would be shifted by more than a word has
        shift = arguments[5]
        last = arguments[1] in (-1, first.dim() - 1) and first.shape[-1] < 256
        return (first.contiguous(), *arguments[1:6], -((31 << 26) >> shift)) if last else None
    if operator == "pad":  # with one channel or one pixel the order of dimensions is not plain
        plain = first.dim() < 4 or (first.shape[1] > 1 and first.shape[2] * first.shape[3] > 1)
        none = [0] * (4 - first.dim())  # of dimensions that are not there
        before, after = ([*none, *amounts[len(none) :]] for amounts in arguments[1:3])
        return (first, before, after, arguments[3]) if plain and min(*before, *after) >= 0 else None
    if operator in ("quantized_add", "quantized_mul") and (arguments[1] > 127 or -400 in _numbers(arguments)):
        return None
    if operator == "quantized_linear":
        return _linear(*arguments)
    if "transpose_conv2d" in operator and any((*arguments[5], *(d - 1 for d in arguments[6]))):
        return None  # no padding of the output, no dilation
    return _convolution(arguments) if "conv2d" in operator else arguments


def _numbers(arguments: Arguments) -> list[int]:
    return [a for a in arguments if type(a) is int]


def _quantized(operator: str, x: Any, scale: float, zero: int, low: int, high: int, dtype: Any) -> bool:
    if dtype not in (torch.int8, torch.int16):
        return False
    if operator == "dequantize_per_tensor":
        return low <= zero <= high
    return x.dtype == torch.float32 and bool((x.abs() / scale < 1 << 21).all())  # NaN is not less


def _linear(x: Any, w: Any, bias: Any, sums: Any, offset: int, filter_offset: int, *rest: Any) -> Arguments:
    """The sum of the weights is the weights'; sums stay far from overflow."""
    offset = max(-127, min(128, offset))
    bias = None if bias is None else bias % 20001
    if sums is not None:
        sums = (offset * (w.int() + filter_offset).sum(1) + (0 if bias is None else bias)).int()
    return x, w, bias, sums, offset, filter_offset, *rest


def _convolution(arguments: Arguments) -> Arguments:
    """Weights lie as they are shaped, and sums stay far from overflow.

    There is always a bias: without, CMSIS-NN goes on from none to that of the next group, and reads it.
    """
    x, w, bias, *rest = arguments
    if bias is None:
        multipliers = next(a for a in rest if isinstance(a, torch.Tensor))
        bias = torch.zeros_like(multipliers)
    return x, w.contiguous(), bias % 20001, *(40 if type(a) is int and a == 40000 else a for a in rest)


@cache
def build_chip(sources: Sources) -> Path:
    """The program that runs a .pte on ExecuTorch's kernels; built once for these sources."""
    kernels = find_kernels(sorted(cortex_m_operators()), sources, portable=True)
    root, digest = sources.executorch, sources.digest
    assert sources.cmsis_nn is not None
    includes = (
        sources.include,
        root / "runtime/core/portable_type/c10",
        sources.generated,
        sources.flatbuffers,
    )
    flags = (
        "-w",
        *(f for f in CXX if f != "-fno-rtti" and f != "-fno-exceptions"),
        *DEFINES,
        "-DET_LOG_ENABLED=0",
    )
    files = [root / f"{name}.cpp" for name in (*CORE_FILES, "runtime/platform/default/minimal")]
    units = [Unit("core", f.stem, f, flags, includes, digest) for f in files]
    nn = (sources.cmsis_nn / "Include",)
    units += [Unit(g, f.stem, f, flags, (*includes, *nn), digest) for g, f in kernels.files]
    units += [Unit("cmsisnn", f.stem, f, NN_FLAGS, nn, digest) for f in kernels.cmsis_nn]
    for library, folder in kernels.registrations:
        source = folder / "RegisterCodegenUnboxedKernelsEverything.cpp"
        units.append(Unit("registration", library, source, flags, (folder, *includes), digest))
    main = Path(__file__).with_name("chip_main.cpp")
    units.append(Unit("application", "chip", main, flags, includes, digest))
    objects = compile_units(units, Host(), prefix="")
    made_of = hashlib.sha256("".join(map(str, objects)).encode()).hexdigest()[:24]
    image = cache_folder() / "objects/host" / f"chip_{made_of}"
    if not image.exists():
        subprocess.run(["g++", *Host().flags, *map(str, objects), "-o", str(image)], check=True)
    return image


def run_chip(
    image: Path, program: bytes, rounds: list[list[np.ndarray]], folder: Path
) -> list[list[np.ndarray | None]]:
    """For every round the output of every method call_i; None for one that refused its arguments."""
    (folder / "p.pte").write_bytes(program)
    info = inspect_program(program)
    methods = list(info.methods.values())
    raw = b"".join(_raw(a, s.dim_order) for r in rounds for a, s in zip(r, methods[0].inputs, strict=True))
    (folder / "in.bin").write_bytes(raw)
    command = [str(image), "p.pte", "in.bin", "out.bin", str(len(rounds))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    data, at, results = (folder / "out.bin").read_bytes(), 0, []
    for _ in rounds:
        row: list[np.ndarray | None] = []
        for i, method in enumerate(methods):
            spec = method.outputs[i]
            assert spec is not None
            good, at = data[at] == 1, at + 1
            size = int(np.prod(spec.shape)) * np.dtype(spec.dtype).itemsize
            inside = np.frombuffer(data[at : at + size], spec.dtype).reshape(
                [spec.shape[d] for d in spec.dim_order]
            )
            order = [spec.dim_order.index(d) for d in range(len(spec.shape))]
            row.append(inside.transpose(order) if good else None)
            at += size
        results.append(row)
    return results


def _raw(array: np.ndarray, order: tuple[int, ...]) -> bytes:
    return np.ascontiguousarray(array.transpose(order)).tobytes()
