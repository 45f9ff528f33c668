"""Models that remember: their buffers as inputs and outputs while they are quantized, and as buffers after.

A model that writes to its buffers gives another result for the same inputs every time it is run. So that
everything which observes, measures and refines a model can run it on samples in any order, the buffers are
inputs and outputs meanwhile. What they hold is found by running the model in float over whole sequences; each
frame is then a sample like any other, with the state that it meets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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

from openneutron.fx import op_name, same_shape
from openneutron.quantize.annotation.sharing import NextState
from openneutron.quantize.samples import from_everywhere, said_of
from openneutron.quantize.state_parts import part_states
from openneutron.tensors import plain_inputs

Inputs = tuple[Any, ...]
Frames = list[Inputs]
"""The inputs of runs that follow one another."""

_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
_ROOM = 256 << 20  # bytes of samples that are held at once


def written_buffers(program: ExportedProgram) -> list[str]:
    """The buffers that a program, as it was exported or functional, writes to."""
    signature = program.graph_signature
    found = dict.fromkeys(signature.buffers_to_mutate.values())
    buffers = signature.inputs_to_buffers
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name in buffers and any(_writes(user, node) for user in node.users):
            found[buffers[node.name]] = None
    return list(found)


def is_stateful(module: torch.nn.Module | ExportedProgram) -> bool:
    """Whether a graph writes to its buffers; of a module without a graph nothing is known."""
    if isinstance(module, ExportedProgram):
        return bool(written_buffers(module))
    return isinstance(module, GraphModule) and bool(_written(module))


def _written(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that a module may write to: those its graph does, or all if it has none."""
    buffers = dict(module.named_buffers())
    if not isinstance(module, GraphModule):
        return buffers
    nodes = module.graph.find_nodes(op="get_attr")
    written = {str(node.target) for node in nodes if any(_writes(user, node) for user in node.users)}
    return {name: buffer for name, buffer in buffers.items() if name in written}


def _writes(user: Node, node: Node) -> bool:
    """Whether a call changes a tensor that it is given, or a view of it that another changes."""
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return False
    named = {a.name: value for a, value in zip(schema.arguments, user.args, strict=False)} | user.kwargs
    for argument in schema.arguments:
        alias = argument.alias_info
        if alias is None or named.get(argument.name) is not node:
            continue
        if alias.is_write or any(_writes(further, user) for further in user.users):
            return True
    return False


def with_own_buffers(program: ExportedProgram) -> ExportedProgram:
    """The program with copies of the buffers that it writes to: running it changes nobody else's."""
    if written := written_buffers(program):
        # In new dictionaries: those of a program that was given are the caller's.
        program._state_dict = _with_own(program._state_dict, written)
        program._constants = _with_own(program._constants, written)
        _write_apart(program.graph)
    return program


def _write_apart(graph: Graph) -> None:
    """Copy what several buffers become: torch takes them for one where they become the same tensor."""
    written: set[Any] = set()
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        value = node.args[1]
        if isinstance(value, Node) and value in written:
            with graph.inserting_before(node):
                copied = graph.call_function(torch.ops.aten.clone.default, (value,))
            copied.meta = dict(value.meta)
            node.update_arg(1, copied)
        written.add(value)


