"""The error of every layer: float against quantized PyTorch against the simulator.

The float values are those of the model with its observers in place, which change nothing; the quantized ones
are taken after each quantize step. The simulator's come from the same LiteRT graphs the program was made of,
compiled so that every layer is an output: kernels are bit-exact, so the fused program computes the same.

A layer's error has two parts: what it inherits and what it adds. Its own part is measured by computing it
from exact inputs, and is divided further: quantized weights, and rounding and clipping of the result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Interpreter, Node
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from openneutron import ops
from openneutron.accuracy.layer_error import Evidence, LayerError
from openneutron.accuracy.outputs import OutputError, output_errors
from openneutron.accuracy.suggest import suggest
from openneutron.accuracy.verify import verified
from openneutron.accuracy.weight_trial import WeightTrial
from openneutron.compiler.compile import compile_graph
from openneutron.converter.protocol import Partition
from openneutron.estimate.cpu import cpu_nodes
from openneutron.fx import op_name
from openneutron.litert.ir import Graph, Tensor
from openneutron.package.program import CompiledProgram, delegates, inside, package_program
from openneutron.passes import BEFORE_PREPARE, PTQ, run_passes
from openneutron.quantize.annotation.sharing import NextState
from openneutron.quantize.convert import convert_calibrated
from openneutron.quantize.export import Inputs, export_model
from openneutron.quantize.plan import BALANCED, BEST
from openneutron.quantize.quantizer import NeutronQuantizer
from openneutron.quantize.refine import Refined, calibrate
from openneutron.quantize.samples import EXAMPLES, spread_over
from openneutron.quantize.stateful import as_sequences, frames_of, with_state_ports
from openneutron.recipes.parts import lower_program
from openneutron.recipes.quantize_options import QuantizeOptions
from openneutron.recipes.recipe import NEUTRON
from openneutron.run.native import NativeModel
from openneutron.targets.spec import NeutronTargetSpec

Values = dict[str, np.ndarray]  # by the node's name in the quantized graph
_MOST_LAYERS = 100  # made outputs at once: a microcode has at most 256
_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"


@dataclass(frozen=True)
class Comparison:
    """Layers, the worst first; the model's outputs, each by itself; and what was done when quantizing."""

    layers: list[LayerError]
    outputs: list[OutputError]
    refined: Refined


def compare_model(
    module: torch.nn.Module | ExportedProgram,
    samples: Sequence[Inputs],
    calibration: Iterable[Inputs],
    how: QuantizeOptions,
    progress: Callable[[float], None] = lambda part: None,
) -> Comparison:
    """The error of every quantized layer and of every output over these samples."""
    exported_float = export_model(module, frames_of(samples[0])[0])
    states: dict[str, NextState] = {}
    if (stateful := with_state_ports(exported_float)) is not None:  # each frame with the state it meets
        module, states = stateful.program, stateful.pairs
        samples, calibration = (list(stateful.samples(as_sequences(s))) for s in (samples, calibration))
    float_module, quantized, refined = quantize_both(module, samples[0], calibration, how, states)
    exported = {"forward": export_model(quantized, samples[0])}
    program = package_program(*lower_program(exported, NEUTRON, how.compiling))
    program = verified(program, exported, {"forward": [[samples[0]]]})
    trial = None if how.per_channel else WeightTrial(float_module)
    found = _evidence(float_module, quantized, _Simulator(program, quantized), trial, samples, progress)
    edges, sources = edge_names(program, quantized), _sources(quantized, found)
    for evidence in found.values():
        evidence.edge = edges.get(evidence.layer)
        spec = ops.find(evidence.op)
        evidence.moves = spec is not None and spec.keeps_values and len(sources[evidence.layer]) == 1
        evidence.channel_spread = None if trial is None else trial.spread(evidence.layer)
    ordered = [n.name for n in quantized.graph.nodes if n.name in found]
    rows = suggest([found[name].error() for name in ordered], sources, how.plan.name)
    assert refined.original is not None
    return Comparison(rows, output_errors(refined.original, quantized, samples), refined)


def _evidence(
    float_module: GraphModule,
    quantized: GraphModule,
    simulator: _Simulator,
    trial: WeightTrial | None,
    samples: Sequence[Inputs],
    progress: Callable[[float], None],
) -> dict[str, Evidence]:
    """What the samples show of every layer that the two models have in common."""
    found: dict[str, Evidence] = {}
    for done, inputs in enumerate(samples, 1):
        with torch.no_grad():
            exact = _Recorder(float_module).record(inputs)
            recorder = _QuantizedRecorder(quantized)
            rounded = recorder.record(inputs)
            own = _OwnRecorder(quantized, exact)
            own.record(inputs)
            simulated = simulator.record(inputs)
            for name in rounded.keys() & exact.keys():
                layer = found.setdefault(name, Evidence(name, recorder.ops[name], *recorder.parameters[name]))
                layer.add(exact[name], rounded[name], own.own[name], own.unrounded[name], simulated.get(name))
                if trial is not None:
                    layer.add_trial(exact[name], trial.run(name, exact, inputs))
        progress(done / len(samples))
    return found


