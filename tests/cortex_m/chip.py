"""ExecuTorch's own cortex_m kernels on CMSIS-NN, built for the host of their sources, under sanitizers."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from openneutron.firmware.operators import find_kernels
from openneutron.firmware.sources import Sources
from openneutron.firmware.toolchain import CXX, Unit, cache_folder, compile_units
from openneutron.firmware.whole import CORE_FILES, DEFINES
from openneutron.package.pte import inspect_program
from openneutron.run.delegate import cortex_m_operators
from tests.cortex_m.cases import Maker

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


@cache
def build_chip(sources: Sources) -> Path:
    """The program that runs a .pte on ExecuTorch's kernels; built once for these sources."""
    kernels = find_kernels(sorted(cortex_m_operators()), sources)
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
    image = cache_folder() / "objects/host" / f"chip_{digest[:16]}_{main.stat().st_mtime_ns}"
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
