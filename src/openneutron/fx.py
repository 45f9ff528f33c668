"""Small helpers on torch.fx graphs, the same for the ATen and the Edge dialect."""

from __future__ import annotations

import copy
import keyword
import re
import warnings
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.traceback import NodeSource, NodeSourceAction

# torch says so of its own specs whenever a program is copied, twice a compile; users can do nothing about it.
warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)


def overload(node: Node) -> OpOverload | None:
    """The ATen (or other) operator a node calls; of an Edge operator, the one it stands for."""
    if node.op != "call_function":
        return None
    target: Any = node.target
    if not isinstance(target, OpOverload):
        # EdgeOpOverload wraps it; its class is not imported because executorch is slow to load.
        target = getattr(target, "_op", None)
    return target if isinstance(target, OpOverload) else None


# Of an operator: its name; of each argument the name, whether it may be given by position, and the default.
_Description = tuple[str, tuple[tuple[str, bool, Any], ...], OpOverload]
_DESCRIPTIONS: dict[int, _Description] = {}  # by identity: an operator's own hash is slow


def _described(op: OpOverload) -> _Description:
    description = _DESCRIPTIONS.get(id(op))
    if description is None:
        arguments = ((a.name, not a.kwarg_only, _default(a)) for a in op._schema.arguments)
        description = _DESCRIPTIONS[id(op)] = (str(op), tuple(arguments), op)
    return description


def _default(argument: Any) -> Any:
    return argument.default_value if argument.has_default_value() else None


def op_name(node: Node) -> str:
    """The operator's name in the table, such as `aten.relu.default`; empty for a node that calls none."""
    op = overload(node)
    return _described(op)[0] if op is not None else ""


def bind_args(node: Node) -> dict[str, Any]:
    """The arguments of a call by schema name, in schema order, defaults included."""
    op = overload(node)
    assert op is not None, f"{node.format_node()} calls no operator"
    bound: dict[str, Any] = {}
    args, kwargs = node.args, node.kwargs
    for position, (name, by_position, default) in enumerate(_described(op)[1]):
        if by_position and position < len(args):
            bound[name] = args[position]
        elif name in kwargs:
            bound[name] = kwargs[name]
        else:
            bound[name] = list(default) if isinstance(default, list) else default
    # An Edge operator may have arguments the ATen schema lacks (a dim order); none may be lost.
    bound.update({name: value for name, value in node.kwargs.items() if name not in bound})
    return bound


def tensor_of(node: Node) -> torch.Tensor | None:
    """The (fake) tensor a node produces, or None if it produces something else."""
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def values_of(node: Node) -> int:
    """How many values a node produces; 0 where that is not known beforehand, as of x[x > 0]."""
    value = tensor_of(node)
    count = 0 if value is None else value.numel()
    return count if isinstance(count, int) else 0


def is_empty(node: Node) -> bool:
    """Whether a node is known to produce a tensor without values."""
    value = tensor_of(node)
    return value is not None and any(isinstance(size, int) and size == 0 for size in value.shape)


def same_shape(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have one shape, whatever the numbers they depend on."""
    return _plain(a.shape) == _plain(b.shape)


def same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors lie in memory in one way."""
    return _plain(a.stride()) == _plain(b.stride())


def _plain(sizes: Iterable[Any]) -> list[Any]:
    # Comparing sizes that only the values of tensors tell is an error to torch; their expressions compare.
    return [size if isinstance(size, int) else size.node.expr for size in sizes]


def is_float(node: Node) -> bool:
    """Whether the node produces a float32 tensor: the only kind that is quantized."""
    value = tensor_of(node)
    return value is not None and value.dtype == torch.float32


def sources(node: Node) -> list[Any]:
    """The nodes of earlier graphs that a node comes from, as torch.export records them."""
    names, pending = [], list(node.meta.get("from_node", ()))
    while pending:
        names.append(source := pending.pop())
        pending += source.from_node
    return names


def source_of(node: Node) -> NodeSource:
    """What `from_node` records of a node that another is made from."""
    source = NodeSource(None, "openneutron", NodeSourceAction.REPLACE)
    source.node_info = NodeSource.NodeInfo(node.name, str(node.target), id(node.graph))
    source.from_node = node.meta.get("from_node", [])  # NodeSource itself would copy all of it
    return source


_CHECKS = ("aten._assert_tensor_metadata.default", "aten._linalg_check_errors.default")


def remove_assertions(program: ExportedProgram) -> None:
    """Drop checks that compute nothing: of a conversion's operand, of whether a matrix could be inverted."""
    for node in list(program.graph.nodes):
        if op_name(node) in _CHECKS:
            program.graph.erase_node(node)
    program.graph_module.recompile()


# What torch sets on a module that it makes of a program, beside what every such module has.
_SET_LATER = {
    "self",
    "_in_spec",
    "_out_spec",
    "_lineno_map",
    "_prologue_start",
    "_wrapped_call",
    "_guards_fn",
    "range_constraints",
    "validate_inputs",
    "_frozen_param_count",
}


def rename_reserved(program: ExportedProgram) -> ExportedProgram:
    """Call parameters and buffers otherwise that cannot be attributes: `graph`, `training`, `class`, `a"b`.

    A program becomes a module again and again, and its code is written anew, which names them.
    """
    module, plain = torch.fx.GraphModule({}, torch.fx.Graph()), torch.nn.Module()
    names = {**program.state_dict, **program.constants}

    def free(name: str) -> str:
        parts = name.split(".")
        for i, part in enumerate(parts):
            taken = hasattr(plain if i else module, part) or part in _SET_LATER or keyword.iskeyword(part)
            if taken or not re.fullmatch(r"\w+", part):
                parts[i] = re.sub(r"\W", "_", part) + "_of_model"
        return ".".join(parts)

    taken, new = set(names), {}
    for name in names:
        if (other := free(name)) != name:
            new[name] = _unused(other, taken)
            taken.add(new[name])
    if not new:
        return program
    signature = copy.deepcopy(program.graph_signature)
    for spec in (*signature.input_specs, *signature.output_specs):
        if isinstance(spec.target, str):
            spec.target = new.get(spec.target, spec.target)
    return program._update(
        program.graph_module,
        signature,
        state_dict={new.get(k, k): v for k, v in program.state_dict.items()},
        constants={new.get(k, k): v for k, v in program.constants.items()},
    )


def _unused(name: str, names: Container[str]) -> str:
    while name in names:
        name += "_"
    return name


def watch(
    model: GraphModule,
    samples: Iterable[Sequence[Any]],
    asked: Collection[Node],
    look: Callable[[Node, torch.Tensor], None],
) -> None:
    """Run a model on samples, and look at the tensors that these nodes make, in the order of the graph."""

    class Watched(Interpreter):
        def run_node(self, n: Node) -> Any:
            result = super().run_node(n)
            if n in asked and isinstance(result, torch.Tensor):
                look(n, result)
            return result

    runner = Watched(model)
    with torch.no_grad():
        for sample in samples if asked else ():
            runner.run(*(v.clone() if isinstance(v, torch.Tensor) else v for v in sample))


def copy_graph(program: ExportedProgram) -> ExportedProgram:
    """The same program with a graph of its own; weights and delegates are shared."""
    graph = copy.deepcopy(program.graph)
    for new, old in zip(graph.nodes, program.graph.nodes, strict=True):
        new.name = old.name  # a copy renames `input` and other names Python has; the signature does not
    module = GraphModule(program.graph_module, graph)
    signature = copy.deepcopy(program.graph_signature)
    return program._update(module, signature)