def quantize_both(
    module: torch.nn.Module | ExportedProgram,
    example: Inputs,
    calibration: Iterable[Inputs],
    how: QuantizeOptions,
    states: Mapping[str, NextState] | None = None,
) -> tuple[GraphModule, GraphModule, Refined]:
    """The float model and the quantized one, a node with the same name in both; what was done for it."""
    calibration = list(calibration)
    quantizer = NeutronQuantizer(
        NeutronTargetSpec(how.compiling.config, converter=how.compiling.converter),
        per_channel=bool(how.per_channel),
        keep_float=how.keep_float,
        examples=spread_over(calibration, EXAMPLES),
        states=states,
    )
    exported = export_model(module, example).module(check_guards=False)
    prepared = prepare_pt2e(run_passes(exported, BEFORE_PREPARE, PTQ), quantizer)
    model, refined = calibrate(prepared, calibration, how.plan)
    assert refined.reference is not None
    reference = copy.deepcopy(refined.reference)
    same = refined.original is refined.reference
    refined.original = reference if same else copy.deepcopy(refined.original)
    return reference, convert_calibrated(model), refined


def try_suggestions(
    module: torch.nn.Module | ExportedProgram,
    samples: Sequence[Inputs],
    calibration: Sequence[Inputs],
    rows: Sequence[LayerError],
    count: int,
    how: QuantizeOptions,
    progress: Callable[[float], None] = lambda part: None,
) -> list[tuple[str, float]]:
    """The error of the worst output as it is, and quantized anew with up to `count` suggestions."""
    kinds = {row.suggestion.kind for row in rows if row.suggestion is not None}
    groups = [
        r.suggestion.layers or (r.layer,) for r in rows if r.suggestion and r.suggestion.kind == "float"
    ]
    trials = []
    if "per-channel" in kinds:
        trials.append(_Trial("--per-channel", replace(how, per_channel=True), calibration))
    if "calibration" in kinds:
        more = [*calibration, *samples]
        trials.append(_Trial("these samples among the calibration data", how, more))
    for group in dict.fromkeys(groups):
        kept = replace(how, keep_float=(*how.keep_float, *group))
        trials.append(_Trial(f"--keep-float {' '.join(group)}", kept, calibration))
    following = None if how.plan.thorough else BEST if how.plan.name == BALANCED else BALANCED
    if "qat" in kinds and following:
        trials.append(_Trial(f"--accuracy {following}", replace(how, accuracy=following), calibration))
    chosen = [_Trial("as it is", how, calibration), *trials[:count]]
    result = []
    for done, trial in enumerate(chosen, 1):
        _, quantized, refined = quantize_both(module, samples[0], trial.calibration, trial.how)
        assert refined.original is not None
        errors = output_errors(refined.original, quantized, samples)
        result.append((trial.name, min(error.sqnr_db for error in errors)))
        progress(done / len(chosen))
    return result


@dataclass(frozen=True)
class _Trial:
    name: str
    how: QuantizeOptions
    calibration: Sequence[Inputs]


def edge_names(program: CompiledProgram, quantized: GraphModule) -> dict[str, str]:
    """For each layer's name, the name of the Edge node that makes its result, on the NPU or the CPU."""
    found: dict[str, str] = {}
    modules = [inside(lowered).graph_module for lowered in delegates(program.edge.graph_module)]
    for module in (*modules, program.edge.graph_module):
        compute = {n.name for n in cpu_nodes(module)}
        for edge, names in source_names(module, quantized).items():
            for name in names:
                if edge in compute:
                    found[name] = edge  # of several nodes the last makes the result
    return found


def _sources(quantized: GraphModule, layers: Collection[str]) -> dict[str, set[str]]:
    """For each layer, the layers its inputs come from directly."""
    found: dict[Node, set[str]] = {}
    result: dict[str, set[str]] = {}
    for node in quantized.graph.nodes:
        found[node] = set().union(*(found[n] for n in node.all_input_nodes))
        if node.name in layers:
            result[node.name] = found[node]
            found[node] = {node.name}
    return result


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
        self.parameters: dict[str, tuple[float, int]] = {}  # scale and zero point
        self.quantized: Values = {}
        super().record(inputs)
        return self.quantized

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if (source := _quantized_layer(n)) is not None:
            scale, zero_point = n.args[1], n.args[2]
            assert isinstance(scale, float) and isinstance(zero_point, int)
            self.quantized[source.name] = (result.numpy().astype(np.int64) - zero_point) * scale
            self.ops[source.name] = op_name(source)
            self.parameters[source.name] = scale, zero_point
        return result


