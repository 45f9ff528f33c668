"""Partitioning before Edge: ExecuTorch is given only what stays on the CPU.

The operators, rules and reasons are `NeutronPartitioner`'s. Each partition of the exported program is lowered
by `NeutronBackend` and becomes one call of a delegate, in the form ExecuTorch itself gives it; the program
that is left is then lowered as usual. A delegate carries a stand-in for what it computes, because ExecuTorch
runs that in every one of its passes to learn the shapes of the results; the operators themselves are kept
with the partition (`openneutron.package.program.inside`).
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
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

from openneutron.environment.stopwatch import PARTITION, PASSES, stage
from openneutron.fast_export.shortcuts import BEFORE_EDGE, is_taken
from openneutron.fx import copy_graph, remove_assertions
from openneutron.ops.spec import OPEN
from openneutron.options import CompileOptions
from openneutron.package.backend import NeutronBackend, NeutronPartitioner
from openneutron.package.state import is_int8_in_all, keep_states_in_int8
from openneutron.partition.partitioner import BACKEND_ID
from openneutron.passes.base import run_passes
from openneutron.passes.edge import EDGE_PASSES
from openneutron.passes.functional import (
    copy_views,
    decompose_nodes,
    is_functional,
    name_as_edge,
    name_outputs,
    restore_view,
)
from openneutron.tensors import plain


def goes_before_edge(options: CompileOptions, etrecord: bool = False) -> bool:
    """Whether partitions are taken before Edge: unless a profile will want the whole Edge program.

    An ETRecord is that program, and its handles are what ExecuTorch's Inspector names the events by.
    """
    return is_taken(BEFORE_EDGE) and not (etrecord or options.use_profiling)


def take_partitions(
    program: ExportedProgram, partitioner: NeutronPartitioner, may_change: bool = False
) -> ExportedProgram:
    """The exported program with a call of a delegate in the place of each partition.

    Unless the one that is given `may_change`, it stays as it is.
    """
    return take_all_partitions({"forward": program}, {"forward": partitioner}, may_change)["forward"]


def take_all_partitions(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, NeutronPartitioner],
    may_change: bool = False,
    shared: Collection[str] = (),
) -> dict[str, ExportedProgram]:
    """The same for the methods of a program, which have the `shared` states in common."""
    with stage(PASSES):
        ready = {name: _functional(p, partitioners[name], may_change) for name, p in programs.items()}
        in_float = {name for name in shared if not is_int8_in_all(ready.values(), name)}
        for program in ready.values():
            keep_states_in_int8(program, in_float)
    return {name: _taken(program, partitioners[name], shared) for name, program in ready.items()}


def _functional(
    program: ExportedProgram, partitioner: NeutronPartitioner, may_change: bool
) -> ExportedProgram:
    program = program if may_change else copy_graph(program)
    program = partitioner.transform_for_pre_decomposition(program)
    if not is_functional(program):
        program = program.run_decompositions({})
    remove_assertions(program)
    return program


def _taken(
    program: ExportedProgram, partitioner: NeutronPartitioner, shared: Collection[str]
) -> ExportedProgram:
    with stage(PASSES):
        program.graph.eliminate_dead_code()
        copy_views(program)
        _finish(program)
    with stage(PARTITION):
        left = partitioner.left_whole(program)
    with stage(PASSES):
        if changed := decompose_nodes(program, left, partitioner.decompositions):
            remove_assertions(program)
            _finish(program)
    return _Taking(program, shared).take(partitioner.take(program, changed))


def _finish(program: ExportedProgram) -> None:
    run_passes(program.graph_module, EDGE_PASSES)
    name_as_edge(program)
    name_outputs(program)


class _Taking:
    """Takes one partition after the other out of a program.

    ExecuTorch sorts the graph anew after each (`legalize_graph`), and with it the operators, inputs and
    outputs of the partitions to come. The same is done here with a list: both ways give the same microcode.
    """

    def __init__(self, program: ExportedProgram, shared: Collection[str]):
        self.program, self.graph, self.shared = program, program.graph, shared
        self.order = list(program.graph.nodes)
        signature = program.graph_signature
        mutated = set(signature.buffers_to_mutate.values())
        self.states = {
            spec.arg.name: spec
            for spec in signature.input_specs
            if spec.kind is InputKind.BUFFER and spec.target in mutated
        }
        self.constants = {
            spec.arg.name: spec
            for spec in signature.input_specs
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
            and spec.target not in mutated
        }

    def take(self, groups: Iterable[tuple[DelegationSpec, Iterable[Node]]]) -> ExportedProgram:
        """The program with these groups of nodes replaced."""
        for number, (spec, nodes) in enumerate(groups):
            self._take(f"lowered_module_{number}", set(nodes), spec.compile_specs)
        return self._rest()

    def _take(self, name: str, members: Collection[Node], specs: list[CompileSpec]) -> None:
        ordered = [node for node in self.order if node in members]
        sources = list(dict.fromkeys(s for n in ordered for s in n.all_input_nodes if s not in members))
        constants = [s for s in sources if s.name in self.constants]
        open_converter = CompileOptions.from_compile_specs(specs).converter == OPEN
        states = self._owned(members, sources) if open_converter else {}
        inputs = [s for s in sources if s.name not in self.constants and s not in states]
        outputs = [n for n in ordered if any(user not in members for user in n.users)]
        for node in (*inputs, *outputs):
            # Eager PyTorch may leave a tensor in any order; ExecuTorch keeps two, and decides after this.
            node.meta["val"] = plain(node.meta["val"])
        inside = self._inside(ordered, constants, states, inputs, outputs)
        made = NeutronBackend.preprocess(inside, specs)
        stand_in = make_stand_in([n.meta["val"] for n in inputs], [n.meta["val"] for n in outputs])
        lowered = LoweredBackendModule(stand_in, BACKEND_ID, made.processed_bytes, specs)
        partition = replace(made._delegate_info_meta, inside=inside)
        lowered.meta = {"debug_handle_map": made.debug_handle_map, "_delegate_info_meta": partition}
        self.program.graph_module.add_module(name, lowered)
        new = self._call(name, inputs, outputs)
        at = self.order.index(ordered[-1])
        self.order[at + 1 : at + 1] = new
        for node in reversed(ordered):
            self.graph.erase_node(node)
        unused = {c for c in (*constants, *states) if not c.users}
        self.order = sorted_as_executorch(n for n in self.order if n not in members and n not in unused)
        for node in unused:
            self.graph.erase_node(node)

    def _owned(self, members: Collection[Node], sources: list[Node]) -> dict[Node, Node]:
        """The buffers that only this partition reads and writes, each with what it becomes: they are its own.

        ExecuTorch knows nothing of them from here on: they are no inputs, and what they become no outputs.
        """
        output = self.graph.output_node()
        specs = self.program.graph_signature.output_specs
        values = list(output.args[0])
        returned = {v for s, v in zip(specs, values, strict=True) if s.kind is not OutputKind.BUFFER_MUTATION}
        named = {str(self.states[n.name].target): n for n in self.order if n.name in self.states}
        owned = {
            named[str(spec.target)]: (spec, value)
            for spec, value in zip(specs, values, strict=True)
            if spec.kind is OutputKind.BUFFER_MUTATION
            and str(spec.target) in named
            and str(spec.target) not in self.shared  # the delegates of other methods have it too
        }

        def is_own(state: Node) -> bool:
            _, value = owned[state]
            read_by = {new for _, new in owned.values()}
            used = all(user in members or (user is output and state in read_by) for user in state.users)
            foreign = value.name in self.states and value not in owned
            known = value in members or value in owned or (value in sources and not foreign)
            kept = state.meta["val"].dtype in (torch.int8, torch.float32)
            return used and known and state not in returned and kept

        while refused := [state for state in owned if not is_own(state)]:
            for state in refused:
                del owned[state]
        met = {state for state in owned if state in sources}
        while more := {v for s in met for v in [owned[s][1]] if v in owned} - met:
            met |= more
        owned = {state: found for state, found in owned.items() if state in met}
        if owned:
            gone = [spec for spec, _ in owned.values()]
            output.args = (tuple(v for s, v in zip(specs, values, strict=True) if s not in gone),)
            specs[:] = [spec for spec in specs if spec not in gone]
        return {state: value for state, (_, value) in owned.items()}

    def _call(self, name: str, inputs: list[Node], outputs: list[Node]) -> list[Node]:
        with self.graph.inserting_before(self.graph.output_node()):
            module = self.graph.get_attr(name)
            call = self.graph.call_function(executorch_call_delegate, (module, *inputs))
            call.meta["val"] = [n.meta["val"] for n in outputs]
            picks = []
            for index, output in enumerate(outputs):
                pick = self.graph.call_function(operator.getitem, (call, index))
                pick.meta["val"] = output.meta["val"]
                output.replace_all_uses_with(pick)
                picks.append(pick)
        return [call, *picks]

    def _inside(
        self,
        nodes: list[Node],
        constants: list[Node],
        states: dict[Node, Node],
        inputs: list[Node],
        outputs: list[Node],
    ) -> ExportedProgram:
        """The partition as a program of its own."""
        graph = Graph()
        env: dict[Node, Node] = {}
        for node in (*constants, *states, *inputs):
            env[node] = graph.placeholder(node.name)
            env[node].meta = dict(node.meta)
        for node in nodes:
            env[node] = graph.node_copy(node, env.__getitem__)
            env[node].name = node.name
        graph.output(tuple(env[node] for node in (*states.values(), *outputs)))
        stored = [*constants, *states]
        specs = [self.constants.get(node.name) or self.states[node.name] for node in stored]
        targets = {str(spec.target) for spec in specs}
        return _program(
            GraphModule(torch.nn.Module(), graph),
            [replace(s, arg=TensorArgument(env[c].name)) for s, c in zip(specs, stored, strict=True)],
            [env[node] for node in inputs],
            [env[node] for node in outputs],
            {k: v for k, v in self.program.state_dict.items() if k in targets},
            {k: v for k, v in self.program.constants.items() if k in targets},
            {str(self.states[state.name].target): env[value] for state, value in states.items()},
        )

    def _rest(self) -> ExportedProgram:
        """What is left, in the order ExecuTorch would give it, without the constants that nobody reads."""
        graph = Graph()
        env: dict[Node, Node] = {}
        modules = {n: n.args[0] for n in self.order if n.target is executorch_call_delegate}
        for node in self.order:
            for needed in (modules[node], node) if node in modules else (node,):
                env[needed] = graph.node_copy(needed, env.__getitem__)
                env[needed].name = needed.name
                env[needed].meta.pop("delegation_tag", None)
                restore_view(env[needed])
        name_outputs(self.program)
        old = self.program.graph_signature
        there = {node.name for node in self.order}
        inputs = [
            s
            for s in old.input_specs
            if getattr(s.arg, "name", None) in there or s.kind is InputKind.USER_INPUT
        ]
        targets = {s.target for s in inputs}
        return self.program._update(
            GraphModule(self.program.graph_module, graph),
            ExportGraphSignature(inputs, old.output_specs),
            state_dict={k: v for k, v in self.program.state_dict.items() if k in targets},
            constants={k: v for k, v in self.program.constants.items() if k in targets},
        )


def sorted_as_executorch(nodes: Iterable[Node]) -> list[Node]:
    """Nodes so that each follows what it reads, first come, first served, as `legalize_graph` has them."""
    nodes = list(nodes)
    position = {node: index for index, node in enumerate(nodes)}
    waits = {node: sum(source in position for source in node.all_input_nodes) for node in nodes}
    queue = deque(node for node in nodes if not waits[node])
    result = []
    while queue:
        result.append(node := queue.popleft())
        for user in sorted(node.users, key=position.__getitem__):
            waits[user] -= 1
            if not waits[user]:
                queue.append(user)
    assert len(result) == len(nodes), "a partition reads what needs its results"
    return sorted(result, key=lambda node: node.op == "output")  # what nobody reads may come behind it


def make_stand_in(inputs: Sequence[Any], outputs: Sequence[torch.Tensor]) -> ExportedProgram:
    """A program that takes these and returns tensors like those, whatever is in them."""
    graph = Graph()
    takes = []
    for index, value in enumerate(inputs):
        takes.append(graph.placeholder(f"input_{index}"))
        takes[-1].meta["val"] = value
    returns = []
    for value in outputs:
        sizes = list(value.shape), list(value.stride())
        made = graph.call_function(torch.ops.aten.empty_strided.default, sizes, {"dtype": value.dtype})
        made.meta["val"] = value
        returns.append(made)
    graph.output(tuple(returns))
    return _program(GraphModule(torch.nn.Module(), graph), [], takes, returns, {}, {})


def _program(
    module: GraphModule,
    constants: list[InputSpec],
    inputs: list[Node],
    outputs: list[Node],
    state_dict: dict[str, Any],
    lifted: dict[str, Any],
    written: dict[str, Node] | None = None,
) -> ExportedProgram:
    """A program of these parts; `written` is what its buffers become, first among its results."""
    mutations = [
        OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(node.name), target)
        for target, node in (written or {}).items()
    ]
    takes = [InputSpec(InputKind.USER_INPUT, TensorArgument(n.name), None) for n in inputs]
    returns = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None) for n in outputs]
    signature = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_flatten((tuple(inputs), {}))[1],
        out_spec=pytree.tree_flatten(tuple(outputs))[1],
    )
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=ExportGraphSignature([*constants, *takes], [*mutations, *returns]),
        state_dict=state_dict,
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", signature)],
        constants=lifted,
    )
