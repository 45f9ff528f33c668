"""From the quantization intents of the operator table to torchao annotations.

Nodes are visited in order, so that a producer's annotation is known when its consumers are. A reference to
another tensor's parameters always points backwards; torchao resolves such chains, whatever their length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    QuantizationSpecBase,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from openneutron.diagnostics import fail, nearest
from openneutron.fx import bind_args, is_float, op_name, tensor_of
from openneutron.ops.spec import OPEN, FixedOutput, Observed, OpSpec, Shared, Weighted
from openneutron.passes.graph import constant, constants_only
from openneutron.passes.patterns import batch_norm_after, fusible_activation_after
from openneutron.quantize.annotation.borders import accumulated, state_updates
from openneutron.quantize.annotation.fused_groups import TABLES, find_groups
from openneutron.quantize.annotation.number_formats import Scheme
from openneutron.quantize.annotation.recurrent_cells import share_between_steps
from openneutron.quantize.annotation.sharing import NextState, flatten_sharing, share_states

Find = Callable[[str], OpSpec | None]


def is_annotated(node: Node) -> bool:
    """Whether this or another quantizer has decided about a node."""
    annotation = node.meta.get(Q_ANNOTATION_KEY)
    return annotation is not None and annotation._annotated


def leave_float(model: GraphModule, names: Collection[str]) -> None:
    """Mark nodes as decided about, and not to be quantized; a name that is not there is an error."""
    nodes = {n.name: n for n in model.graph.nodes if n.op == "call_function"}
    for name in names:
        if name not in nodes:
            fail("ON104", "option keep_float", f"the model has no layer '{name}'", nearest(name, nodes))
        nodes[name].meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(_annotated=True)


@dataclass
class Annotator:
    """Annotates one graph; lives as long as that takes."""

    scheme: Scheme
    find: Find
    keep_float: Collection[str] = ()  # names of nodes that are not quantized
    take: Callable[[Node], bool] = lambda node: True  # the nodes that may be annotated
    # Nodes whose output has parameters known without observing, directly or through operators that move data.
    fixed: dict[Node, FixedOutput] = field(default_factory=dict)
    constants: set[Node] = field(default_factory=set)
    converter: str = OPEN
    groups: dict[Node, set[Node]] = field(default_factory=dict)
    apart: Collection[Node] = ()  # nodes that stay in float so that their parts have scales of their own
    updates: set[Node] = field(default_factory=set)  # what makes a new state of an old one, in float
    states: Mapping[str, NextState] = field(default_factory=dict)  # by the names of inputs

    def annotate(self, model: GraphModule) -> None:
        """Annotate every node the table has an intent for, and that nobody has annotated yet."""
        self.constants = constants_only(model.graph.nodes)
        names = [n.name for n in model.graph.nodes if n.op == "call_function"]
        for name in self.keep_float:
            if name not in names:
                fail("ON104", "option keep_float", f"the model has no layer '{name}'", nearest(name, names))
        if self.converter == OPEN:  # it leaves groups of wide values unquantized in between
            model.meta[TABLES] = True
            if self.states:
                self.updates, moves = accumulated(model, self.states, self.find, self._may_group)
            else:
                self.updates, moves = state_updates(model, self.find)
                self.updates = self.updates if all(map(self._may_group, self.updates)) else set()
            self.apart = {*self.apart, *(moves if self.updates else ())}
            self.groups = find_groups(
                model.graph.nodes,
                self.find,
                lambda node: self._may_group(node) and node not in self.updates,
                self.constants,
            )
            self.groups |= dict.fromkeys(self.updates, self.updates)
        for node in model.graph.nodes:
            if node in self.apart:
                node.meta.setdefault(Q_ANNOTATION_KEY, QuantizationAnnotation(_annotated=True))
            spec = self.find(op_name(node)) if self.take(node) else None
            if spec is None or node in self.constants or is_annotated(node):
                continue
            if not _is_finite(model, node, spec):
                continue
            if node in self.groups:
                self._annotate_member(node, self.groups[node])
            elif is_float(node) or spec.integer_result:
                self._annotate_node(node, spec)
        share_states(model, self.states)
        share_between_steps(model.graph.nodes, self.find, self.constants)
        flatten_sharing(model)

    def _may_group(self, node: Node) -> bool:
        return self._is_free(node) and node.name not in self.keep_float

    def _annotate_member(self, node: Node, group: set[Node]) -> None:
        """An operator of a group: what comes from outside is quantized, and what goes out."""
        outside = [n for n in _operands(node) if n not in group and n not in self.constants]
        leaves = not all(user in group for user in node.users)
        if group is self.updates:  # a state stays in float; who computes with it rounds what it reads
            outside = [n for n in outside if n not in self.apart and (self.states or n.op != "placeholder")]
            leaves = leaves and not self.states
            leaves = leaves and not any(u in self.apart or u.op == "output" for u in node.users)
        node.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(
            input_qspec_map={n: self._input(n) for n in outside},
            output_qspec=self.scheme.activation() if leaves and is_float(node) else None,
            _annotated=True,
        )

    def _annotate_node(self, node: Node, spec: OpSpec) -> None:
        # NXP's converter computes activations with layers alone.
        fuses = spec.fuses_activation and (self.converter == OPEN or isinstance(spec.quantize, Weighted))
        chain = self._chain(node, fuses)
        if any(item.name in self.keep_float for item in chain):
            for item in chain:
                item.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(_annotated=True)
            return
        inputs: dict[Node, QuantizationSpecBase]
        output: QuantizationSpecBase = self.scheme.activation()
        match spec.intent(self.converter, bind_args(node)):
            case Weighted() as intent:
                weighted = self._weighted_inputs(node, intent)
                if weighted is None:
                    return
                inputs = weighted
            case Shared():
                operands = _operands(node)
                if not operands:
                    return
                inputs = self._shared_inputs(node, operands)
                output = SharedQuantizationSpec((operands[0], node))
            case FixedOutput() as intent:
                inputs = {n: self._input(n) for n in _operands(node)}
                output = self.scheme.fixed(intent)
                self.fixed[node] = intent
            case Observed() as intent:
                given = _operands(node, intent.inputs)
                inputs = {n: self._symmetric(n) if intent.symmetric else self._input(n) for n in given}
            case _:
                return
        for item in chain:
            item.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(
                input_qspec_map=inputs if item is node else {},
                output_qspec=output if item is chain[-1] and not spec.integer_result else None,
                _annotated=True,
            )

    def _chain(self, node: Node, fuses: bool) -> list[Node]:
        """The node and what is computed inside it; the last of the chain carries the output."""
        chain = [node]
        if self.scheme.is_qat and (norm := batch_norm_after(node)):
            chain.append(norm)
        if fuses and (activation := fusible_activation_after(chain[-1])) and self._is_free(activation):
            chain.append(activation)
        return chain

    def _is_free(self, node: Node) -> bool:
        return self.take(node) and not is_annotated(node)

    def _input(self, node: Node) -> QuantizationSpecBase:
        """An input has the parameters of the tensor it reads, or is observed where it is read."""
        annotation = node.meta.get(Q_ANNOTATION_KEY)
        if annotation is not None and annotation.output_qspec is not None:
            return SharedQuantizationSpec(node)
        return self.scheme.constant() if node in self.constants else self.scheme.activation()

    def _symmetric(self, node: Node) -> QuantizationSpecBase:
        """An input with zero point 0: made so, or else rounded where it is read."""
        if node in self.constants:
            return self.scheme.symmetric()
        root = self._root(node)
        if root is None:
            return self.scheme.symmetric()
        annotation, edge = root
        if edge is None:
            annotation.output_qspec = self.scheme.symmetric()
        else:
            annotation.input_qspec_map[edge] = self.scheme.symmetric()
        return SharedQuantizationSpec(node)

    def _root(self, node: Node) -> tuple[QuantizationAnnotation, Node | None] | None:
        """Where the parameters of a tensor are decided: of a node's output, or of an input it reads.

        None if that is nowhere yet, or if they are not free: of a known range, or of a constant.
        """
        annotation, edge = node.meta.get(Q_ANNOTATION_KEY), None
        while annotation is not None:
            spec = annotation.output_qspec if edge is None else annotation.input_qspec_map.get(edge)
            if isinstance(spec, SharedQuantizationSpec):
                place = spec.edge_or_node
                owner, edge = (place[1], place[0]) if isinstance(place, tuple) else (place, None)
                annotation = owner.meta.get(Q_ANNOTATION_KEY)
            elif type(spec) is QuantizationSpec and edge not in self.constants:
                return annotation, edge
            else:
                return None
        return None

    def _shared_inputs(self, node: Node, operands: list[Node]) -> dict[Node, QuantizationSpecBase]:
        """One set of parameters for all inputs; the first input's specification is the root of the group."""
        intents = {self.fixed.get(n) for n in operands}
        if len(intents) == 1 and (intent := intents.pop()) is not None:
            self.fixed[node] = intent
            return {n: SharedQuantizationSpec(n) for n in operands}
        first, *others = operands
        # A fixed range must not be imposed on the other inputs: that input is converted where it is read.
        root = self.scheme.activation() if first in self.fixed else self._input(first)
        return {first: root, **{n: SharedQuantizationSpec((first, node)) for n in others}}

    def _weighted_inputs(self, node: Node, intent: Weighted) -> dict[Node, QuantizationSpecBase] | None:
        """Input, weight and bias, in the order in which torchao's batch-norm fusion expects them."""
        args = bind_args(node)
        weight, bias = args[intent.weight], args.get(intent.bias)
        sources = [n for n in _operands(node) if n is not weight and n is not bias]
        if weight not in self.constants or len(sources) != 1 or not is_float(weight):
            return None
        source, axis = sources[0], intent.channel_axis
        if axis != 0 and args.get("groups", 1) != 1:
            axis = None  # the groups of a transposed convolution share the channels of its weights
        groups = _groups(args, weight) if axis == 0 else 1
        specs = {source: self._input(source), weight: self.scheme.weight(axis, groups)}
        if isinstance(bias, Node):
            specs[bias] = self.scheme.bias(source, weight, node, axis, groups)
        return specs


def _is_finite(model: GraphModule, node: Node, spec: OpSpec) -> bool:
    """Whether a call's numbers and constants are: int8 has no infinity, nor what is no number."""
    args = {k: v for k, v in bind_args(node).items() if k not in spec.may_be_infinite}
    numbers = pytree.tree_leaves(args)
    if any(isinstance(n, float) and not math.isfinite(n) for n in numbers):
        return False
    constants = [constant(model, n) for n in node.all_input_nodes]
    return all(bool(t.isfinite().all()) for t in constants if t is not None and t.is_floating_point())


def _groups(args: dict[str, Any], weight: Node) -> int:
    """The groups of a convolution; a depthwise one is one layer."""
    value, groups = tensor_of(weight), args.get("groups", 1)
    whole = value is None or value.dim() < 3 or value.shape[1] == 1 or args.get("transposed", False)
    return 1 if whole else groups


def _operands(node: Node, names: Iterable[str] = ()) -> list[Node]:
    """The float tensors a node reads, each once, in order; of the named arguments only, if any are named."""
    if names:
        args = bind_args(node)
        nodes = [args[name] for name in names]
    else:
        nodes = node.all_input_nodes
    return [n for n in nodes if isinstance(n, Node) and is_float(n)]
