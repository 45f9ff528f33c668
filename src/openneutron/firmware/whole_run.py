"""Running a whole program under QEMU, and comparing what it computes with the host's run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from openneutron.board.arrays import Comparison, compare_arrays, from_memory, to_memory
from openneutron.diagnostics import fail
from openneutron.firmware.emulator import emulate, random_array
from openneutron.firmware.pools import WholePools
from openneutron.firmware.whole import WholeFirmware, WholeProgram, with_pools
from openneutron.package.pte import MethodInfo, TensorSpec, numpy_dtype, tensor_bytes

_LINE = re.compile(r"^(method|step|kernel|pools|stack) (.*)$", re.MULTILINE)
Arrays = list[np.ndarray]
Runs = dict[str, list[Arrays]]  # by method: the arrays of every run


@dataclass(frozen=True)
class StepCount:
    """What one instruction of a method took: an operator, or a delegate with its kernels."""

    method: str
    number: int
    operator: str  # or the backend's name
    instructions: int
    kernels: Mapping[str, int] = field(default_factory=dict)

    @property
    def border(self) -> int:
        """Of a delegate: what its kernels did not take, such as transposing inputs and outputs."""
        return self.instructions - sum(self.kernels.values()) if self.kernels else 0


@dataclass(frozen=True)
class WholeRun:
    """What a run under QEMU yielded."""

    outputs: Runs = field(repr=False)
    steps: tuple[StepCount, ...]
    pools: WholePools  # what was in use at most

    def instructions(self, method: str) -> int:
        """Of one inference."""
        return sum(step.instructions for step in self.steps if step.method == method)


def run_whole(firmware: WholeFirmware, inputs: Runs, timeout: float = 900.0) -> WholeRun:
    """Run an image on inputs for every method."""
    program, folder = firmware.program, firmware.folder
    raw = b"".join(
        len(inputs[name]).to_bytes(4, "little")
        + b"".join(to_memory(a, s) for run in inputs[name] for a, s in zip(run, method.inputs, strict=True))
        for name, method in program.info.methods.items()
    )
    (folder / "inputs.bin").write_bytes(raw)
    report = emulate(firmware.core, firmware.image, folder, timeout)
    steps, used = _read_report(report, program, firmware.core.tick)
    counts = {name: len(runs) for name, runs in inputs.items()}
    outputs = _outputs(program, (folder / "outputs.bin").read_bytes(), counts)
    return WholeRun(outputs, steps, used)


def measure(firmware: WholeFirmware, sram_bytes: int | None = None) -> WholeFirmware:
    """The same image with pools of exactly the sizes that a run on random inputs was seen to need."""
    return relinked(firmware, run_whole(firmware, random_runs(firmware.program, 1)).pools, sram_bytes)


def relinked(firmware: WholeFirmware, used: WholePools, sram_bytes: int | None = None) -> WholeFirmware:
    """The same image with pools as large as a run was seen to need."""
    sram_bytes = sram_bytes or firmware.core.sram_bytes
    lookup = firmware.pools.lookup
    temporary = max(used.temporary, lookup)
    stack = -(-used.stack // 8) * 8
    pools = replace(used, temporary=temporary, lookup=lookup, stack=stack)
    need = pools.total + sum(part.data + part.bss for part in firmware.size.parts)
    if need > sram_bytes:
        fail("ON703", firmware.program.name, f"needs {need:,} bytes of SRAM; there are {sram_bytes:,}",
             "Compile it with a smaller --sram, or give the firmware more.")  # fmt: skip
    return with_pools(firmware, pools)


def random_runs(program: WholeProgram, count: int, seed: int = 0) -> Runs:
    """Inputs of the right shapes and types for every method; integers from 0 or 1, which index anything."""
    generator = np.random.default_rng(seed)
    return {
        name: [[_random(generator, spec) for spec in method.inputs] for _ in range(count)]
        for name, method in program.info.methods.items()
    }


def given_runs(program: WholeProgram, arrays: Sequence[np.ndarray]) -> Runs:
    """Arrays a user gave, in the order of the methods and their inputs."""
    wanted = [(name, spec) for name, m in program.info.methods.items() for spec in m.inputs]
    hint = "The program takes, in order: " + ", ".join(str(spec) for _, spec in wanted) + "."
    if len(arrays) != len(wanted):
        fail("ON514", program.name, f"{len(arrays)} inputs given, the program has {len(wanted)}", hint)
    result: Runs = {name: [[]] for name in program.info.methods}
    for i, (array, (name, spec)) in enumerate(zip(arrays, wanted, strict=True)):
        if spec is not None and (array.shape != spec.shape or array.dtype != numpy_dtype(spec)):
            fail("ON514", program.name, f"input {i} is {array.dtype}{list(array.shape)}", hint)
        result[name][0].append(array)
    return result


def host_runs(program: WholeProgram, inputs: Runs) -> Runs:
    """The host's outputs for the same inputs, in ExecuTorch's runtime too."""
    from openneutron.run.program import load_program

    loaded = load_program(program.data)
    return {name: [loaded.run(run, name) for run in runs] for name, runs in inputs.items()}


def compare_runs(program: WholeProgram, target: Runs, host: Runs) -> Comparison:
    """Compare every output: integers must be equal, floats within a millionth; else it is a diagnostic."""
    comparison = Comparison()
    for name in program.info.methods:
        for n, (ours, theirs) in enumerate(zip(target[name], host[name], strict=True)):
            for o, (one, two) in enumerate(zip(ours, theirs, strict=True)):
                where = f"{program.name}: {name}, run {n}, output {o}"
                hint = "Please report it with the program."
                comparison += compare_arrays(np.asarray(one), np.asarray(two), where, "ON705", hint)
    return comparison


def _read_report(report: str, program: WholeProgram, tick: float) -> tuple[tuple[StepCount, ...], WholePools]:
    method, steps, kernels, used = "", [], dict[str, int](), WholePools()
    names = {name: m.instructions for name, m in program.info.methods.items()}
    for what, rest in _LINE.findall(report):
        words = rest.split()
        if what == "method":
            method = rest
        elif what == "kernel":  # comes before the step it belongs to
            kernels[words[1]] = kernels.get(words[1], 0) + round(int(words[2]) * tick)
        elif what == "step":
            number, ticks = int(words[0]), int(words[1])
            steps.append(StepCount(method, number, names[method][number], round(ticks * tick), kernels))
            kernels = {}
        elif what == "pools":
            used = WholePools(*(int(word) for word in words))
        else:
            used = replace(used, stack=int(words[0]))
    return tuple(steps), used


def _outputs(program: WholeProgram, raw: bytes, counts: Mapping[str, int]) -> Runs:
    methods = program.info.methods
    wanted = sum(counts[n] * sum(tensor_bytes(s) for s in m.outputs) for n, m in methods.items())
    if len(raw) != wanted:
        fail("ON704", program.name, f"the firmware wrote {len(raw)} bytes of outputs, not {wanted}")
    at = 0

    def take(method: MethodInfo) -> Arrays:
        nonlocal at
        arrays = []
        for spec in method.outputs:
            size = tensor_bytes(spec)
            arrays.append(from_memory(raw[at : at + size], spec))
            at += size
        return arrays

    return {name: [take(method) for _ in range(counts[name])] for name, method in methods.items()}


def _random(generator: np.random.Generator, spec: TensorSpec | None) -> np.ndarray:
    dtype = numpy_dtype(spec) if spec is not None else np.dtype(np.int64)
    if spec is None or dtype is None:
        return np.zeros((), np.int64)
    return random_array(generator, spec.shape, dtype)
