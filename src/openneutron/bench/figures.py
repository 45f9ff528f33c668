"""All figures of one model, from PyTorch or LiteRT to the simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from openneutron.bench.host import HostTimes, time_host
from openneutron.compiler.compile import compile_graph
from openneutron.environment.stopwatch import Seconds, record
from openneutron.litert.file import read
from openneutron.options import AIMS, CompileOptions
from openneutron.package.program import CompiledProgram
from openneutron.pipeline import compile_litert, compile_model
from openneutron.quantize.plan import DEFAULT
from openneutron.targets.table import find_target


@dataclass(frozen=True)
class Memory:
    """What a program needs when compiled for one aim; cycles are an estimate."""

    scratch_bytes: int  # beyond inputs and outputs
    reserve_bytes: int  # with them
    cycles_estimated: int
    calls: int


@dataclass(frozen=True)
class Figures:
    """One row of the table: a model's delegates, summed up."""

    model: str
    partitions: int
    cpu_nodes: int
    weights_bytes: int
    performance: Memory
    size: Memory
    host: HostTimes | None
    compile_seconds: dict[str, float]  # CPU seconds by stage
    own_seconds: float  # of everything but torch.export and torchao

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


def measure_model(
    name: str,
    module: Any,
    inputs: tuple[Any, ...],
    calibration: Iterable[Any] | None,
    options: CompileOptions,
    quick: bool = False,
    accuracy: str = DEFAULT,
) -> Figures:
    """Compile a PyTorch model (quantized with the calibration inputs, if there are any), and measure."""
    with record() as seconds:
        program = compile_model(module, inputs, calibration=calibration, options=options, accuracy=accuracy)
    return _measured(name, program, options, seconds, quick)


def measure_litert(name: str, data: bytes, options: CompileOptions, quick: bool = False) -> Figures:
    """Compile a LiteRT model, and measure."""
    with record() as seconds:
        program = compile_litert(data, options, name)
    return _measured(name, program, options, seconds, quick)


def _measured(
    name: str, program: CompiledProgram, options: CompileOptions, seconds: Seconds, quick: bool
) -> Figures:
    target = find_target(options.config)
    sums = {aim: [0, 0, 0, 0] for aim in AIMS}
    alone = len(program.partitions) == 1  # several keep their inputs
    host: HostTimes | None = None
    weights = 0
    for partition in program.partitions:
        graph = read(partition.litert)
        for aim, sum_of in sums.items():
            way = dataclasses.replace(options, optimise=aim, keep_inputs=options.keep_inputs or not alone)
            compiled = compile_graph(graph, target, way)
            sum_of[0] = max(
                sum_of[0], compiled.beyond_io_bytes
            )  # delegates run one after the other and share
            sum_of[1] = max(sum_of[1], compiled.reserve_bytes)
            sum_of[2] += compiled.cycles
            sum_of[3] += len(compiled.program.calls)
            if aim == "performance":
                weights += len(compiled.weights)
                times = time_host(graph, partition.litert, compiled.microcode, compiled.weights, quick)
                host = times if host is None else host + times
    return Figures(
        name,
        len(program.partitions),
        len(program.rejected),
        weights,
        Memory(*sums["performance"]),
        Memory(*sums["size"]),
        host,
        {stage: round(s, 3) for stage, s in seconds.spent.items()},
        round(seconds.own, 3),
    )
