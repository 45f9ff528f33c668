"""Models that pass their state as an input and an output: both become a buffer, which starts from zeros."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
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
from torch.utils import _pytree as pytree

from openneutron.diagnostics import fail, nearest
from openneutron.fx import copy_graph
from openneutron.quantize.export import Inputs, Model, as_tuple, export_model
from openneutron.tensors import plain_inputs

State = Mapping[str, str]
"""By the name of an output, or its number, the input that it is at the next run."""

_GONE = object()
# What names of a state differ in, between the input and the output.
_SIDES = {"in", "input", "inputs", "out", "output", "outputs", "next", "new", "prev", "previous", "last",
          "past", "present", "old", "cur", "current", "updated", "init", "initial", "final", "n", "o", "i",
          "t", "0", ""}  # fmt: skip


@dataclass(frozen=True)
class Port:
    """An input or output of a model: its name, and what it looks like."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None  # None: no tensor


class Remembering(torch.nn.Module):
    """A model whose states are buffers, which as it was given were inputs and outputs."""

    def __init__(self, program: ExportedProgram, kept: Sequence[bool], names: Any):
        super().__init__()
        self.model = program.module(check_guards=False)
        self.port_names = names
        self._program, self._kept = [program], list(kept)  # a list: no part of the module
        self.training = False

    def train(self, mode: bool = True) -> Remembering:
        """A program is neither trained nor put back: it stays as it was exported."""
        return self

    def forward(self, *inputs: Any) -> Any:
        """One run; what it remembers is carried on."""
        return self.model(*inputs)

    def export_program(self, inputs: Inputs) -> ExportedProgram:
        """The program, its graph a copy."""
        return copy_graph(self._program[0])

    def frames(self, samples: Iterable[Any]) -> list[Any]:
        """Samples of the model as it was given, without its states; those of this one as they are."""
        return [
            [self._frame(frame) for frame in sample]
            if isinstance(sample, list) and sample and all(isinstance(frame, tuple) for frame in sample)
            else self._frame(as_tuple(sample))
            for sample in samples
        ]

    def _frame(self, inputs: Inputs) -> Inputs:
        return _pruned_tuple(inputs, self._kept) if pytree.tree_structure(inputs).num_leaves == len(
            self._kept
        ) else inputs  # fmt: skip


def carry_state(model: Model, example_inputs: Inputs, state: State) -> tuple[Remembering, Inputs]:
    """The model with buffers in the place of inputs and outputs that are its state, and the inputs left."""
    inputs = plain_inputs(as_tuple(example_inputs))
    program = export_model(model, inputs)
    names = getattr(model, "port_names", None)
    ins, outs = ports_of(program, names)
    pairs = _checked(state, ins, outs)
    kept = [i not in pairs.values() for i in range(len(ins))]
    made = _with_buffers(program, pairs, ins)
    if names is not None:
        names = (
            tuple(port.name for port, keep in zip(ins, kept, strict=True) if keep),
            tuple(port.name for i, port in enumerate(outs) if i not in pairs),
        )
    return Remembering(made, kept, names), _pruned_tuple(inputs, kept)


