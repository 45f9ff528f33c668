"""One quantizer for both: Neutron annotates what it will really take, Cortex-M the rest."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
from torchao.quantization.pt2e.quantizer import (
    FixedQParamsQuantizationSpec,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from openneutron import ops
from openneutron.cortex_m.quantizer import CortexMInt8Quantizer
from openneutron.cortex_m.rewrite import rewrite_for_cortex_m
from openneutron.fast_export.lift import lift
from openneutron.fx import sources
from openneutron.options import CompileOptions
from openneutron.package.backend import NeutronPartitioner
from openneutron.passes import ATEN_PASSES, PTQ, QAT, run_passes
from openneutron.passes.graph import constant
from openneutron.quantize.annotation.annotate import Annotator, leave_float
from openneutron.quantize.annotation.borders import different_parts
from openneutron.quantize.annotation.number_formats import Scheme
from openneutron.quantize.annotation.sharing import NextState, flatten_sharing
from openneutron.quantize.convert import convert_calibrated
from openneutron.quantize.quantizer import leave_room_for_biases


class CombinedQuantizer(Quantizer):
    """Neutron's formats where the NPU computes, Cortex-M's where it does not; each operator has one owner.

    What Neutron takes is found by a trial: a copy of the graph is quantized for Neutron alone, and its
    partitioner is asked. The options are those the model will be lowered with: what they exclude goes to
    the CPU. The trial runs on the example inputs; without any, nothing is known of the values.
    """

    def __init__(
        self,
        options: CompileOptions | None = None,
        is_qat: bool = False,
        *,
        per_channel: bool = False,
        keep_float: Collection[str] = (),
        examples: Sequence[tuple[Any, ...]] = (),
        states: Mapping[str, NextState] | None = None,
    ):
        super().__init__()
        self.examples = tuple(examples)
        self.states = dict(states or {})
        self.options = options or CompileOptions()
        self.is_qat = is_qat
        self.keep_float = keep_float
        self._scheme = Scheme(is_qat, per_channel)
        self._cortex_m = CortexMInt8Quantizer(is_qat)

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """The graph as Neutron's table describes it; what the CPU gets, as Cortex-M's patterns do."""
        model = run_passes(model, ATEN_PASSES, QAT if self.is_qat else PTQ)
        taken = self._taken(model)
        return rewrite_for_cortex_m(model, lambda node: node.name not in taken)

    def annotate(self, model: GraphModule) -> GraphModule:
        """Say of every tensor how it is to be quantized."""
        taken = self._taken(model)
        annotator = Annotator(self._scheme, ops.find, self.keep_float, lambda node: node.name in taken)
        annotator.converter = self.options.converter
        annotator.states = self.states
        annotator.apart = different_parts(model, self.examples, ops.find, self.states)
        annotator.annotate(model)
        leave_float(model, self.keep_float)
        self._cortex_m.annotate(model)
        join_fixed(model)
        flatten_sharing(model)
        return model

    def prepare_obs_or_fq_callback(
        self, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]
    ) -> None:
        """Let the scale of every layer's weights leave room for its bias."""
        leave_room_for_biases(model, edge_or_node_to_obs_or_fq)

    def validate(self, model: GraphModule) -> None:
        """Nothing to check: a node that was not annotated stays float."""

    def _taken(self, model: GraphModule) -> set[str]:
        return taken_by_neutron(model, self.options, self._scheme.per_channel, self.examples)


class _Trial(Quantizer):
    """Annotates for Neutron a graph that has been prepared for that."""

    def __init__(self, per_channel: bool, converter: str):
        super().__init__()
        self._scheme = Scheme(per_channel=per_channel)
        self._converter = converter

    def annotate(self, model: GraphModule) -> GraphModule:
        Annotator(self._scheme, ops.find, converter=self._converter).annotate(model)
        return model

    def validate(self, model: GraphModule) -> None:
        pass


def taken_by_neutron(
    model: GraphModule,
    options: CompileOptions,
    per_channel: bool = False,
    examples: Sequence[tuple[Any, ...]] = (),
) -> set[str]:
    """Names of the nodes Neutron's partitioner takes when everything it can have is quantized for it."""
    trial = copy.deepcopy(model)
    move_exported_model_to_eval(trial)
    prepared = prepare_pt2e(trial, _Trial(per_channel, options.converter))
    args, kwargs = example_of(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # observers that have seen nothing complain
        if not examples:
            _observe_constants(prepared)
        else:
            prepared(*examples[0])
        converted = convert_calibrated(prepared)
    program = (None if kwargs else lift(converted, args)) or torch.export.export(converted, args, kwargs)
    partitioner = NeutronPartitioner(options.to_compile_specs())
    program = partitioner.transform_for_pre_decomposition(program)
    partitioner.partition(program)
    here = id(converted.graph)
    return {
        source.name
        for group in partitioner.partitions
        for cluster in group
        for node in cluster.body
        for source in sources(node)
        if source.graph_id == here
    }


def _observe_constants(prepared: GraphModule) -> None:
    """Let the observers of weights see them; what else the model computes takes values that nobody knows."""
    for node in prepared.graph.nodes:
        value = constant(prepared, node.args[0]) if node.op == "call_module" and node.args else None
        if value is not None:
            prepared.get_submodule(str(node.target))(value)


def example_of(model: GraphModule) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs of a graph's shapes, all zero."""
    values = [_zeros(n.meta["val"]) for n in model.graph.nodes if n.op == "placeholder"]
    spec = getattr(model, "_in_spec", None)
    if spec is None:
        return tuple(values), {}
    args, kwargs = pytree.tree_unflatten(values, spec)
    return tuple(args), dict(kwargs)


def _zeros(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    shape, stride = (
        [d if isinstance(d, int) else d.node.hint for d in dims] for dims in (value.shape, value.stride())
    )
    return torch.empty_strided(shape, stride, dtype=value.dtype).zero_()


def join_fixed(model: GraphModule) -> None:
    """Let a reader take a tensor's fixed parameters as they are, whichever of the two annotated them.

    torchao joins equal specifications by itself, but a reader that was annotated without knowing its producer
    asks for observed parameters, which would mean converting from the one to the other.
    """
    for node in model.graph.nodes:
        annotation = node.meta.get(Q_ANNOTATION_KEY)
        if annotation is None:
            continue
        shared = {n for n in node.all_input_nodes if _is_referred_to(node, n)}
        for source, spec in annotation.input_qspec_map.items():
            if isinstance(spec, QuantizationSpec) and source not in shared and _is_fixed(source):
                annotation.input_qspec_map[source] = SharedQuantizationSpec(source)


def _is_fixed(node: Node) -> bool:
    annotation = node.meta.get(Q_ANNOTATION_KEY)
    return annotation is not None and isinstance(annotation.output_qspec, FixedQParamsQuantizationSpec)


def _is_referred_to(node: Node, source: Node) -> bool:
    """Whether the parameters of this input are also those of another input or of an output."""
    for other in (node, *node.graph.nodes):
        annotation = other.meta.get(Q_ANNOTATION_KEY)
        specs = () if annotation is None else (annotation.output_qspec, *annotation.input_qspec_map.values())
        if any(isinstance(s, SharedQuantizationSpec) and s.edge_or_node == (source, node) for s in specs):
            return True
    return False
