"""The error of every layer: float against quantized PyTorch against the simulator.

The float values are those of the model with its observers in place, which change nothing; the quantized ones
are taken after each quantize step. The simulator's come from the same LiteRT graphs the program was made of,
compiled so that every layer is an output: kernels are bit-exact, so the fused program computes the same.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from openneutron.compiled import CompiledProgram
from openneutron.compiler.compile import compile_graph
from openneutron.fx import op_name
from openneutron.litert.ir import Graph, Tensor
from openneutron.options import CompileOptions
from openneutron.package.backend import Partition
from openneutron.passes import BEFORE_PREPARE, PTQ, run_passes
from openneutron.pipeline import Inputs, compile_model, export_model
from openneutron.quantize.quantizer import NeutronQuantizer
from openneutron.run.native import NativeModel
from openneutron.target import NeutronTargetSpec

Values = dict[str, np.ndarray]  # by the node's name in the quantized graph


@dataclass(frozen=True)
class LayerError:
    """How far a layer's result is from the float one, and the simulator's from the quantized one."""

    layer: str
    op: str
    sqnr_db: float  # quantized against float; larger is better
    max_error: float
    cosine: float
    simulator_sqnr_db: float | None  # None: the layer runs on the CPU
    simulator_lsb: (
        int | None
    )  # the largest difference of simulator and quantized PyTorch, in steps of the scale

    def as_dict(self) -> dict[str, Any]:
        """For reports; JSON has no infinity, so that an error of zero is null."""
        return {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in asdict(self).items()}


def compare_layers(
    module: torch.nn.Module | ExportedProgram,
    samples: Sequence[Inputs],
    calibration: Iterable[Inputs],
    *,
    options: CompileOptions | None = None,
    per_channel: bool = False,
    progress: Callable[[float], None] = lambda part: None,
) -> list[LayerError]:
    """The error of every quantized layer over these samples, the worst first."""
    options = options or CompileOptions()
    quantizer = NeutronQuantizer(NeutronTargetSpec(options.config), per_channel=per_channel)
    exported = export_model(module, samples[0]).module(check_guards=False)
    prepared = prepare_pt2e(run_passes(exported, BEFORE_PREPARE, PTQ), quantizer)
    with torch.no_grad():
        for inputs in calibration:
            prepared(*inputs)
    float_module = copy.deepcopy(prepared)
    quantized = convert_pt2e(prepared)
    program = compile_model(quantized, samples[0], options=options)
    simulator = _Simulator(program)

    sums: dict[str, _Sums] = {}
    for done, inputs in enumerate(samples, 1):
        with torch.no_grad():
            exact = _Recorder(float_module).record(inputs)
            recorder = _QuantizedRecorder(quantized)
            rounded = recorder.record(inputs)
            simulated = simulator.record(inputs)
        for name in rounded.keys() & exact.keys():
            total = sums.setdefault(name, _Sums(recorder.ops[name], recorder.scales[name]))
            total.add(exact[name], rounded[name], simulated.get(name))
        progress(done / len(samples))
    order = {n.name: i for i, n in enumerate(quantized.graph.nodes)}
    rows = [sums[name].error(name) for name in sorted(sums, key=lambda n: order[n])]
    return sorted(rows, key=lambda row: row.sqnr_db)


class _Sums:
    """Powers of signal and error, added up over samples."""

    def __init__(self, op: str, scale: float):
        self.op, self.scale = op, scale
        self.signal = self.noise = self.rounded = self.product = self.simulator_noise = 0.0
        self.worst = self.simulator_worst = 0.0
        self.simulated = False

    def add(self, exact: np.ndarray, rounded: np.ndarray, simulated: np.ndarray | None) -> None:
        x, y = exact.astype(np.float64).ravel(), rounded.astype(np.float64).ravel()
        self.signal += float(x @ x)
        self.rounded += float(y @ y)
        self.product += float(x @ y)
        self.noise += float(((x - y) ** 2).sum())
        self.worst = max(self.worst, float(np.abs(x - y).max(initial=0)))
        if simulated is not None:
            z = simulated.astype(np.float64).ravel()
            self.simulated = True
            self.simulator_noise += float(((x - z) ** 2).sum())
            self.simulator_worst = max(self.simulator_worst, float(np.abs(y - z).max(initial=0)))

    def error(self, name: str) -> LayerError:
        norm = math.sqrt(self.signal * self.rounded)
        return LayerError(
            layer=name,
            op=self.op,
            sqnr_db=_decibel(self.signal, self.noise),
            max_error=self.worst,
            cosine=self.product / norm if norm else 1.0,
            simulator_sqnr_db=_decibel(self.signal, self.simulator_noise) if self.simulated else None,
            simulator_lsb=round(self.simulator_worst / self.scale) if self.simulated else None,
        )


def _decibel(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


class _Recorder(Interpreter):
    """Runs a graph and keeps the result of every operator."""

    def record(self, inputs: Inputs) -> Values:
        self.values: Values = {}
        self.run(*inputs)
        return self.values

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function" and isinstance(result, torch.Tensor):
            self.values[n.name] = result.detach().clone().numpy()
        return result


class _QuantizedRecorder(_Recorder):
    """Keeps what each operator's result is after its quantize step."""

    def record(self, inputs: Inputs) -> Values:
        self.ops: dict[str, str] = {}
        self.scales: dict[str, float] = {}
        self.quantized: Values = {}
        super().record(inputs)
        return self.quantized

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if op_name(n) == "quantized_decomposed.quantize_per_tensor.default" and isinstance(n.args[0], Node):
            source = n.args[0]
            if source.op == "call_function" and "quantize" not in source.name:
                scale, zero_point = n.args[1], n.args[2]
                assert isinstance(scale, float) and isinstance(zero_point, int)
                self.quantized[source.name] = (result.numpy().astype(np.int64) - zero_point) * scale
                self.ops[source.name] = op_name(source)
                self.scales[source.name] = scale
        return result


