"""Conversions of graph inputs and outputs, left to the runtime."""

from __future__ import annotations

from dataclasses import replace

from openneutron.litert.ir import Builtin, Graph, Op, Tensor
from openneutron.litert.perm import Perm, permutation, to_first, to_last


def strip_border_transposes(graph: Graph) -> tuple[Graph, list[bool], list[bool]]:
    """Drop the conversions of inputs and outputs; the tensors keep their names and become channels last.

    Returns the graph and, for each input and output, whether the runtime has to transpose it. Only rank 4:
    the payload's format flag means nothing for others.
    """
    producers, consumers = graph.producers(), graph.consumers()
    outputs = set(graph.outputs)
    new: dict[Tensor, Tensor] = {}
    dropped: set[Op] = set()
    inputs_last, outputs_last = [], []
    for t in graph.given:
        readers = consumers.get(t, [])
        strip = bool(readers) and t not in outputs
        strip = strip and all(_converts(op, to_last(4)) and op.output not in outputs for op in readers)
        inputs_last.append(strip)
        if strip:
            new[t] = replace(t, shape=readers[0].output.shape)
            new.update({op.output: new[t] for op in readers})
            dropped.update(readers)
    for t in graph.returned:
        op = producers.get(t)
        strip = op is not None and _converts(op, to_first(4)) and not consumers.get(t)
        if op is not None and strip:
            source = op.operand(0)
            # An input, or what two outputs are made of, cannot take on the output's name.
            strip = source in producers and source not in outputs and source not in new
            if strip:
                new[source] = new[t] = replace(t, shape=source.shape)
                dropped.add(op)
        outputs_last.append(t in new)  # also when it is returned a second time

    def moved(tensors: list[Tensor]) -> list[Tensor]:
        return [new.get(t, t) for t in tensors]

    ops = [
        replace(op, inputs=[t if t is None else new.get(t, t) for t in op.inputs], outputs=moved(op.outputs))
        for op in graph.ops
        if op not in dropped
    ]
    stripped = Graph(moved(graph.inputs), moved(graph.outputs), ops, graph.name, graph.states)
    return stripped.verify(), inputs_last, outputs_last


def _converts(op: Op, perm: Perm) -> bool:
    return op.kind is Builtin.TRANSPOSE and op.operand(1).is_const and permutation(op) == perm
