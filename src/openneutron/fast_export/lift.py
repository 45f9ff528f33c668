"""A quantized graph as an exported program, without tracing it again.

What torchao converts was made by torch.export, so that its graph is ATen already: constants become inputs of
the graph, as a signature wants them, and every node gets the name and the fake result that tracing would have
given it. Steps of recurrent networks repeat, and what was inferred once for a call is known for all like it.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping
from typing import Any, cast

import torch
from torch._export.verifier import TrainingIRVerifier
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_arg
from torch.fx.proxy import _COPY_META_FIELDS
from torch.utils import _pytree as pytree

from openneutron.fast_export.shortcuts import LIFT, is_taken
from openneutron.fx import source_of

_PREFIX = {InputKind.PARAMETER: "p_", InputKind.BUFFER: "b_", InputKind.CONSTANT_TENSOR: "c_"}
_KEPT = (*_COPY_META_FIELDS, "stack_trace")  # what tracing would hand on: quantizers' own notes among it
# Tracing these leaves a note beside them.
_NOTED = ("aten::to", "aten::_to_copy", "aten::item", "aten::_local_scalar_dense", "aten::sym_")


def lift(module: GraphModule, inputs: tuple[Any, ...]) -> ExportedProgram | None:
    """The module as torch.export would give it; None if only tracing can tell."""
    if not is_taken(LIFT) or not _is_plain(module) or not _takes(module, inputs):
        return None
    try:
        return _Lifting(module, inputs).program()
    except _Unknown:
        return None


class _Unknown(Exception):
    """Something that only tracing can tell."""


def _is_plain(module: GraphModule) -> bool:
    """Whether a graph is nothing but calls of operators that change nothing."""
    nodes = module.graph.nodes
    return all(
        node.op in ("placeholder", "output", "get_attr") or (node.op == "call_function" and _is_pure(node))
        for node in nodes
    ) and all(
        isinstance(n, Node) and n.op == "call_function"
        for n in pytree.tree_leaves(module.graph.output_node().args)
    )


def _is_pure(node: Node) -> bool:
    target = node.target
    if target is operator.getitem:
        return True
    return (
        isinstance(target, OpOverload)
        and not target._schema.is_mutable
        and not target._schema.name.startswith(_NOTED)
    )


def _takes(module: GraphModule, inputs: tuple[Any, ...]) -> bool:
    """Whether the inputs are those that the graph was made for, in shape and type."""
    spec = getattr(module, "_in_spec", None)
    leaves, given = pytree.tree_flatten((inputs, {}))
    takes = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    return (
        spec == given
        and len(leaves) == len(takes)
        and all(
            isinstance(value, torch.Tensor)
            and isinstance(leaf, torch.Tensor)
            and all(isinstance(d, int) for d in value.shape)
            and value.shape == leaf.shape
            and value.dtype == leaf.dtype
            for value, leaf in zip(takes, leaves, strict=True)
        )
    )


class _Lifting:
    """One module on its way."""

    def __init__(self, module: GraphModule, inputs: tuple[Any, ...]):
        self.module, self.inputs = module, inputs
        self.mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True, export=True)
        self.graph = Graph()
        self.env: dict[Node, Node] = {}
        self.inferred: dict[Hashable, Any] = {}
        self.kinds: dict[int, Hashable] = {}  # what is known of a fake result, by its identity

    def program(self) -> ExportedProgram:
        """The exported program."""
        specs, state, constants = self._constants()
        old = self.module.graph
        for node, value in zip(
            old.find_nodes(op="placeholder"), pytree.tree_leaves(self.inputs), strict=True
        ):
            self._placeholder(node, str(node.target), value)
            specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(self.env[node].name), None))
        names = [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]
        with self.mode, torch.no_grad():
            for node in old.nodes:
                if node.op == "call_function":
                    self._call(node)
        results = tuple(self.env[n] for n in pytree.tree_leaves(old.output_node().args))
        self.graph.output(results)
        self.graph.eliminate_dead_code()
        returns = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None) for n in results]
        signature = ModuleCallSignature(
            inputs=[],
            outputs=[],
            in_spec=self.module._in_spec,
            out_spec=cast(pytree.TreeSpec, self.module._out_spec),
            forward_arg_names=names,
        )
        return ExportedProgram(
            root=torch.nn.Module(),
            graph=self.graph,
            graph_signature=ExportGraphSignature(specs, returns),
            state_dict=state,
            range_constraints={},
            module_call_graph=[ModuleCallEntry("", signature)],
            example_inputs=(self.inputs, {}),
            constants=constants,
            verifiers=[TrainingIRVerifier],
        )

    def _constants(self) -> tuple[list[InputSpec], dict[str, Any], dict[str, Any]]:
        """What the graph reads of its module, in the order of a signature: each once, as an input."""
        readers: dict[str, list[Node]] = {}
        for node in self.module.graph.find_nodes(op="get_attr"):
            if node.users:
                readers.setdefault(str(node.target), []).append(node)
        specs: list[InputSpec] = []
        state: dict[str, Any] = {}
        constants: dict[str, Any] = {}
        for kind, persistent, tensors in self._tensors():
            for target in [name for name in tensors if name in readers]:
                value = tensors[target]
                first, *others = readers.pop(target)
                self._placeholder(first, _PREFIX[kind] + target.replace(".", "_"), value)
                self.env.update((node, self.env[first]) for node in others)
                name = TensorArgument(self.env[first].name)
                is_buffer = kind is InputKind.BUFFER
                specs.append(InputSpec(kind, name, target, persistent if is_buffer else None))
                (state if persistent else constants)[target] = value
        if readers:
            raise _Unknown
        return specs, state, constants

    def _tensors(self) -> list[tuple[InputKind, bool, Mapping[str, Any]]]:
        kept = self.module.state_dict(keep_vars=True)
        buffers = dict(self.module.named_buffers(remove_duplicate=False))
        persistent = {name: value for name, value in buffers.items() if name in kept}
        fleeting = {name: value for name, value in buffers.items() if name not in kept}
        loose = {}
        for prefix, module in self.module.named_modules():
            here = {k: v for k, v in vars(module).items() if isinstance(v, torch.Tensor)}
            loose.update({f"{prefix}.{k}" if prefix else k: v for k, v in here.items()})
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        return [
            (InputKind.PARAMETER, True, parameters),
            (InputKind.BUFFER, True, persistent),
            (InputKind.BUFFER, False, fleeting),
            (InputKind.CONSTANT_TENSOR, False, loose),
        ]

    def _placeholder(self, node: Node, name: str, value: torch.Tensor) -> None:
        made = self.env[node] = self.graph.placeholder(name)
        fake = made.meta["val"] = self.mode.from_tensor(value, static_shapes=True)
        self.kinds[id(fake)] = _kind(fake)

    def _call(self, node: Node) -> None:
        target: Any = node.target
        args, kwargs = map_arg((node.args, node.kwargs), self.env.__getitem__)
        name = target._schema.name.split("::")[-1] if isinstance(target, OpOverload) else "getitem"
        made = self.graph.create_node("call_function", target, args, kwargs, self.graph._target_to_str(name))
        made.meta = {key: node.meta[key] for key in _KEPT if key in node.meta}
        made.meta["original_aten"] = target
        made.meta["from_node"] = [source_of(node)]
        made.meta["val"] = self._result(target, args, kwargs)
        self.env[node] = made

    def _result(self, target: Any, args: Any, kwargs: Any) -> Any:
        key = (target, self._key(args), self._key(kwargs))
        if key not in self.inferred:
            values, named = map_arg((args, kwargs), lambda n: n.meta["val"])
            try:
                result = target(*values, **named)
            except Exception as error:  # tracing will say what is wrong
                raise _Unknown from error
            for value in pytree.tree_leaves(result):
                if not isinstance(value, torch.Tensor) or not all(isinstance(d, int) for d in value.shape):
                    raise _Unknown
                self.kinds[id(value)] = _kind(value)
            self.inferred[key] = result
        return self.inferred[key]

    def _key(self, value: Any) -> Hashable:
        """Arguments of a call as a key: tensors of one kind are alike, and so are their results."""
        if isinstance(value, Node):
            traced = value.meta["val"]
            return "tensor", self.kinds[id(traced)] if isinstance(traced, torch.Tensor) else id(traced)
        if isinstance(value, list | tuple):
            return tuple(map(self._key, value))
        if isinstance(value, dict):
            return tuple((name, self._key(item)) for name, item in value.items())
        return type(value), value


def _kind(value: torch.Tensor) -> Hashable:
    return value.dtype, tuple(value.shape), value.stride(), value.device