class _Simulator:
    """Runs a compiled program with every delegate on the C runtime, keeping each layer."""

    def __init__(self, program: CompiledProgram):
        self._module = program.edge.graph_module
        self._delegates = {id(p): _Delegate(p, program) for p in program.partitions}
        self._values: Values = {}

    def record(self, inputs: Inputs) -> Values:
        self._values = {}
        outer = self

        class Runner(Interpreter):
            def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
                if target is executorch_call_delegate:
                    lowered, *arguments = args
                    return outer._call(lowered, arguments)
                return super().call_function(target, args, kwargs)

        Runner(self._module).run(*inputs)
        return self._values

    def _call(self, lowered: LoweredBackendModule, arguments: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        delegate = self._delegates[id(lowered.meta["_delegate_info_meta"])]
        names = source_names(lowered.original_module.graph_module)
        outputs, layers = delegate.run([a.contiguous().numpy() for a in arguments])
        for edge_name, value in layers.items():
            for name in names.get(edge_name, ()):
                self._values.setdefault(name, value)
        return tuple(torch.from_numpy(o) for o in outputs)


class _Delegate:
    """One partition, compiled so that every operator's result comes out."""

    def __init__(self, partition: Partition, program: CompiledProgram):
        graph = partition.lowered.naive
        self._outputs = len(graph.outputs)
        # The last operator that came from a node makes its result in PyTorch's layout.
        ends: dict[str, Tensor] = {}
        for op in graph.ops:
            if op.origin and op.outputs[0].quant is not None:
                ends[op.origin[-1]] = op.outputs[0]
        self._layers = list(ends.items())
        every = Graph(list(graph.inputs), [*graph.outputs, *ends.values()], list(graph.ops))
        # Everything is alive to the end, so the limit of the target's SRAM does not apply.
        options = replace(program.options, sram_bytes=1 << 31, fetch_constants_to_sram=False)
        compiled = compile_graph(every, program.target, options)
        self._native = NativeModel(compiled.microcode, compiled.weights, "compare")

    def run(self, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], Values]:
        results = self._native.run(inputs)
        layers = {}
        for (name, tensor), array in zip(self._layers, results[self._outputs :], strict=True):
            assert tensor.quant is not None
            layers[name] = (array.astype(np.int64) - tensor.quant.zero_point[0]) * tensor.quant.scale[0]
        return results[: self._outputs], layers


def source_names(module: GraphModule) -> dict[str, list[str]]:
    """For each node of an Edge graph, the names of the nodes it was in earlier graphs."""
    found: dict[str, list[str]] = {}
    for node in module.graph.nodes:
        pending = list(node.meta.get("from_node", ()))
        names = found.setdefault(node.name, [])
        while pending:
            source = pending.pop()
            names.append(source.name)
            pending += source.from_node
    return found
