"""The operator table: one `OpSpec` per operator, read by quantizer, partitioner, lowering, docs and tests."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from openneutron.ops import activation, conv, elementwise, matmul, pool, reduce, resize, shape
from openneutron.ops.spec import OpSpec

_MODULES = (conv, matmul, pool, reduce, elementwise, activation, shape, resize)


def _entries(module: ModuleType) -> Iterator[OpSpec]:
    """Every entry that a module defines, on its own or in a tuple, in its order."""
    for value in vars(module).values():
        yield from (
            spec for spec in (value if isinstance(value, tuple) else [value]) if isinstance(spec, OpSpec)
        )


FAMILIES: dict[str, tuple[OpSpec, ...]] = {
    m.__name__.rsplit(".", 1)[-1]: tuple(_entries(m)) for m in _MODULES
}
TABLE: tuple[OpSpec, ...] = tuple(spec for family in FAMILIES.values() for spec in family)

_BY_NAME = {name: spec for spec in TABLE for name in spec.names}
assert len(_BY_NAME) == sum(len(spec.names) for spec in TABLE), "an operator name stands in two entries"


def find(name: str) -> OpSpec | None:
    """The entry of an operator by any of its names, such as `aten.relu_.default`."""
    return _BY_NAME.get(name)
