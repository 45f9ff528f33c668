"""Emission of cascades in bands: every tile is a cascade record, its stages narrowed to columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from openneutron.compiler.emit.emit import tensor_ref
from openneutron.compiler.memory.cascade import Band, CascadePlan, Columns
from openneutron.compiler.memory.schedule import MemoryPlan
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import Cascade, KernelCall, Ref, Region
from openneutron.compiler.select.by_rows import across, by_rows
from openneutron.compiler.select.constants import ConstPool
from openneutron.compiler.select.context import dense_strides
from openneutron.compiler.select.select import select
from openneutron.litert.ir import Op, Tensor


def emit_bands(
    ops: Sequence[Op], cascade: CascadePlan, plan: MemoryPlan, pool: ConstPool
) -> list[list[KernelCall]]:
    """The records of every band: of each of its tiles a cascade and the stages, one for each operator."""
    result = []
    for band in cascade.bands:
        whole = [_stage(op, band, plan, pool) for op in ops]
        calls: list[KernelCall] = []
        for tile in band.tiles:
            columns = {op.output: span for op, span in zip(ops, tile, strict=True)}
            columns.pop(ops[-1].output)  # this one is whole
            stages = [narrowed(*item, columns) for item in zip(whole, ops, tile, strict=True)]
            calls += [Cascade(len(stages), len(band.steps), band.steps), *stages]
        result.append(calls)
    return result


def _stage(op: Op, band: Band, plan: MemoryPlan, pool: ConstPool) -> KernelCall:
    """The call of a stage with its rows counted, as wide as the map."""

    def ref(tensor: Tensor) -> Ref:
        ring = band.rings.get(plan.schedule.storage.places[tensor].buffer)
        if ring is None:
            return tensor_ref(plan, tensor)
        return Ref(Region.SCRATCH, rows=ring.rows, offset=plan.offsets[ring.buffer])

    calls = by_rows(op, select(op, ref, pool), lambda tensor: dense_strides(tensor.shape))
    assert calls is not None and len(calls) == 1, f"{op!r} is no stage that can be cut"
    return calls[0]


def narrowed(call: Any, op: Op, span: Columns, columns: dict[Tensor, Columns]) -> KernelCall:
    """A stage narrowed to columns of its output; of maps between stages only `columns` are there."""
    if isinstance(call, mc.WindowForm):
        return _window(call, op, span, columns)
    pixel, height = op.output.shape[3], op.output.shape[1]

    def there(ref: Ref, tensor: Tensor) -> tuple[Ref, int]:
        """Where the first column is, and the bytes from one row to the next."""
        begin, end = columns.get(tensor, (0, tensor.shape[2]))
        return ref.plus((span[0] - begin) * pixel), (end - begin) * pixel

    length = (span[1] - span[0]) * pixel
    if isinstance(call, mc.RowsForm):
        source, pitch = there(call.input, op.operand(0))
        output, output_pitch = there(call.output, op.output)
        return replace(
            call, input=source, output=output, length=length, input_pitch=pitch, output_pitch=output_pitch
        )
    assert isinstance(call, mc.WalkForm)
    walk, pad = call.walk, mc.MAX_RANK - 2
    parts = zip((walk.a, walk.b, walk.output), (op.operand(0), op.operand(1), op.output), strict=True)
    (a, a_row), (b, b_row), (output, output_row) = (there(*part) for part in parts)
    dims = (height, *[1] * pad, length)
    rows = ((row, *[0] * pad, 1) for row in (a_row, b_row, output_row))
    return replace(call, walk=mc.Broadcast(a, b, output, dims, *rows))


def _window(call: mc.WindowForm, op: Op, span: Columns, columns: dict[Tensor, Columns]) -> KernelCall:
    w, source = call.window, op.operand(0)
    begin, end = span
    input_view, output_view = call.input, call.output
    if source in columns:
        low, high = columns[source]
        input_view = replace(input_view, row=(high - low) * input_view.pixel)
    else:
        low, high = across(w, source).needed(begin, end)
        input_view = replace(input_view, ref=input_view.ref.plus(low * input_view.pixel))
    if op.output in columns:
        output_view = replace(output_view, row=(end - begin) * output_view.pixel)
    else:
        output_view = replace(output_view, ref=output_view.ref.plus(begin * output_view.pixel))
    window = replace(w, in_w=high - low, out_w=end - begin, pad_left=w.pad_left + low - begin * w.stride_w)
    return replace(call, input=input_view, output=output_view, window=window)
