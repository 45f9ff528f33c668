"""Windows that move on: what a network saw last is shifted in place, and the new is written behind it.

`window = cat(ring, frame); ring = window[1:]` would copy the ring into the window, the frame behind it and
the window's end back. So the window is what is remembered, not the ring, and it becomes the next window by
two operators of the compiler's own: SHIFT moves what is kept, over what it was, and APPEND writes a new part,
unless it is computed there. What SHIFT leaves open holds anything: parts are appended until nothing is open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from openneutron.compiler.graph.shapes import Box, concat_axis, slice_of
from openneutron.litert.build import Names, ints
from openneutron.litert.ir import Builtin, Graph, Op, State, Tensor
from openneutron.litert.rewriter import drop_dead_ops

SHIFT, APPEND = "Shift", "Append"
LONGEST = 2
"""So many times as long as what is kept of it may a window be: of a longer one the ring is remembered."""


@dataclass(frozen=True)
class _Window:
    """A concatenation in which a state is, or a part of it."""

    op: Op
    part: int  # which operand that is
    box: Box | None = None  # of the window before, where that lies: so it is shifted
    cut: bool = False  # the state is that box alone, not the window yet


def shift_windows(graph: Graph) -> Graph:
    """The same function with states in windows: shifted in place, or the only part of one that is copied."""
    for number in range(len(graph.states)):
        for window in _windows(graph, number):
            graph = _shifted(graph, number, window)
    return drop_dead_ops(graph).verify() if graph.states else graph


def _windows(graph: Graph, number: int) -> list[_Window]:
    """The concatenations with a state in them, at most one of which is what the state becomes: the first."""
    _, old, new = graph.state_tensors()[number]
    makers = graph.producers()

    def origin(tensor: Tensor) -> Tensor:
        while tensor in makers and makers[tensor].kind is Builtin.RESHAPE:
            tensor = makers[tensor].operand(0)
        return tensor

    new = origin(new)
    shifted: list[_Window] = []
    copied: list[_Window] = []
    for op in graph.ops:
        if op.kind is not Builtin.CONCATENATION or op.options.get("fusedActivationFunction"):
            continue
        window, axis = op.output, concat_axis(op)
        for part in range(len(op.inputs)):
            kept, cut = op.operand(part), makers.get(op.operand(part))
            if origin(kept) is old:
                parts = [origin(op.operand(i)) for i in range(len(op.inputs))]
                box = _kept(op, new, makers.get(new), parts)
                fits = box is not None and box.size == kept.shape and _along(box, window, axis)
                fits = fits and window.nbytes <= LONGEST * old.nbytes and window.quant == old.quant
                if fits and not shifted and window not in graph.returned:
                    shifted.append(_Window(op, part, box, True))
                else:
                    copied.append(_Window(op, part))
                break
            if new is window and cut is not None and origin(cut.operand(0)) is old:
                box = slice_of(cut) if cut.operand(0).shape == window.shape else None
                if box is not None and _along(box, window, axis):
                    shifted.append(_Window(op, part, box))
                    break
    return shifted + copied


def _kept(op: Op, new: Tensor, made: Op | None, parts: list[Tensor]) -> Box | None:
    """Where in the window of a concatenation of `parts`, reshaped, a tensor lies; None if it does not."""
    if made is not None and op.output in made.inputs:
        return slice_of(made)
    begin = [0] * op.output.rank
    for part, tensor in enumerate(parts):
        if tensor is new:
            return Box(tuple(begin), op.operand(part).shape)
        begin[concat_axis(op)] += op.operand(part).shape[concat_axis(op)]
    return None


def _along(box: Box, window: Tensor, axis: int) -> bool:
    """Whether a box takes all of a window but along one axis."""
    return box.size == (*window.shape[:axis], box.size[axis], *window.shape[axis + 1 :])


def _shifted(graph: Graph, number: int, found: _Window) -> Graph:
    """The graph with SHIFT and APPEND for the concatenation, and the window as the state if it was cut."""
    op, window, axis = found.op, found.op.output, concat_axis(found.op)
    last = op.operand(found.part)  # a state that is no window is copied into one
    box = found.box or Box((0,) * last.rank, last.shape)
    names = Names(t.name for t in graph.tensors())
    state, old, _ = graph.state_tensors()[number]
    inputs, outputs, states = list(graph.inputs), list(graph.outputs), list(graph.states)
    before: list[Op] = []  # at the start

    def reshaped(source: Tensor, result: Tensor) -> Op:
        shape = ints(result.shape, names.fresh(f"{result.name}_shape"))
        return Op(Builtin.RESHAPE, [source, shape], [result], {"newShape": result.shape}, op.origin)

    if found.box is not None:
        last = replace(window, name=names.fresh(f"{old.name}_window"))
        before = [reshaped(old, last)]
    if found.cut:
        initial = np.full(window.shape, state.initial.flat[0], state.initial.dtype)
        ends = (begin + size for begin, size in zip(box.begin, box.size, strict=True))
        initial[tuple(map(slice, box.begin, ends))] = state.initial.reshape(box.size)
        ring = replace(window, name=names.fresh(f"{old.name}_kept"), shape=box.size)
        bounds = (ints(v, names.fresh(f"{ring.name}_box")) for v in (box.begin, box.size))
        before = [Op(Builtin.SLICE, [last, *bounds], [ring], {}, op.origin), reshaped(ring, old)]
        inputs[len(graph.given) + number], states[number] = last, State(state.name, initial)
        outputs[len(graph.returned) + number] = window
    lengths = [op.operand(i).shape[axis] for i in range(len(op.inputs))]
    begins = list(accumulate(lengths, initial=0))
    others = [i for i in range(len(lengths)) if i != found.part]
    results = [replace(window, name=names.fresh(f"{window.name}_shifted")) for _ in others] + [window]
    kept = {"axis": axis, "begin": box.begin[axis], "length": box.size[axis], "at": begins[found.part]}
    made = [Op(Builtin.CUSTOM, [last], [results[0]], kept, op.origin, SHIFT)]
    for i, source, result in zip(others, results[:-1], results[1:], strict=True):
        part = {"axis": axis, "at": begins[i]}
        made.append(Op(Builtin.CUSTOM, [source, op.operand(i)], [result], part, op.origin, APPEND))
    ops = [*before]
    for other in graph.ops:
        ops += made if other is op else [other]
    return Graph(inputs, outputs, ops, graph.name, tuple(states))