def _with_own(tensors: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {k: v.detach().clone() if k in names else v for k, v in tensors.items()}


@contextmanager
def one_sequence(module: torch.nn.Module) -> Iterator[None]:
    """Run a module over one sequence: when it ends, its buffers are what they were at the start.

    A buffer that was assigned anew (`self.h = h`) is the tensor again that it was.
    """
    before = {name: (buffer, buffer.detach().clone()) for name, buffer in _written(module).items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, (buffer, values) in before.items():
                owner, _, own = name.rpartition(".")
                buffer.copy_(values)
                setattr(module.get_submodule(owner), own, buffer)


@contextmanager
def assignments_written(module: torch.nn.Module) -> Iterator[None]:
    """While a module is exported, let a buffer of a part that is assigned anew (`self.h = h`) be written.

    torch.export sees that of the module itself, but leaves out what its parts do.
    """
    parts = [part for part in module.modules() if part is not module]
    found: list[tuple[torch.nn.Module, str, torch.Tensor]] = []

    def before(*_: Any) -> None:
        found[:] = [(part, name, b) for part in parts for name, b in part._buffers.items() if b is not None]

    def after(*_: Any) -> None:
        for part, name, buffer in found:
            now = part._buffers[name]
            if now is not buffer and isinstance(now, torch.Tensor):
                buffer.copy_(now)
                part._buffers[name] = buffer

    hooks = module.register_forward_pre_hook(before), module.register_forward_hook(after)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def mark_written(program: ExportedProgram, names: Collection[str]) -> None:
    """Let buffers of a functional program become what they are, as far as it does not write to them."""
    signature, output = program.graph_signature, program.graph.output_node()
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    read = {
        target: nodes[name]
        for name, target in signature.inputs_to_buffers.items()
        if target in names and nodes[name].users and target not in signature.buffers_to_mutate.values()
    }
    output.args = ((*read.values(), *output.args[0]),)
    signature.output_specs[:0] = [
        OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(node.name), target)
        for target, node in read.items()
    ]


def rename_buffers(program: ExportedProgram, names: Mapping[str, str]) -> None:
    """Other names for buffers of a program."""
    signature = program.graph_signature
    for specs in (signature.input_specs, signature.output_specs):
        specs[:] = [replace(s, target=names.get(str(s.target), s.target)) for s in specs]
    # New dictionaries: those of a program that was given are the caller's.
    program._state_dict = {names.get(name, name): value for name, value in program._state_dict.items()}
    program._constants = {names.get(name, name): value for name, value in program._constants.items()}


def as_sequences(samples: Iterable[Any]) -> list[Frames]:
    """Samples as sequences of frames: a list of tuples is one; any other sample is a sequence of its own."""
    return [frames_of(sample) for sample in samples]


def frames_of(sample: Any) -> Frames:
    """The frames of one sample."""
    if isinstance(sample, list) and sample and all(isinstance(frame, tuple) for frame in sample):
        return [plain_inputs(frame) for frame in sample]
    return [plain_inputs(tuple(sample) if isinstance(sample, tuple | list) else (sample,))]


@dataclass(frozen=True)
class StatePort:
    """A buffer while it is an input and an output: its name, and what it starts from.

    One that other methods have too has the same scale and zero point in all of them.
    """

    buffer: str
    placeholder: str
    initial: torch.Tensor
    parameters: tuple[float, int] | None = None


@dataclass(frozen=True)
class WithStatePorts:
    """A program that remembers nothing: its last inputs and outputs are states of the one it stands for."""

    program: ExportedProgram
    states: tuple[StatePort, ...]
    original: GraphModule  # with buffers, and the inputs and outputs of the user

    @property
    def pairs(self) -> dict[str, NextState]:
        """What each state's input becomes."""
        first = len(self.program.graph_signature.user_outputs) - len(self.states)
        return {
            state.placeholder: NextState(first + i, state.parameters) for i, state in enumerate(self.states)
        }

    def samples(self, sequences: Iterable[Frames]) -> Iterator[Inputs]:
        """The frames of sequences with the state that the float model has there."""
        run = self.program.module(check_guards=False)
        for frames in sequences:
            state = [port.initial.clone() for port in self.states]
            for number, frame in enumerate(frames):
                sample = (*pytree.tree_leaves(frame), *state)
                yield sample
                with (
                    torch.no_grad(),
                    said_of(f"calibration, frame {number} of a sequence"),
                ):  # not around the yield: gradients are the caller's
                    found = run(*sample)
                state = [t.clone() for t in found[len(found) - len(state) :]]

    def spread(self, sequences: Sequence[Frames]) -> Iterator[Inputs]:
        """The same with frames from everywhere first, unless there are too many to hold.

        Behind them come the first frames of all sequences, after so many that none of these is kept back from
        observing: the initial values of states are seen, however rare they are.
        """
        frames_given = sum(map(len, sequences))
        firsts = [next(self.samples([frames])) for frames in sequences if frames]
        size = (
            sum(t.numel() * t.element_size() for t in firsts[0] if isinstance(t, torch.Tensor))
            if firsts
            else 0
        )
        if frames_given * size > _ROOM:
            yield from self.samples(sequences)
        elif frames_given > len(sequences):
            yield from from_everywhere(list(self.samples(sequences)))
        yield from firsts

    def with_buffers(self, quantized: GraphModule) -> GraphModule:
        """A quantized model with state ports, as one with buffers: the function of the user."""
        graph = Graph()
        env: dict[Node, Node] = {}
        root = torch.nn.Module()
        ports = {port.placeholder: port for port in self.states}
        placeholders = quantized.graph.find_nodes(op="placeholder")
        users = [n for n in placeholders if n.name not in ports]
        for node in users:
            env[node] = graph.node_copy(node)
        names: dict[Node, str] = {}
        for node in (n for n in placeholders if n.name in ports):
            port = ports[node.name]
            names[node] = port.buffer
            env[node] = graph.get_attr(port.buffer)
            env[node].meta = dict(node.meta)
        for node in quantized.graph.nodes:
            if node.op not in ("placeholder", "output"):
                env[node] = graph.node_copy(node, env.__getitem__)
        results = pytree.tree_leaves(quantized.graph.output_node().args)
        kept, new = results[: len(results) - len(self.states)], results[len(results) - len(self.states) :]
        values = [env[value] for value in new]
        given = [ports[node.name].parameters for node in names]
        for _ in names:  # what is handed on from state to state is rounded as the last is read
            values = [
                _as_read(graph, value, env[node], parameters)
                for value, node, parameters in zip(values, names, given, strict=True)
            ]
        taken = {env[node] for node in names}  # states that are handed on in float, and written over too
        for at, (value, node) in enumerate(zip(values, names, strict=True)):
            if value is not env[node] and value in taken:
                values[at] = graph.call_function(torch.ops.aten.clone.default, (value,))
                values[at].meta = dict(value.meta)
            taken.add(value)
        for value, node in zip(values, names, strict=True):
            if value is not env[node]:  # this method only reads it
                graph.call_function(torch.ops.aten.copy_.default, (env[node], value))
        graph.output(tuple(env[n] if isinstance(n, Node) else n for n in kept))
        graph._codegen = self.original.graph._codegen
        for name, buffer in (*quantized.named_parameters(), *quantized.named_buffers()):
            _set(root, name, buffer)
        for node in quantized.graph.find_nodes(op="get_attr"):
            if not _has(root, str(node.target)):
                _set(root, str(node.target), _get(quantized, str(node.target)))
        for port in self.states:
            _set(root, port.buffer, port.initial.clone())
        module = GraphModule(root, graph)
        module.meta = dict(quantized.meta)
        for attribute in ("_in_spec", "_out_spec"):
            if hasattr(self.original, attribute):
                setattr(module, attribute, getattr(self.original, attribute))
        return module


def _as_read(graph: Graph, value: Node, state: Node, given: tuple[float, int] | None) -> Node:
    """A new state rounded as all who read it round it: the same function, and the state is int8 then.

    With given parameters it is rounded so even if nobody reads it: another method does.
    """
    steps = {tuple(user.args[1:]) for user in state.users if op_name(user) == _QUANTIZE}
    readers = [user for user in state.users if user.target is not torch.ops.aten.copy_.default]
    if given is not None and not readers:
        steps = {(*given, -128, 127, torch.int8)}
    if value is state or len(steps) != 1 or not all(op_name(user) == _QUANTIZE for user in readers):
        return value
    (parameters,) = steps
    if op_name(value) == _DEQUANTIZE and tuple(value.args[1:]) == parameters:
        return value
    rounded = graph.call_function(
        torch.ops.quantized_decomposed.quantize_per_tensor.default, (value, *parameters)
    )
    back = graph.call_function(
        torch.ops.quantized_decomposed.dequantize_per_tensor.default, (rounded, *parameters)
    )
    for node in (rounded, back):
        node.meta = dict(value.meta)
    if isinstance(fake := value.meta.get("val"), torch.Tensor):
        rounded.meta["val"] = fake.to(torch.int8)
    return back


def with_state_ports(program: ExportedProgram, shared: Collection[str] = ()) -> WithStatePorts | None:
    """A program that writes to buffers as one that takes and returns them; None if it writes to none.

    Buffers that it has in common with other methods (`shared`) are among them, even if it only reads them.
    """
    if not written_buffers(program) and not shared:
        return None
    original = program.module(check_guards=False)
    flat = program.run_decompositions({})
    _write_alike(flat)
    part_states(flat, shared)
    mark_written(flat, shared)
    signature = flat.graph_signature
    if signature.user_inputs_to_mutate:
        return None
    targets = list(signature.buffers_to_mutate.values())
    graph = Graph()
    env: dict[Node, Node] = {}
    specs = {spec.arg.name: spec for spec in signature.input_specs if hasattr(spec.arg, "name")}
    nodes = flat.graph.find_nodes(op="placeholder")
    states = [n for n in nodes if specs[n.name].target in targets]
    states.sort(key=lambda n: targets.index(str(specs[n.name].target)))
    for node in (*(n for n in nodes if n not in states), *states):
        env[node] = graph.node_copy(node)
        env[node].name = node.name
    for node in flat.graph.nodes:
        if node.op not in ("placeholder", "output"):
            env[node] = graph.node_copy(node, env.__getitem__)
            env[node].name = node.name
    outputs = list(zip(signature.output_specs, flat.graph.output_node().args[0], strict=True))
    written = {s.target: _copied_from(n) for s, n in outputs if s.kind is OutputKind.BUFFER_MUTATION}
    returned = [(spec, node) for spec, node in outputs if spec.kind is OutputKind.USER_OUTPUT]
    ends = [*(node for _, node in returned), *(written[target] for target in targets)]
    graph.output(tuple(env[n] if isinstance(n, Node) else n for n in ends))
    inputs = [replace(specs[n.name]) for n in nodes if n not in states]
    inputs += [InputSpec(InputKind.USER_INPUT, specs[n.name].arg, None) for n in states]
    results = [spec for spec, _ in returned]
    results += [
        OutputSpec(OutputKind.USER_OUTPUT, type(specs[n.name].arg)(env[written[target]].name), None)
        for n, target in zip(states, targets, strict=True)
    ]
    users = [spec for spec in inputs if spec.kind is InputKind.USER_INPUT]
    root = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_flatten((tuple(range(len(users))), {}))[1],
        out_spec=pytree.tree_flatten(tuple(range(len(results))))[1],
    )
    values = {**flat.state_dict, **flat.constants}
    made = ExportedProgram(
        root=GraphModule(torch.nn.Module(), graph),
        graph=graph,
        graph_signature=ExportGraphSignature(inputs, results),
        state_dict={k: v for k, v in flat.state_dict.items() if k not in targets},
        range_constraints=flat.range_constraints,
        module_call_graph=[ModuleCallEntry("", root)],
        constants={k: v for k, v in flat.constants.items() if k not in targets},
        verifiers=flat.verifiers,
    )
    ports = [
        StatePort(target, n.name, values[target].detach().clone())
        for n, target in zip(states, targets, strict=True)
    ]
    return WithStatePorts(made, tuple(ports), original)


