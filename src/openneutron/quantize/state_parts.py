"""A state that holds several things in one tensor, as its parts: each a state of its own, with its own scale.

What a recurrent cell passes on is often one tensor, hidden and cell state stacked. The two differ in size,
and are read and written apart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx import Node

from openneutron.fx import is_empty, op_name


def part_states(program: ExportedProgram, whole: Collection[str] = ()) -> None:
    """Put parts in the place of the states of a functional program that are only read and written so.

    A state that is never read goes. Those that are to stay `whole` are left.
    """
    output, signature = program.graph.output_node(), program.graph_signature
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    states = {
        s.target: nodes[s.arg.name]
        for s in signature.input_specs
        if s.kind is InputKind.BUFFER and s.target not in whole
    }
    results: list[tuple[OutputSpec, Any]] = []
    for spec, value in zip(signature.output_specs, output.args[0], strict=True):
        state = states.get(spec.target) if spec.kind is OutputKind.BUFFER_MUTATION else None
        if state is not None and not _is_read(state):
            continue
        pieces = None if state is None else _pieces(program, state, value)
        if state is None or pieces is None:
            results.append((spec, value))
            continue
        dim, written = pieces
        names = _replace(program, state, str(spec.target), dim, [_size(piece, dim) for piece in written])
        results += [
            (OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(piece.name), name), piece)
            for name, piece in zip(names, written, strict=True)
        ]
    output.args = (tuple(value for _, value in results),)
    signature.output_specs[:] = [spec for spec, _ in results]
    program.graph.eliminate_dead_code()


def _is_read(state: Node) -> bool:
    """Whether anything is read of a state: it may be empty, and so may be what is taken of it."""
    return not is_empty(state) and not all(map(is_empty, state.users))


def _pieces(program: ExportedProgram, state: Node, value: Any) -> tuple[int, list[Node]] | None:
    """The dimension and the pieces that a new state is joined of, if the old one is read in these alone.

    Each is read: what is joined of a new frame and of those before is one thing.
    """
    joined = _without_zeros(program, value)
    if joined is None or op_name(joined) not in ("aten.cat.default", "aten.stack.default"):
        return None
    args: Any = joined.args
    parts = args[0]
    stacked = op_name(joined) == "aten.stack.default"
    dim = int(args[1] if len(args) > 1 else 0) % state.meta["val"].ndim
    ends = list(accumulate((1 if stacked else _size(part, dim) for part in parts), initial=0))
    reads = [_read(user, dim) or (-1, -1) for user in state.users]
    bounds = list(enumerate(pairwise(ends)))
    read = {next((n for n, (a, b) in bounds if a <= start and stop <= b), -1) for start, stop in reads}
    if len(parts) < 2 or read != set(range(len(parts))):
        return None
    return dim, [_unsqueezed(part, dim) for part in parts] if stacked else list(parts)


def _unsqueezed(node: Node, dim: int) -> Node:
    with node.graph.inserting_before(node.graph.output_node()):
        made = node.graph.call_function(torch.ops.aten.unsqueeze.default, (node, dim))
    made.meta = {**node.meta, "val": node.meta["val"].unsqueeze(dim)}
    return made


def _without_zeros(program: ExportedProgram, value: Any) -> Node | None:
    """What a value is before zeros are added to it, as exporters do to make a copy."""
    if not isinstance(value, Node) or value.op != "call_function":
        return None
    if op_name(value) == "aten.clone.default":
        return _without_zeros(program, value.args[0])
    if op_name(value) != "aten.add.Tensor" or len(value.args) != 2:
        return value
    source, other = value.args
    spec = next(
        (s for s in program.graph_signature.input_specs if getattr(s.arg, "name", "") == str(other)), None
    )
    found = None
    written = program.graph_signature.buffers_to_mutate.values()
    if spec is not None and spec.target is not None and spec.target not in written:
        found = program.state_dict.get(spec.target, program.constants.get(spec.target))
    same = isinstance(source, Node) and source.meta["val"].shape == value.meta["val"].shape
    zeros = isinstance(found, torch.Tensor) and not found.detach().any()
    return _without_zeros(program, source) if same and zeros else value


def _size(node: Node, dim: int) -> int:
    return int(node.meta["val"].shape[dim])


def _read(user: Node, dim: int) -> tuple[int, int] | None:
    """From where to where along a dimension a call reads; None if it is no part of it alone."""
    if op_name(user) not in ("aten.select.int", "aten.slice.Tensor"):
        return None
    args: Any = user.args
    source, along, bounds = args[0], args[1] if len(args) > 1 else 0, args[2:]
    size, rank = source.meta["val"].shape[dim], source.meta["val"].ndim
    if along % rank != dim or not all(b is None or isinstance(b, int) for b in bounds):
        return None
    if op_name(user) == "aten.select.int":
        return bounds[0] % size, bounds[0] % size + 1
    start, stop, step = slice(*(bounds or (None,))).indices(size)
    return (start, stop) if step == 1 and start < stop else None


def _replace(program: ExportedProgram, state: Node, target: str, dim: int, sizes: Sequence[int]) -> list[str]:
    """The names of the parts, which are read in the place of the whole."""
    graph, specs = program.graph, program.graph_signature.input_specs
    at = next(i for i, s in enumerate(specs) if getattr(s.arg, "name", None) == state.name)
    stored = program.state_dict if target in program.state_dict else program.constants
    values: Any = stored.pop(target)
    made, names = [], []
    for number, part in enumerate(values.split(list(sizes), dim)):
        with graph.inserting_before(state):
            node = graph.placeholder(f"{state.name}_{number}")
        node.meta = {**state.meta, "val": state.meta["val"].narrow(dim, 0, sizes[number])}
        names.append(f"{target}_{number}")
        stored[names[-1]] = part.detach().clone()
        made.append((node, InputSpec(InputKind.BUFFER, TensorArgument(node.name), names[-1], True)))
    specs[at : at + 1] = [replace(spec, persistent=specs[at].persistent) for _, spec in made]
    starts = list(accumulate(sizes, initial=0))
    for user in list(state.users):
        start, stop = _read(user, dim) or (0, 0)
        number = next(i for i, end in enumerate(starts[1:]) if stop <= end)
        own = start - starts[number]
        select = op_name(user) == "aten.select.int"
        user.args = (
            made[number][0], dim, *((own,) if select else (own, stop - starts[number]))
        )  # fmt: skip
    graph.erase_node(state)
    return names