def ports_of(program: ExportedProgram, names: Any = None) -> tuple[list[Port], list[Port]]:
    """The inputs and outputs of a program, by the names of a file or those that Python has for them."""
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    ins = [s for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    given = [nodes.get(getattr(s.arg, "name", "")) for s in ins]
    found = zip(signature.output_specs, program.graph.output_node().args[0], strict=True)
    returned = [node for s, node in found if s.kind is OutputKind.USER_OUTPUT]
    takes = names[0] if names else [getattr(s.arg, "name", "") for s in ins]
    gives = names[1] if names else _keys(program.call_spec.out_spec, len(returned))
    return [_port(*pair) for pair in zip(takes, given, strict=True)], [
        _port(*pair) for pair in zip(gives, returned, strict=True)
    ]


def suggested(ins: Sequence[Port], outs: Sequence[Port]) -> dict[str, str]:
    """The outputs that are plainly an input of the next run: by their names, or by shapes no other has.

    What comes first on either side is taken for data, unless its names say otherwise.
    """
    found: dict[str, str] = {}

    def match(number_out: int, number_in: int) -> None:
        if outs[number_out].name not in found and ins[number_in].name not in found.values():
            found[outs[number_out].name] = ins[number_in].name

    looks_alike = [
        (o, i)
        for o, out in enumerate(outs)
        for i, into in enumerate(ins)
        if out.dtype is not None and (out.shape, out.dtype) == (into.shape, into.dtype)
    ]
    stems = [
        (o, i) for o, i in looks_alike if _stem(outs[o].name) and _stem(outs[o].name) == _stem(ins[i].name)
    ]
    for o, i in stems:
        if sum(p == o for p, _ in stems) == sum(q == i for _, q in stems) == 1 and (len(ins) > 1):
            match(o, i)
    rest = [(o, i) for o, i in looks_alike if o and i and outs[o].name not in found]
    rest = [(o, i) for o, i in rest if ins[i].name not in found.values()]
    for o, i in rest:
        if sum(p == o for p, _ in rest) == sum(q == i for _, q in rest) == 1:
            match(o, i)
    return found


def _stem(name: str) -> tuple[str, ...]:
    """The words of a name without those that tell an input from an output."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition("/")[2].partition(":")[0])
    words = [w for part in re.split(r"[^A-Za-z0-9]+", text) for w in re.findall(r"[a-z]+|\d+", part.lower())]
    if len(words) == 1 and len(words[0]) == 2 and words[0][1] in "no":  # h0, hn
        words = [words[0][0]]
    left = tuple(word for word in words if word not in _SIDES)
    return () if all(map(str.isdecimal, left)) else left


def _port(name: str, value: Any) -> Port:
    tensor = value.meta.get("val") if isinstance(value, Node) else None
    if not isinstance(tensor, torch.Tensor):
        return Port(name, (), None)
    return Port(name, tuple(tensor.shape), tensor.dtype)


def _keys(spec: Any, count: int) -> list[str]:
    """The name that each result has in a dictionary or class; in a tuple its number."""
    leaves, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(count)), spec))
    return ["_".join(re.sub(r"\W", "", str(key)) for key in path) or "0" for path, _ in leaves]


def _checked(state: State, ins: Sequence[Port], outs: Sequence[Port]) -> dict[int, int]:
    """The number of the input that each of these outputs becomes."""
    found: dict[int, int] = {}
    for name_out, name_in in state.items():
        where = f"state {name_out}={name_in}"
        out, into = _find(name_out, outs, "output", where), _find(name_in, ins, "input", where)
        if into in found.values() or out in found:
            side = "input" if into in found.values() else "output"
            fail("ON104", where, f"the {side} is in another state already", "A state is one of each.")
        a, b = outs[out], ins[into]
        if a.dtype is None or (a.shape, a.dtype) != (b.shape, b.dtype):
            fail(
                "ON104",
                where,
                f"the output is {_text(a)}, the input {_text(b)}",
                "What a run leaves is what the next one takes: both have the same shape and type.",
            )
        found[out] = into
    if len(found) == len(outs):
        fail("ON104", "state", "no output is left", "A program has to return something beside its state.")
    return found


def _find(name: str, ports: Sequence[Port], side: str, where: str) -> int:
    names = [port.name for port in ports]
    if name in names:
        return names.index(name)
    if name.isdecimal() and int(name) < len(ports):
        return int(name)
    listed = ", ".join(f"{p.name} {_text(p)}" for p in ports)
    close = nearest(name, names).split(" Known")[0]
    fail(
        "ON104",
        where,
        f"there is no {side} '{name}'",
        f"{close + ' ' if close.startswith('Did') else ''}The {side}s, by name or number: {listed}.",
    )


def _text(port: Port) -> str:
    return f"{str(port.dtype).removeprefix('torch.')}{list(port.shape)}" if port.dtype else "no tensor"


def _with_buffers(program: ExportedProgram, pairs: Mapping[int, int], ins: Sequence[Port]) -> ExportedProgram:
    signature, graph = program.graph_signature, program.graph
    nodes = {node.name: node for node in graph.find_nodes(op="placeholder")}
    users = [s for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    taken = {*program.state_dict, *program.constants}
    buffers: dict[int, str] = {}
    values: dict[str, torch.Tensor] = {}
    for number in pairs.values():
        port = ins[number]
        if not all(isinstance(size, int) for size in port.shape):
            fail("ON205", f"state {port.name}", f"has the shape {list(port.shape)}",
                 "Neutron programs are static: export the model without dynamic_shapes.")  # fmt: skip
        name = base = re.sub(r"\W+", "_", port.name).strip("_") or "state"
        while name in taken or hasattr(program.graph_module, name):
            name = f"{base}_{len(taken)}"
            base = name
        taken.add(name)
        buffers[number], values[name] = name, torch.zeros(port.shape, dtype=port.dtype)
    states = {nodes[users[i].arg.name] for i in buffers}
    specs = [s for s in signature.input_specs if s not in [users[i] for i in buffers]]
    first = next(
        (i for i, s in enumerate(specs) if s.kind not in (InputKind.PARAMETER, InputKind.BUFFER)), len(specs)
    )
    specs[first:first] = [
        InputSpec(InputKind.BUFFER, TensorArgument(users[i].arg.name), name, True)
        for i, name in buffers.items()
    ]
    ordered = [nodes[s.arg.name] for s in specs if getattr(s.arg, "name", None) in nodes]
    _put_first(graph, ordered)
    kept, written, output = [], [], graph.output_node()
    results, number = [], 0
    for spec, value in zip(signature.output_specs, output.args[0], strict=True):
        if isinstance(value, Node) and _is_part_of(value, states):
            with graph.inserting_before(output):  # before any buffer is written
                copied = graph.call_function(torch.ops.aten.clone.default, (value,))
                copied.meta = {k: v for k, v in value.meta.items() if k in ("val", "stack_trace")}
            value = copied
        into = pairs.get(number) if spec.kind is OutputKind.USER_OUTPUT else None
        number += spec.kind is OutputKind.USER_OUTPUT
        if into is not None:
            written.append(
                (value, OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(value.name), buffers[into]))
            )
        else:
            arg = TensorArgument(value.name) if isinstance(spec.arg, TensorArgument) else spec.arg
            kept.append((value, OutputSpec(spec.kind, arg, spec.target)))
            results.append(spec.kind is OutputKind.USER_OUTPUT)
    kept.sort(key=lambda pair: pair[1].kind is OutputKind.USER_OUTPUT)  # buffers come first
    output.args = (tuple(value for value, _ in (*written, *kept)),)
    graph.lint()
    root = program.module_call_graph[0]
    assert root.signature is not None
    takes = [number not in buffers for number in range(len(users))]
    gives = [number not in pairs for number in range(number)]
    returned = pytree.tree_unflatten(list(range(len(gives))), root.signature.out_spec)
    left = pytree.tree_structure(_pruned(returned, gives))
    calls = ModuleCallSignature([], [], _pruned_call(root.signature.in_spec, takes), left)
    example = program.example_inputs
    return ExportedProgram(
        root=GraphModule(program.graph_module, graph),
        graph=graph,
        graph_signature=ExportGraphSignature(specs, [spec for _, spec in (*written, *kept)]),
        state_dict={**program.state_dict, **values},
        range_constraints=program.range_constraints,
        module_call_graph=[ModuleCallEntry("", calls)],
        example_inputs=None if example is None else pytree.tree_unflatten(
            [v for v, keep in zip(pytree.tree_leaves(example), takes, strict=True) if keep], calls.in_spec
        ),
        constants=program.constants,
        verifiers=program.verifiers,
    )  # fmt: skip


def _put_first(graph: Graph, placeholders: Sequence[Node]) -> None:
    """Placeholders in this order."""
    previous = None
    for node in placeholders:
        if previous is None:
            next(iter(graph.nodes)).prepend(node)
        else:
            previous.append(node)
        previous = node


def _is_part_of(node: Node, states: set[Node]) -> bool:
    """Whether a value is one of these, or a view: it would change when the state is written."""
    while node not in states:
        schema = getattr(node.target, "_schema", None)
        is_view = schema is not None and any(r.alias_info is not None for r in schema.returns)
        if not node.all_input_nodes or not (is_view or node.target is operator.getitem):
            return False
        node = node.all_input_nodes[0]
    return True


def _pruned_call(spec: Any, kept: Sequence[bool]) -> Any:
    """The structure of the inputs that are left: those with a place and those with a name."""
    args, named = pytree.tree_unflatten(list(range(len(kept))), spec)
    count = pytree.tree_structure(args).num_leaves
    left = _pruned(named, kept[count:])
    return pytree.tree_structure((_pruned_tuple(args, kept), {} if left is _GONE else left))


def _pruned_tuple(tree: tuple[Any, ...], kept: Sequence[bool]) -> tuple[Any, ...]:
    found = _pruned(tree, kept)
    return () if found is _GONE else found


def _pruned(tree: Any, kept: Sequence[bool]) -> Any:
    """A tree without the leaves that are not kept, and without what is empty then."""
    count = pytree.tree_structure(tree).num_leaves
    kept = kept[:count]
    if all(kept):
        return tree
    if not any(kept):
        return _GONE
    items: list[tuple[Any, Any]] = list(tree.items()) if isinstance(tree, dict) else list(enumerate(
        tree if type(tree) in (tuple, list) else pytree.tree_leaves(tree)))  # fmt: skip
    found, at = {}, 0
    for key, item in items:
        size = pytree.tree_structure(item).num_leaves
        left = _pruned(item, kept[at : at + size])
        at += size
        if left is not _GONE:
            found[key] = left
    return found if isinstance(tree, dict) else type(tree)(found.values()) if type(tree) is list else tuple(
        found.values())  # fmt: skip
