"""Published times beside estimated ones: the table, fitting, and leaving one out.

Two parameters of the NPU are fitted, `call_cycles` and `sram_bytes_per_cycle`: the least largest error over a
grid. Those of the CPU are counted, never fitted, so that every published time of it is a test.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from openneutron.bench.networks import NETWORKS
from openneutron.compiler.compile import compile_graph
from openneutron.compiler.emit.result import CompiledGraph
from openneutron.compiler.microcode.cost import costs_of, total_cycles
from openneutron.compiler.microcode.header import write_or_check
from openneutron.diagnostics import fail, nearest
from openneutron.estimate.cpu_cost import Operator, cpu_cycles
from openneutron.files import read_file, write_atomically
from openneutron.litert.file import read, write
from openneutron.litert.ir import Builtin, Graph, Op
from openneutron.models.zoo import ZOO, find_model
from openneutron.options import CompileOptions
from openneutron.targets.chip import Published, Target
from openneutron.targets.table import TARGETS, keep_measured, read_measured

# What computes an operator of LiteRT on the CPU in int8; others are counted by their elements.
_CORTEX_M = {
    Builtin.CONV_2D: "quantized_conv2d",
    Builtin.DEPTHWISE_CONV_2D: "quantized_depthwise_conv2d",
    Builtin.FULLY_CONNECTED: "quantized_linear",
    Builtin.AVERAGE_POOL_2D: "quantized_avg_pool2d",
    Builtin.MAX_POOL_2D: "quantized_max_pool2d",
    Builtin.TRANSPOSE_CONV: "quantized_transpose_conv2d",
    Builtin.BATCH_MATMUL: "quantized_batch_matmul",
    Builtin.ADD: "quantized_add",
    Builtin.MUL: "quantized_mul",
    Builtin.SOFTMAX: "softmax",
    Builtin.TRANSPOSE: "transpose",
    Builtin.RESHAPE: "view",
}
STORED = "src/openneutron/report/published.json"
STORED_FILE = Path(__file__).resolve().parents[1] / "report/published.json"
FLOAT_PORTS = "with float inputs and outputs"
NO_SOFTMAX = "without its softmax"
_CALLS = range(0, 2001, 50)
_BYTES = [n / 4 for n in range(4, 33)]


@dataclass(frozen=True)
class Row:
    """A published time and what is estimated for it."""

    target: str
    published: Published
    cycles: int

    @property
    def published_cycles(self) -> float:
        """The time in cycles of the chip's NPU."""
        return self.published.microseconds * TARGETS[self.target].frequency_hz / 1e6

    @property
    def error(self) -> float:
        """The estimate's relative error."""
        return self.cycles / self.published_cycles - 1

    @property
    def key(self) -> str:
        """What the estimate is of."""
        p = self.published
        where = "weights in flash" if p.weights_in_flash else ""
        return "; ".join(part for part in (self.target, p.on, p.network, p.layer, where) if part)


def check_network(name: str, place: str = "network") -> None:
    """Whether there is such a network: of the zoo, or a .tflite file."""
    if not (name.endswith(".tflite") or name in ZOO or name in NETWORKS):
        hint = f"{nearest(name, [*ZOO, *NETWORKS])}, or a file: openneutron convert MODEL -o FILE.tflite"
        fail("ON106", place, f"there is no network '{name}'", hint)


def find_network(name: str) -> Graph:
    """A network by its name, or a .tflite file; those of the zoo that are not here are quantized first."""
    check_network(name)
    if name.endswith(".tflite"):
        return read(read_file(Path(name)), name)
    return read(write(NETWORKS[name]())) if name in NETWORKS else zoo_graph(name)


@cache
def zoo_graph(name: str) -> Graph:
    """A network of the zoo as an int8 LiteRT graph, quantized on random inputs: shapes alone count."""
    from openneutron.pipeline import convert_model

    entry = find_model(name)
    samples = [entry.example_inputs(seed) for seed in range(2)]
    module = entry.build()
    data = convert_model(module, samples[0], calibration=samples, accuracy="fast", channels_last_io=True)
    return read(data, name)


@cache
def _compiled(network: str, target: Target, in_flash: bool) -> CompiledGraph:
    options = CompileOptions(config=target.name, fetch_constants_to_sram=in_flash)
    return compile_graph(find_network(network), target, options)


def estimate(published: Published, target: Target) -> int:
    """The estimated cycles of what was measured."""
    if published.on == "cpu":
        return cpu_estimate(find_network(published.network), target, published.layer)
    compiled = _compiled(published.network, TARGETS[target.name], published.weights_in_flash)
    calls = compiled.program.calls
    cycles = total_cycles(calls, target)
    if published.layer == NO_SOFTMAX:
        costs = zip(costs_of(calls, target), calls, strict=True)
        cycles -= sum(cost.cycles for cost, call in costs if call.kernel.name == "SOFTMAX")
    elif published.layer == FLOAT_PORTS:  # ExecuTorch's own kernels, as they were linked then
        graph = find_network(published.network)
        kinds = (("quantize", graph.inputs), ("dequantize", graph.outputs))
        ports = [(f"quantized_decomposed::{kind}_per_tensor.out", t.shape) for kind, ts in kinds for t in ts]
        cycles += sum(cpu_cycles(Operator(n, (s,), s), target, portable=True) for n, s in ports)
    return cycles


