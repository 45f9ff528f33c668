"""Binary layouts as dataclasses: the annotated fields of a class, in order, are the words of its record."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

MAX_RANK = 6
MAX_PORTS = 256  # inputs, and as many outputs: a Ref has one byte for the index
MAX_DIM = 0xFFFFFF  # of a tensor; the product of two fits 64 bits with room for a third factor


@dataclass(frozen=True)
class Word:
    """How an annotated field is stored: C type, `struct` code, and count for an array (0: a single value)."""

    c_type: str
    code: str
    count: int = 0


@dataclass(frozen=True)
class Tail:
    """A record's last field: any number of items behind the fixed part."""

    item: type


@dataclass(frozen=True)
class Range:
    """What a field, or every value of an array, may be: the driver refuses anything else."""

    low: int
    high: int


@dataclass(frozen=True)
class Limit:
    """The most that the product of some fields may be, by a name of its own; fields of parts have a dot."""

    name: str
    most: int
    fields: tuple[str, ...]


U8 = Annotated[int, Word("uint8_t", "B")]
U16 = Annotated[int, Word("uint16_t", "H")]
U32 = Annotated[int, Word("uint32_t", "I")]
I32 = Annotated[int, Word("int32_t", "i")]
F32 = Annotated[float, Word("float", "f")]
Name32 = Annotated[bytes, Word("char", "s", 32)]
U32x4 = Annotated[tuple[int, ...], Word("uint32_t", "I", 4)]
Dim = Annotated[U32, Range(1, MAX_DIM)]
Count = Annotated[U32, Range(1, 0xFFFFFFFF)]
Flag = Annotated[U32, Range(0, 1)]
Int8 = Annotated[I32, Range(-128, 127)]
Shift = Annotated[I32, Range(-31, 30)]
Dims = Annotated[tuple[int, ...], Word("uint32_t", "I", MAX_RANK), Range(1, MAX_DIM)]
Dims4 = Annotated[U32x4, Range(1, MAX_DIM)]
Dims8 = Annotated[tuple[int, ...], Word("uint32_t", "I", 8)]
Strides = Annotated[tuple[int, ...], Word("int32_t", "i", MAX_RANK)]


T = TypeVar("T")


def layout(cls: type) -> Iterator[tuple[str, Word | type]]:
    """(name, how stored) of each field of a layout: a Word, or the class of a nested layout."""
    return iter(_fields(cls))


@cache
def _fields(cls: Any) -> list[tuple[str, Word | type]]:
    return list(_read_fields(cls))


def _read_fields(cls: type) -> Iterator[tuple[str, Word | type]]:
    hints = get_type_hints(cls, include_extras=True)
    for f in fields(cls):
        hint = hints[f.name]
        if _tail(hint) is not None:
            continue
        if get_origin(hint) is Annotated:
            yield f.name, next(a for a in get_args(hint) if isinstance(a, Word))
        else:
            assert is_dataclass(hint), f"{cls.__name__}.{f.name} has no layout"
            yield f.name, cast(type, hint)


@cache
def _find_ranges(cls: Any) -> dict[str, Range]:
    hints = get_type_hints(cls, include_extras=True)
    by_field = {f.name: [a for a in get_args(hints[f.name]) if isinstance(a, Range)] for f in fields(cls)}
    return {name: ranges[-1] for name, ranges in by_field.items() if ranges}


def ranges_of(cls: type) -> dict[str, Range]:
    """The ranges of a layout's own fields, by name."""
    return _find_ranges(cls)


def limits_of(cls: type) -> tuple[Limit, ...]:
    """The limits on products of a layout's fields."""
    return getattr(cls, "limits", ())


def limit_of(cls: type, name: str) -> int:
    """The limit of that name."""
    return next(limit.most for limit in limits_of(cls) if limit.name == name)


def out_of_range(value: Any) -> str:
    """Which field of a record is more or less than its kernel takes, in words; empty if none is."""
    for name, word in layout(type(value)):
        if not isinstance(word, Word) and (problem := out_of_range(getattr(value, name))):
            return problem
    for name, allowed in ranges_of(type(value)).items():
        held = getattr(value, name)
        for item in held if isinstance(held, tuple) else (held,):
            if not allowed.low <= item <= allowed.high:
                return f"{name} is {item}, which must be {allowed.low} to {allowed.high}"
    for limit in limits_of(type(value)):
        product = math.prod(_at(value, path) for path in limit.fields)
        if product > limit.most:
            names = " * ".join(path.split(".")[-1] for path in limit.fields)
            return f"{names} is {product}, which must be at most {limit.most}"
    return ""


def _at(value: Any, path: str) -> int:
    for name in path.split("."):
        value = getattr(value, name)
    return int(value)


def _tail(hint: Any) -> Tail | None:
    return next((a for a in get_args(hint) if isinstance(a, Tail)), None) if hint is not None else None


@cache
def _find_tail(cls: Any) -> tuple[str, type] | None:
    for name, hint in get_type_hints(cls, include_extras=True).items():
        if (tail := _tail(hint)) is not None:
            return name, tail.item
    return None


def tail_of(cls: type) -> tuple[str, type] | None:
    """The name and the item of a layout's tail, if it has one."""
    return _find_tail(cls)


def word_bytes(word: Word) -> int:
    """Bytes of one value of a word."""
    return struct.calcsize("<" + word.code)


@cache
def _format(cls: Any) -> struct.Struct:
    return struct.Struct("<" + _codes(cls))


def format_of(cls: type) -> struct.Struct:
    """The `struct` of a layout, nested ones in line."""
    return _format(cls)


def _codes(cls: type) -> str:
    return "".join(
        f"{w.count or ''}{w.code}" if isinstance(w, Word) else _codes(w) for _, w in layout(cls)
    )  # fmt: skip


def _flatten(value: Any) -> Iterator[Any]:
    for name, word in layout(type(value)):
        item = getattr(value, name)
        if not isinstance(word, Word):
            yield from _flatten(item)
        elif word.count and word.code != "s":
            assert len(item) == word.count, (
                f"{type(value).__name__}.{name} needs {word.count} values, got {item}"
            )
            yield from item
        else:
            yield item


def pack(value: Any) -> bytes:
    """The bytes of one layout, its tail included."""
    try:
        fixed = format_of(type(value)).pack(*_flatten(value))
        tail = tail_of(type(value))
        return fixed if tail is None else fixed + b"".join(map(pack, getattr(value, tail[0])))
    except struct.error as error:
        raise ValueError(f"{value}: {error}") from error


def unpack(cls: type[T], raw: bytes, offset: int = 0, tail_bytes: int = 0) -> T:
    """One layout read from bytes, with `tail_bytes` of its tail."""
    items: dict[str, Any] = {}
    if (tail := tail_of(cls)) is not None:
        begin, size = offset + format_of(cls).size, format_of(tail[1]).size
        items[tail[0]] = tuple(unpack(tail[1], raw, begin + at) for at in range(0, tail_bytes, size))
    return _build(cls, iter(format_of(cls).unpack_from(raw, offset)), items)


def _build(cls: type[T], values: Iterator[Any], given: dict[str, Any] | None = None) -> T:
    items: dict[str, Any] = dict(given or {})
    for name, word in layout(cls):
        if not isinstance(word, Word):
            items[name] = _build(word, values)
        elif word.count and word.code != "s":
            items[name] = tuple(next(values) for _ in range(word.count))
        else:
            items[name] = next(values)
    return cls(**items)
