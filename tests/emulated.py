"""The runtime of an AArch64 host under QEMU: what this machine cannot load is still compared bit for bit."""

from __future__ import annotations

import atexit
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from openneutron.run.native import NativeModel
from tests.native import ROOT, build, libraries

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
# A core without dot products, one with them: which code runs is decided there, as on the real machine.
CORES = {"neon": "cortex-a53", "dot products": "neoverse-n1"}


class Runnable(Protocol):
    """A model on some build of the runtime."""

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for these inputs."""
        ...


@cache
def available() -> bool:
    """The compiler, its C library and the emulator are installed."""
    if not (shutil.which(COMPILER) and shutil.which(EMULATOR)):
        return False
    found = subprocess.run([COMPILER, "-print-file-name=libc.a"], capture_output=True, text=True).stdout
    return found.strip() != "libc.a"


def serve_program() -> Path:
    """The runtime with serve.c around it."""
    source = ROOT / "tests" / "runtime" / "serve.c"
    return build("serve", "-O2", "-static", machine="aarch64", extra=(source,))


def request(program: tuple[bytes, bytes], inputs: Sequence[np.ndarray]) -> bytes:
    """What serve.c takes: a microcode with its weights, and inputs."""
    parts = (*program, b"".join(a.tobytes() for a in inputs))
    return struct.pack("<III", *map(len, parts)) + b"".join(parts)


@cache
def server(core: str) -> subprocess.Popen[bytes]:
    """A process of the emulator that runs what it is sent; one for the whole session."""
    command = [EMULATOR, "-cpu", core, str(serve_program())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(process.kill)
    return process


class Emulated:
    """A microcode with its weights on an emulated core."""

    def __init__(self, microcode: bytes, weights: bytes, core: str):
        self._program, self._core = (microcode, weights), core
        self._outputs = NativeModel(microcode, weights, library=libraries()["portable"]).outputs

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for these inputs."""
        process = server(self._core)
        assert process.stdin and process.stdout
        process.stdin.write(request(self._program, inputs))
        process.stdin.flush()
        head = process.stdout.read(4)
        assert len(head) == 4, f"the program ended on {self._core}: {process.poll()}"
        (status,) = struct.unpack("<I", head)
        assert status == 0, f"status {status} on {self._core}"
        arrays = []
        for shape, dtype in self._outputs:
            data = process.stdout.read(int(np.prod(shape)) * dtype.itemsize)
            arrays.append(np.frombuffer(data, dtype).reshape(shape))
        return arrays


def models(microcode: bytes, weights: bytes) -> Mapping[str, Runnable]:
    """The model on every build there is: all of this machine, and those of AArch64 where the tools are."""
    found: dict[str, Runnable] = {
        name: NativeModel(microcode, weights, name, library=path) for name, path in libraries().items()
    }
    if available():
        found |= {f"AArch64, {name}": Emulated(microcode, weights, core) for name, core in CORES.items()}
    return found
