"""Running a firmware under QEMU, and comparing what it computes with the host's simulator.

QEMU counts instructions: with `-icount shift=0` each takes one nanosecond of its clock, which the firmware
reads from a timer. They are instructions, not cycles: QEMU does not know how long a Cortex-M takes for each.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from openneutron.diagnostics import fail
from openneutron.firmware.build import Firmware
from openneutron.firmware.cores import Core
from openneutron.firmware.program import FirmwareDelegate, FirmwareProgram
from openneutron.firmware.toolchain import find_tool
from openneutron.run.native import NativeModel

_KERNEL = re.compile(r"^kernel (\d+) (\w+) (\d+) (\d+)$", re.MULTILINE)
_STACK = re.compile(r"^stack (\d+)$", re.MULTILINE)
_PROBLEM = re.compile(r"^(?:error|fault|log) .*$", re.MULTILINE)
_PR_SET_PDEATHSIG = 1
Arrays = list[np.ndarray]


@dataclass(frozen=True)
class KernelCount:
    """What one kernel of one delegate took."""

    delegate: int
    kernel: str
    calls: int
    instructions: int


@dataclass(frozen=True)
class FirmwareRun:
    """What a run under QEMU yielded."""

    outputs: list[Arrays] = field(repr=False)  # of every delegate
    counts: tuple[KernelCount, ...]
    stack_bytes: int

    @property
    def instructions(self) -> int:
        """Of all kernels."""
        return sum(count.instructions for count in self.counts)


def end_with_parent() -> Callable[[], None] | None:
    """What a process of ours calls first, so that it never outlives this one, whatever ends it (on Linux)."""
    if sys.platform != "linux":
        return None
    control, parent = ctypes.CDLL(None).prctl, os.getpid()

    def call() -> None:
        control(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has gone meanwhile
            os._exit(1)

    return call


def emulate(core: Core, image: Path, folder: Path, timeout: float, hint: str = "") -> str:
    """What an image printed until it said `done`; anything else is a diagnostic."""
    emulator = find_tool("qemu-system-arm")
    (folder / "outputs.bin").unlink(missing_ok=True)
    try:
        done = subprocess.run(
            [emulator, *core.machine, "-kernel", image.name],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            preexec_fn=end_with_parent(),
        )
    except subprocess.TimeoutExpired:
        fail("ON704", image.name, f"did not end within {timeout:g} s", "Try a smaller model.")
    report = done.stdout + done.stderr
    if done.returncode != 0 or "\ndone\n" not in report:
        lines = _PROBLEM.findall(report)
        fail("ON704", image.name, "; ".join(lines) or f"the emulator said: {report.strip()[-300:]}", hint)
    return report


def run_firmware(firmware: Firmware, inputs: Sequence[Arrays], timeout: float = 600.0) -> FirmwareRun:
    """Run an image on the inputs of every delegate."""
    folder, tick = firmware.folder, firmware.core.tick
    (folder / "inputs.bin").write_bytes(b"".join(a.tobytes() for arrays in inputs for a in arrays))
    report = emulate(firmware.core, firmware.image, folder, timeout,
                     "Link the kernel, if one is missing: openneutron merge-kernels.")  # fmt: skip
    counts = tuple(
        KernelCount(int(d), kernel, int(calls), round(int(ticks) * tick))
        for d, kernel, calls, ticks in _KERNEL.findall(report)
    )
    stack = _STACK.search(report)
    raw = (folder / "outputs.bin").read_bytes()
    return FirmwareRun(_outputs(firmware.program, raw), counts, int(stack[1]) if stack else 0)


def run_firmware_sequence(
    firmware: Firmware, frames: Sequence[Sequence[Arrays]], timeout: float = 600.0
) -> list[list[Arrays]]:
    """Run an image on the inputs of every delegate for one frame after the other; the outputs of each."""
    folder = firmware.folder
    raw = (a.tobytes() for inputs in frames for arrays in inputs for a in arrays)
    (folder / "inputs.bin").write_bytes(b"".join(raw))
    emulate(firmware.core, firmware.image, folder, timeout)
    data = (folder / "outputs.bin").read_bytes()
    each = len(data) // len(frames)
    return [_outputs(firmware.program, data[i * each : (i + 1) * each]) for i in range(len(frames))]


def run_host(program: FirmwareProgram, inputs: Sequence[Arrays]) -> list[Arrays]:
    """The host simulator's outputs for the same inputs."""
    return [
        NativeModel(d.microcode, d.weights, f"delegate {i}").run(inputs[i])
        for i, d in enumerate(program.delegates)
    ]


def compare(program: FirmwareProgram, target: Sequence[Arrays], host: Sequence[Arrays]) -> int:
    """How many bytes were compared; the first difference is a diagnostic."""
    total = 0
    for d, (ours, theirs) in enumerate(zip(target, host, strict=True)):
        for o, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            a, b = (np.frombuffer(x.tobytes(), np.uint8) for x in (one, two))
            if a.size != b.size or (a != b).any():
                wrong = int((a != b).sum()) if a.size == b.size else b.size
                where = f"{program.name}: delegate {d}, output {o}"
                fail("ON705", where, f"{wrong} of {b.size} bytes differ",
                     "Please report it with the program.")  # fmt: skip
            total += a.size
    return total


def random_inputs(program: FirmwareProgram, seed: int = 0) -> list[Arrays]:
    """Inputs of the right shapes and types for every delegate."""
    generator = np.random.default_rng(seed)
    return [[random_array(generator, shape, dtype) for shape, dtype in d.inputs] for d in program.delegates]


def given_inputs(program: FirmwareProgram, arrays: Sequence[np.ndarray]) -> list[Arrays]:
    """Arrays a user gave, in the order of the delegates and their inputs."""
    wanted = [(d, shape, dtype) for d in program.delegates for shape, dtype in d.inputs]
    listing = ", ".join(f"{dtype}{list(shape)}" for _, shape, dtype in wanted)
    hint = f"The delegates take, in order: {listing}."
    if len(arrays) != len(wanted):
        fail("ON514", program.name, f"{len(arrays)} inputs given, the delegates have {len(wanted)}", hint)
    result: dict[int, Arrays] = {id(d): [] for d in program.delegates}
    for i, (array, (delegate, shape, dtype)) in enumerate(zip(arrays, wanted, strict=True)):
        if array.shape != shape or array.dtype != dtype:
            fail("ON514", program.name, f"input {i} is {array.dtype}{list(array.shape)}", hint)
        result[id(delegate)].append(np.ascontiguousarray(array))
    return [result[id(d)] for d in program.delegates]


def _outputs(program: FirmwareProgram, raw: bytes) -> list[Arrays]:
    wanted = sum(_nbytes(shape, dtype) for d in program.delegates for shape, dtype in d.outputs)
    if len(raw) != wanted:
        fail("ON704", program.name, f"the firmware wrote {len(raw)} bytes of outputs, not {wanted}")
    at = 0

    def take(delegate: FirmwareDelegate) -> Arrays:
        nonlocal at
        arrays = []
        for shape, dtype in delegate.outputs:
            size = _nbytes(shape, dtype)
            arrays.append(np.frombuffer(raw[at : at + size], dtype).reshape(shape))
            at += size
        return arrays

    return [take(d) for d in program.delegates]


def _nbytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def random_array(generator: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Values of a type: floats normally distributed, integers as int8; wide ones, which may index, 0 or 1."""
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    if dtype.kind == "b" or dtype.itemsize >= 4:
        return generator.integers(0, 2, shape).astype(dtype)
    return generator.integers(-128 if dtype.kind == "i" else 0, 128, shape).astype(dtype)