def _write_alike(program: ExportedProgram) -> None:
    """Give what is written to a buffer the buffer's type and shape: torch leaves both to the write."""
    signature, output = program.graph_signature, program.graph.output_node()
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    buffers = {target: nodes[name].meta["val"] for name, target in signature.inputs_to_buffers.items()}
    values: list[Any] = list(output.args[0])

    def changed(value: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        with program.graph.inserting_before(output):
            made = program.graph.call_function(target, (value, *args), kwargs)
        made.meta = {**value.meta, "val": target(value.meta["val"], *args, **kwargs)}
        return made

    for at, spec in enumerate(signature.output_specs):
        buffer = buffers.get(str(spec.target)) if spec.kind is OutputKind.BUFFER_MUTATION else None
        if buffer is None:
            continue
        if values[at].meta["val"].dtype != buffer.dtype:
            values[at] = changed(values[at], torch.ops.aten._to_copy.default, dtype=buffer.dtype)
        if not same_shape(values[at].meta["val"], buffer):
            values[at] = changed(values[at], torch.ops.aten.expand.default, list(buffer.shape))
        spec.arg = TensorArgument(values[at].name)
    output.args = (tuple(values),)


def _copied_from(value: Any) -> Any:
    while isinstance(value, Node) and op_name(value) == "aten.clone.default":
        value = value.args[0]
    return value


def _get(module: torch.nn.Module, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _has(module: torch.nn.Module, name: str) -> bool:
    try:
        _get(module, name)
    except AttributeError:
        return False
    return True


def _set(root: torch.nn.Module, name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, torch.nn.Module())
        root = getattr(root, part)
    if isinstance(value, torch.nn.Parameter):
        root.register_parameter(last, value)
    elif isinstance(value, torch.Tensor):
        root.register_buffer(last, value)
    else:
        setattr(root, last, value)
