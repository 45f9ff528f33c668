"""The table of ONNX operators: one entry per operator, by domain and name."""

from __future__ import annotations

from openneutron.onnx.ops import elementwise, matrix, quantized, recurrent, reduce, resize, shape, window
from openneutron.onnx.spec import OnnxOp

TABLE: tuple[OnnxOp, ...] = tuple(
    sorted(
        (
            *elementwise.OPERATORS,
            *matrix.OPERATORS,
            *quantized.OPERATORS,
            *recurrent.OPERATORS,
            *reduce.OPERATORS,
            *resize.OPERATORS,
            *shape.OPERATORS,
            *window.OPERATORS,
        ),
        key=lambda op: (op.domain, op.name),
    )
)
BY_NAME: dict[tuple[str, str], OnnxOp] = {(op.domain, op.name): op for op in TABLE}
assert len(BY_NAME) == len(TABLE), "an operator is in the table twice"