def cpu_estimate(graph: Graph, target: Target, layer: str = "") -> int:
    """Estimated cycles of a network on the CPU alone with CMSIS-NN, or of a layer: `CONV_2D 0`, the first."""
    seen: dict[str, int] = {}
    cycles = {}
    for op in graph.ops:
        number = seen[op.kind.name] = seen.get(op.kind.name, -1) + 1
        cycles[f"{op.kind.name} {number}"] = cpu_cycles(_operator(op), target, portable=True)
    return cycles[layer] if layer else sum(cycles.values())


def _operator(op: Op) -> Operator:
    name = f"cortex_m::{_CORTEX_M.get(op.kind, op.kind.name.lower())}.out"
    window = int(op.options.get("filterHeight", 1)) * int(op.options.get("filterWidth", 1))
    inputs = tuple(t.shape for t in op.inputs if t is not None)
    return Operator(name, inputs, op.outputs[0].shape, window=window, is_float=False)


def table() -> list[Row]:
    """Every published time of every chip with its estimate."""
    return [Row(t.name, p, estimate(p, t)) for t in TARGETS.values() for p in t.published]


@dataclass(frozen=True)
class Fit:
    """Fitted parameters, and the largest error over what they were fitted to."""

    call_cycles: int
    sram_bytes_per_cycle: float
    worst: float

    def of(self, target: Target) -> Target:
        """A chip with these parameters."""
        return replace(target, cost=replace(target.cost, **self.parameters))

    @property
    def at_the_edge(self) -> bool:
        """Whether a parameter is the largest or the least of those tried: there may be better ones beyond."""
        return self.call_cycles in (_CALLS[0], _CALLS[-1]) or self.sram_bytes_per_cycle in (
            _BYTES[0],
            _BYTES[-1],
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """They, and what follows from them: a step of a cascade stays half a call."""
        rate = self.sram_bytes_per_cycle
        calls = self.call_cycles
        return {"call_cycles": calls, "step_cycles": calls // 2, "sram_bytes_per_cycle": rate}


def fit(rows: Sequence[Published], target: Target, progress: Callable[[], None] = lambda: None) -> Fit:
    """The two parameters with the least largest error over these times of a chip's NPU."""
    best: Fit | None = None
    hertz = target.frequency_hz / 1e6
    for calls, rate in product(_CALLS, _BYTES):
        trial = Fit(calls, rate, 0.0)
        chip = trial.of(target)
        worst = max(abs(estimate(p, chip) / (p.microseconds * hertz) - 1) for p in rows)
        if best is None or worst < best.worst:
            best = replace(trial, worst=worst)
        progress()
    assert best is not None
    return best


@dataclass(frozen=True)
class Refit:
    """What new measurements do to the estimate of a chip: errors before, after, and with each left out."""

    target: Target
    rows: tuple[Published, ...]  # what was fitted to before, then the new ones
    new: tuple[Published, ...]
    fitted: Fit
    before: tuple[float, ...]
    after: tuple[float, ...]
    left_out: tuple[float | None, ...]  # None: there is nothing left to fit to


def refit(target: Target, new: Sequence[Published]) -> Refit:
    """Fit the NPU's parameters to what they were fitted to and to new measurements; the CPU's stay."""
    new = tuple(dict.fromkeys(new))
    again = [replace(p, fitted=True) for p in new]
    rows = (*(p for p in target.published if p.fitted and p not in again), *new)
    hertz = target.frequency_hz / 1e6

    def error(p: Published, chip: Target) -> float:
        return estimate(p, chip) / (p.microseconds * hertz) - 1

    usable = [p for p in rows if p.on == "npu"]
    cost = target.cost
    fitted = fit(usable, target) if usable else Fit(cost.call_cycles, cost.sram_bytes_per_cycle, 0.0)
    left_out = []
    for row in rows:
        rest = [p for p in usable if p is not row]
        fits = row in usable and len(rest) > 1
        left_out.append(error(row, fit(rest, target).of(target)) if fits else None)
    chip = fitted.of(target)
    return Refit(target, rows, new, fitted, tuple(error(p, target) for p in rows),
                 tuple(error(p, chip) for p in rows), tuple(left_out))  # fmt: skip


def add_measured(fits: Sequence[Refit], use_fit: bool = False) -> None:
    """Keep new measurements with the chips, and what is estimated for them with the reports.

    With `use_fit` the fitted parameters are the chips' from now on, and these times check nothing any more.
    """
    data = read_measured()
    for entry in fits:
        kept = data.setdefault(entry.target.name, {"times": []})
        new = [asdict(replace(p, fitted=use_fit and p.on == "npu")) for p in entry.new]
        same = [{**row, "fitted": False} for row in new]  # given before, when nothing was fitted to them
        kept["times"] = [r for r in kept["times"] if {**r, "fitted": False} not in same] + new
        if use_fit:
            kept["cost"] = entry.fitted.parameters
    keep_measured(data)
    write_atomically(STORED_FILE, stored_text().encode())


def macs_of(graph: Graph) -> int:
    """Multiply-accumulates of a network's layers."""
    return sum(_operator(op).macs for op in graph.ops)


def stored_text() -> str:
    """The table as reports read it."""
    rows = [
        {
            "target": row.target,
            "network": row.published.network,
            "layer": row.published.layer,
            "on": row.published.on,
            "weights_in_flash": row.published.weights_in_flash,
            "microseconds": row.published.microseconds,
            "published_cycles": round(row.published_cycles),
            "estimated_cycles": row.cycles,
            "fitted": row.published.fitted,
            "set_aside": row.published.set_aside,
            "source": row.published.source,
        }
        for row in table()
    ]
    return json.dumps(rows, indent=1) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(sys.argv[1:], {STORED: stored_text()}, "python -m openneutron.bench.published"))