def _quantized_layer(n: Node) -> Node | None:
    """The operator whose result this node quantizes, if it does that."""
    source = n.args[0] if op_name(n) == _QUANTIZE else None
    if isinstance(source, Node) and source.op == "call_function" and "quantize" not in source.name:
        return source
    return None


class _OwnRecorder(Interpreter):
    """Computes each quantized layer from exact inputs: what comes out has the layer's own error only."""

    def __init__(self, module: GraphModule, exact: Values):
        super().__init__(module)
        self._exact = exact
        self._passed: set[Node] = set()
        self.own: Values = {}
        self.unrounded: Values = {}  # the same before the result is quantized

    def record(self, inputs: Inputs) -> None:
        """Fill `own` and `unrounded`."""
        self.run(*inputs)

    def run_node(self, n: Node) -> Any:
        source = _quantized_layer(n)
        if source is not None and source.name in self._exact:
            value = self.env[source]
            scale, zero_point = n.args[1], n.args[2]
            assert isinstance(scale, float) and isinstance(zero_point, int)
            rounded = super().run_node(n).numpy().astype(np.int64)
            self.own[source.name] = (rounded - zero_point) * scale
            self.unrounded[source.name] = value.detach().numpy()
            self._passed.add(n)
            return torch.from_numpy(self._exact[source.name])
        if op_name(n) == _QUANTIZE and isinstance(n.args[0], Node) and n.args[0].op == "placeholder":
            self._passed.add(n)
            return self.env[n.args[0]]
        if op_name(n) == _DEQUANTIZE and isinstance(n.args[0], Node) and n.args[0] in self._passed:
            return self.env[n.args[0]]
        return super().run_node(n)


class _Simulator:
    """Runs a compiled program with every delegate on the C runtime, keeping each layer."""

    def __init__(self, program: CompiledProgram, quantized: GraphModule):
        self._quantized = quantized
        self._module = program.edge.graph_module
        self._delegates = {id(p): _Delegate(p, program) for p in program.partitions}
        self._values: Values = {}
        # What stays on the CPU may have weights, which are inputs of the graph too.
        state = {**program.edge.state_dict, **program.edge.constants}
        specs = program.edge.graph_signature.input_specs
        self._constants = [None if s.kind is InputKind.USER_INPUT else state[str(s.target)] for s in specs]

    def record(self, inputs: Inputs) -> Values:
        self._values = {}
        outer = self

        class Runner(Interpreter):
            def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
                if target is executorch_call_delegate:
                    lowered, *arguments = args
                    return outer._call(lowered, arguments)
                return super().call_function(target, args, kwargs)

        users = iter(inputs)
        Runner(self._module).run(*(next(users) if value is None else value for value in self._constants))
        return self._values

    def _call(self, lowered: LoweredBackendModule, arguments: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        delegate = self._delegates[id(lowered.meta["_delegate_info_meta"])]
        names = source_names(inside(lowered).graph_module, self._quantized)
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
        layers = list(ends.items())
        # Everything is alive to the end, so the limit of the target's SRAM does not apply.
        options = replace(program.options, sram_bytes=1 << 31, fetch_constants_to_sram=False)
        self._parts: list[tuple[list[tuple[str, Tensor]], NativeModel]] = []
        for start in range(0, max(1, len(layers)), _MOST_LAYERS):
            part = layers[start : start + _MOST_LAYERS]
            every = Graph(list(graph.inputs), [*graph.outputs, *(t for _, t in part)], list(graph.ops))
            compiled = compile_graph(every, program.target, options)
            self._parts.append((part, NativeModel(compiled.microcode, compiled.weights, "compare")))

    def run(self, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], Values]:
        found: Values = {}
        for part, native in self._parts:
            results = native.run(inputs)
            for (name, tensor), array in zip(part, results[self._outputs :], strict=True):
                assert tensor.quant is not None
                found[name] = (array.astype(np.int64) - tensor.quant.zero_point[0]) * tensor.quant.scale[0]
        return results[: self._outputs], found


def source_names(module: GraphModule, origin: GraphModule) -> dict[str, list[str]]:
    """For each node of an Edge graph, the names of the nodes of `origin` it came from.

    Every graph in between has names of its own, and the same name may mean another node there.
    """
    found: dict[str, list[str]] = {}
    for node in module.graph.nodes:
        pending = list(node.meta.get("from_node", ()))
        names = found.setdefault(node.name, [])
        while pending:
            source = pending.pop()
            if source.graph_id == id(origin.graph):
                names.append(source.name)
            pending += source.from_node
    return found
