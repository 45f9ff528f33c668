"""The operator table: one `OpSpec` per operator, read by quantizer, partitioner, lowering, docs and tests."""

from __future__ import annotations

from openneutron.ops import activation, conv, elementwise, matmul, pool, reduce, resize, shape
from openneutron.ops.spec import OpSpec

_FAMILIES = (conv, matmul, pool, reduce, elementwise, activation, shape, resize)

TABLE: tuple[OpSpec, ...] = tuple(spec for family in _FAMILIES for spec in family.ENTRIES)

_BY_NAME = {name: spec for spec in TABLE for name in spec.names}
assert len(_BY_NAME) == sum(len(spec.names) for spec in TABLE), "an operator name stands in two entries"


def find(name: str) -> OpSpec | None:
    """The entry of an operator by any of its names, such as `aten.relu_.default`."""
    return _BY_NAME.get(name)
