"""Every rewrite of the compiler, in order: a graph is imported, then fused. Each rule keeps every bit."""

from __future__ import annotations

from dataclasses import replace

from openneutron.compiler.graph import fuse as fusion
from openneutron.compiler.graph import fuse_conv, islands, legalize, stores
from openneutron.compiler.graph.shifts import shift_windows
from openneutron.litert.build import Names, ints
from openneutron.litert.ir import Builtin, Graph, Op, Tensor
from openneutron.litert.rules import Group, run
from openneutron.lower.rules import OPTIMIZE, TIDY

IMPORT = (
    Group("fold: what can be computed now", (legalize.fold_constants,)),
    OPTIMIZE,  # a graph of ours has been through it, one from a file has not
)
FUSE = (
    Group(
        "stores: rows written at an index",
        (stores.store_in_place_of_update, stores.join_stores),
    ),
    Group(
        "tables: functions of bytes, first, so that the rules below do not look at thirty operators",
        (
            fusion.merge_tables,
            islands.form_islands,  # what is left of float operators
            fusion.fuse_clamping_table,
        ),
    ),
    Group(
        "convolutions: groups joined, paddings taken in",
        (
            fuse_conv.widen_depthwise_of_one,
            fuse_conv.join_group_convolutions,
            fuse_conv.pad_after_reshape,
            fuse_conv.fuse_padding,
        ),
    ),
    TIDY,  # fusion adds reshapes, and takes out what stood between others
    Group("reads: of what is there already", (fuse_conv.read_planes, fusion.read_parts)),
    TIDY,
    Group("views: of what is reshaped", (fusion.join_transposes, fusion.read_unflattened)),
)
INTERLEAVE = (Group("interleave: for the least memory", (fuse_conv.interleave_planes,)),)
GROUPS = (legalize.LEGALIZE, *IMPORT, *FUSE, *INTERLEAVE)


def import_graph(graph: Graph) -> Graph:
    """The graph in the compiler's few operators; one that makes no sense is a diagnostic."""
    return run(legalize.legalize(graph), IMPORT)


def fuse(graph: Graph) -> Graph:
    """The graph in as few steps as the kernels can take."""
    fused = run(shift_windows(graph), FUSE)
    return separate_outputs(fused).verify()  # last: dropping a no-op may make an output an input


def separate_outputs(graph: Graph) -> Graph:
    """Give every program output a tensor of its own: an input, a constant or another output is copied.

    A copy is a RESHAPE to the same shape; inputs and outputs are the caller's memory, so it moves bytes. What
    a state becomes is copied too: to the state's memory, unless it can be computed there.
    """
    names = Names(t.name for t in graph.tensors())
    taken: set[Tensor] = set(graph.inputs)
    outputs: list[Tensor] = []
    copies: list[Op] = []
    states, makers = {t for _, t, _ in graph.state_tensors()}, graph.producers()
    for number, t in enumerate(graph.outputs):
        source, is_state = t, number >= len(graph.returned)
        if is_state and _is_view_of(t, states, makers):
            # Two states that change places are copied aside first: a transpose is never a view.
            aside = replace(t, name=names.fresh(f"{t.name}_aside"))
            perm = ints(range(t.rank), names.fresh(f"{t.name}_perm"))
            copies.append(Op(Builtin.TRANSPOSE, [t, perm], [aside], {}, (t.name,)))
            source = t = aside
        if t in taken or t.is_const or is_state:
            t = replace(source, name=names.fresh(f"{t.name}_copy"), data=None)
            shape = ints(t.shape, names.fresh(f"{t.name}_shape"))
            copies.append(Op(Builtin.RESHAPE, [source, shape], [t], {"newShape": t.shape}, (source.name,)))
        taken.add(t)
        outputs.append(t)
    return Graph(list(graph.inputs), outputs, [*graph.ops, *copies], graph.name, graph.states)


def _is_view_of(tensor: Tensor, states: set[Tensor], makers: dict[Tensor, Op]) -> bool:
    """Whether a tensor may lie in the memory of a state as it was before."""
    while tensor in makers and makers[tensor].kind in (Builtin.RESHAPE, Builtin.SLICE):
        tensor = makers[tensor].operand(0)
    return tensor in states
