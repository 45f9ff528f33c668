"""Running a LiteRT model straight from its bytes: the open compiler, then the C runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.emit.result import CompiledGraph
from openneutron.litert.file import read
from openneutron.options import CompileOptions
from openneutron.package.pte import read_program
from openneutron.run.indices import port_limits
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target


class LiteRTProgram:
    """A compiled LiteRT model, ready to run; from one thread at a time."""

    def __init__(self, compiled: CompiledGraph, where: str, threads: int | None = None, most_work: int = 0):
        self.compiled = compiled
        self._native = NativeModel(
            compiled.microcode, compiled.weights, where, threads=threads, most_work=most_work
        )

    @property
    def inputs(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Shape and type of every input."""
        return self._native.inputs

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for these inputs, in the model's order."""
        return self._native.run(inputs)

    def reset(self) -> None:
        """Let what the model remembers start from its initial values, as after loading."""
        self._native.reset()

    def index_limits(self) -> list[int | None]:
        """For each input that holds indices, one more than the largest; None for the others."""
        limits = port_limits(self.compiled.microcode)
        return [limits.get(i) for i in range(len(self.inputs))]

    def run_batch(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of many samples, the first dimension of every input and output, in one call."""
        return self._native.run_batch(inputs)


def load_litert(
    source: Path | str | bytes,
    options: CompileOptions | None = None,
    threads: int | None = None,
    most_work: int = 0,
) -> LiteRTProgram:
    """Compile a .tflite file (or its bytes) and make it ready to run on this machine."""
    data, where = read_program(source)
    options = options or CompileOptions()
    graph = read(data, where)
    return LiteRTProgram(
        compile_graph(graph, find_target(options.config), options), where, threads, most_work
    )
