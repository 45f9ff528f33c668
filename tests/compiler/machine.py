"""An independent machine for memory plans: real bytes at the planned offsets, operators run by the oracle.

It knows nothing of kernels. If two live tensors shared a byte, if an operator ran too early, or if fusion
changed a value, the outputs would differ from those of the untouched graph.
"""

from __future__ import annotations

import numpy as np

from openneutron.compiler.graph.fuse_conv import PADDING, PLANAR
from openneutron.compiler.graph.stores import STORE
from openneutron.compiler.graph.tables import is_table
from openneutron.compiler.memory.schedule import MemoryPlan
from openneutron.compiler.memory.storage import Home
from openneutron.litert.ir import Builtin, Graph, Op, Tensor
from openneutron.litert.reference import run_reference


def run_plan(graph: Graph, plan: MemoryPlan, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a fused graph, run step by step in the planned memory."""
    scratch = np.random.default_rng(0).integers(0, 256, plan.scratch_bytes).astype(np.uint8)
    ins = [np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in inputs]
    outs = [np.zeros(t.nbytes, np.uint8) for t in graph.outputs]

    def memory(t: Tensor) -> np.ndarray:
        """The bytes of a tensor where they lie: rows of its last axis, or one row."""
        view = plan.schedule.storage.places[t]
        area = {Home.SCRATCH: [scratch], Home.INPUT: ins, Home.OUTPUT: outs}[view.buffer.home]
        base = plan.offsets[view.buffer] if view.buffer.home is Home.SCRATCH else 0
        whole = area[0 if view.buffer.home is Home.SCRATCH else view.buffer.number]
        begin = base + view.offset
        run = t.shape[-1] if view.pitch else t.nbytes
        rows = t.nbytes // run
        assert begin + (rows - 1) * view.pitch + run <= len(whole)
        return np.lib.stride_tricks.as_strided(whole[begin:], (rows, run), (view.pitch, 1))

    for op in plan.schedule.steps:
        values = [
            None
            if t is None
            else t.array
            if t.is_const
            else memory(t).flatten().view(t.dtype).reshape(t.shape)
            for t in op.inputs
        ]
        for t, value in zip(op.outputs, run_op(op, values), strict=True):
            assert not any(memory(t) is x for x in ins)
            memory(t)[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8).reshape(memory(t).shape)
    return [o.view(t.dtype).reshape(t.shape) for o, t in zip(outs, graph.outputs, strict=True)]


def run_op(op: Op, values: list[np.ndarray | None]) -> list[np.ndarray]:
    """One operator of the compiler's dialect, by the oracle."""
    if is_table(op):
        source, table = values
        assert source is not None and table is not None
        return [table[source.view(np.uint8)].view(op.output.dtype)]
    if op.custom_name == STORE:
        target, part, index = values
        assert target is not None and part is not None and index is not None
        axis, result = op.options["axis"], target.copy()
        for place, rows in zip(index.reshape(-1), np.split(part, index.size, axis), strict=True):
            np.moveaxis(result, axis, 0)[place : place + rows.shape[axis]] = np.moveaxis(rows, axis, 0)
        return [result]
    tensors = list(op.inputs)
    options = dict(op.options)
    kind = op.kind
    if op.custom_name == PLANAR:
        planes = op.operand(0)
        assert values[0] is not None
        values = [np.ascontiguousarray(values[0].transpose(0, 2, 3, 1)), *values[1:]]
        tensors[0] = Tensor(planes.name, values[0].shape, planes.dtype, planes.quant)
        kind = Builtin.CONV_2D
    if PADDING in options:
        top, bottom, left, right = options.pop(PADDING)
        source = tensors[0]
        assert source is not None and source.quant is not None and values[0] is not None
        amounts = ((0, 0), (top, bottom), (left, right), (0, 0))
        values = [
            np.pad(
                values[0],
                amounts,
                constant_values=-128 if kind is Builtin.MAX_POOL_2D else source.quant.zero_point[0],
            ),
            *values[1:],
        ]
        tensors[0] = Tensor(source.name, values[0].shape, source.dtype, source.quant)
    single = Graph(
        list(dict.fromkeys(t for t in tensors if t is not None and not t.is_const)), op.outputs, []
    )
    single.ops.append(Op(kind, tensors, op.outputs, options))
    feed = {t: v for t, v in zip(tensors, values, strict=True) if t is not None}
    return run_reference(single, [feed[t] for t in single.inputs])
