"""What kernels have in common: addresses and geometries, and the forms that calls of them come in.

A form is a layout at the front of a record, by which a call is narrowed to a part of its work by code that
does not know its kernel: to stripes of a cascade, to shares of threads. A kernel takes its form from the
class that its record derives from, and with it cost, striping and threading; the C header is told it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from math import prod
from typing import Annotated, Any, ClassVar, Protocol

from openneutron.compiler.microcode.records import (
    I32,
    MAX_DIM,
    U8,
    U16,
    U32,
    Count,
    Dim,
    Dims,
    Limit,
    Range,
    Strides,
    Word,
    format_of,
    layout,
    word_bytes,
)


class Region(IntEnum):
    """Where a `Ref` points. INPUT and WEIGHTS are read only."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2
    WEIGHTS = 3
    PREFETCH = 4
    STATE = 5  # what the program remembers from run to run


@dataclass(frozen=True)
class Ref:
    """An address: byte `offset` in a region (`index` tells inputs, and outputs, apart).

    `rows` is for feature maps only: 0 means the whole map is there; R means a rolling buffer of R rows, in
    which row y is at position y mod R.
    """

    region: U8
    index: U8 = 0
    rows: U16 = 0
    offset: U32 = 0

    def __str__(self) -> str:
        is_region = self.region in Region._value2member_map_
        name = Region(self.region).name.lower() if is_region else f"region{self.region}"
        if self.region in (Region.INPUT, Region.OUTPUT):
            name += str(self.index)
        return f"{name}+{self.offset}" + (f"%{self.rows}" if self.rows else "")

    def plus(self, offset: int) -> Ref:
        """The address `offset` bytes further on."""
        return Ref(self.region, self.index, self.rows, self.offset + offset)


def addresses_of(cls: type) -> tuple[tuple[str, int], ...]:
    """The path and the byte position of every `Ref` in a layout, in order; its tail has none."""
    return _addresses(cls)


@cache
def _addresses(cls: Any) -> tuple[tuple[str, int], ...]:
    return tuple(_find_addresses(cls, "", 0))


def _find_addresses(cls: type, path: str, at: int) -> Iterator[tuple[str, int]]:
    for name, word in layout(cls):
        if isinstance(word, Word):
            at += word_bytes(word) * (word.count or 1)
            continue
        if word is Ref:
            yield path + name, at
        else:
            yield from _find_addresses(word, f"{path}{name}.", at)
        at += format_of(word).size


@dataclass(frozen=True)
class View:
    """An NHWC feature map of int8: bytes between neighbouring pixels and rows, dense over the batch."""

    ref: Ref
    pixel: U32
    row: Annotated[U32, Range(1, 1 << 30)]

    def __str__(self) -> str:
        return f"{self.ref}[{self.row},{self.pixel}]"


@dataclass(frozen=True)
class Window:
    """Geometry of a sliding window: output row y reads input rows y*stride_h - pad_top + k*dilation_h.

    Only output rows y0 <= y < y1 are computed. Taps outside the input count as the input's zero point.
    """

    # Rows and columns are counted in 32 bits, and so are the values under a window.
    limits: ClassVar[tuple[Limit, ...]] = (
        Limit("MOST_TAPS", MAX_DIM, ("kernel_h", "kernel_w")),
        Limit("MOST_ROWS", 1 << 29, ("out_h", "stride_h")),
        Limit("MOST_COLUMNS", 1 << 29, ("out_w", "stride_w")),
        Limit("MOST_HEIGHT", 1 << 29, ("kernel_h", "dilation_h")),
        Limit("MOST_WIDTH", 1 << 29, ("kernel_w", "dilation_w")),
    )
    batch: Dim
    in_h: Dim
    in_w: Dim
    in_c: Dim
    out_h: Dim
    out_w: Dim
    out_c: Dim
    kernel_h: Dim
    kernel_w: Dim
    stride_h: Dim
    stride_w: Dim
    dilation_h: Dim
    dilation_w: Dim
    pad_top: Annotated[I32, Range(-MAX_DIM, MAX_DIM)]
    pad_left: Annotated[I32, Range(-MAX_DIM, MAX_DIM)]
    y0: U32
    y1: U32

    def __str__(self) -> str:
        rows = "" if (self.y0, self.y1) == (0, self.out_h) else f" rows {self.y0}..{self.y1}"
        return (
            f"{self.batch}x{self.in_h}x{self.in_w}x{self.in_c}->{self.out_h}x{self.out_w}x{self.out_c}"
            f" k{self.kernel_h}x{self.kernel_w} s{self.stride_h}x{self.stride_w}"
            f" d{self.dilation_h}x{self.dilation_w} p{self.pad_top},{self.pad_left}{rows}"
        )


@dataclass(frozen=True)
class Broadcast:
    """Two inputs and an output walked over `dims`; strides in bytes, 0 where an input is broadcast."""

    a: Ref
    b: Ref
    output: Ref
    dims: Dims
    a_strides: Strides
    b_strides: Strides
    output_strides: Strides

    def __str__(self) -> str:
        return f"{self.output} <- {self.a}, {self.b} over {dims_text(self.dims)}"


def dims_text(dims: Sequence[int]) -> str:
    """1x1x1x2x3x4 without the leading ones."""
    kept = list(dims)
    while len(kept) > 1 and kept[0] == 1:
        kept.pop(0)
    return "x".join(map(str, kept))


def span(dims: Sequence[int], strides: Sequence[int], element: int) -> int:
    """Bytes from the first to the last one of a strided block."""
    return sum((d - 1) * abs(s) for d, s in zip(dims, strides, strict=True)) + element


class Array(Protocol):
    """What a cost rule knows of the machine: outputs side by side, products that each adds up at once."""

    @property
    def pipes(self) -> int: ...
    @property
    def depth(self) -> int: ...


@dataclass(frozen=True)
class Work:
    """Multiply-accumulates, the passes of the array they take, and the tiles of outputs they make.

    `instructions` are those of islands, for all elements, which the array has no part in.
    """

    macs: int = 0
    passes: int = 0
    tiles: int = 0
    instructions: int = 0


def matrix_work(rows: int, depth: int, columns: int, array: Array) -> Work:
    """The work of a matrix product, or of a convolution seen as one."""
    tiles = rows * ceil_div(columns, array.pipes)
    return Work(rows * depth * columns, tiles * ceil_div(depth, array.depth), tiles)


def ceil_div(value: int, step: int) -> int:
    """The quotient, rounded up."""
    return -(-value // step)


class Form(IntEnum):
    """The layout at the front of a record, by which a call can be narrowed to a part of its work."""

    WHOLE = 0  # none: the call is one piece
    WINDOW = 1  # a window over a feature map; every output channel reads all input channels
    POOL = 2  # a window whose output channels read one input channel each
    WALK = 3  # two operands and a result, element by element
    ROWS = 4  # runs of bytes, one behind the other
    PRODUCT = 5  # rows times packed weights
    MOVE = 6  # elements from one strided layout to another
    RESIZE = 7  # rows from places between rows
    ACCUMULATE = 8  # rows added to what is kept; the last one completes the result


class Params:
    """Base of kernel parameters. A record names its kernel, and has a rule for what it costs."""

    kernel: ClassVar[Any]  # a `Kernel`
    limits: ClassVar[tuple[Limit, ...]] = ()  # on products of its fields
    form: ClassVar[Form] = Form.WHOLE

    def __init_subclass__(cls) -> None:
        if "kernel" in vars(cls):
            missing = [name for name in ("moved", "written") if getattr(cls, name) is getattr(Params, name)]
            if missing:
                raise TypeError(
                    f"the record {cls.__name__} has no rule for the bytes {' and '.join(missing)}"
                )

    def moved(self) -> int:
        """Bytes read and written once each; what a kernel reads again it is taken to keep."""
        raise TypeError(f"{type(self).__name__} is no kernel's record")  # theirs have a rule: see above

    def written(self) -> int:
        """Bytes from the first to the last one that is written."""
        raise TypeError(f"{type(self).__name__} is no kernel's record")

    def work(self, array: Array) -> Work:
        """What the array computes; nothing for kernels that only move or look up."""
        return Work()

    def constants(self) -> int:
        """Bytes of weights, which a stage of a cascade reads again for every stripe."""
        return 0

    def carried(self) -> int:
        """Bytes of scratch that a stage of a cascade keeps from one stripe to the next."""
        return 0


@dataclass(frozen=True)
class WindowForm(Params):
    """A window over a feature map."""

    form = Form.WINDOW
    weighted: ClassVar[bool] = True  # has a weight for every tap
    input_in_planes: ClassVar[bool] = False  # no row of the input holds all channels
    input: View
    output: View
    window: Window

    @property
    def rows(self) -> int:
        """Rows that the call has when it is a stage of a cascade."""
        return self.window.out_h

    def _depth(self) -> int:
        return self.window.in_c if self.form is Form.WINDOW else 1

    def work(self, array: Array) -> Work:
        w = self.window
        pixels, taps = w.batch * (w.y1 - w.y0) * w.out_w, w.kernel_h * w.kernel_w
        tiles = pixels * ceil_div(w.out_c, array.pipes)
        macs = pixels * taps * self._depth() * w.out_c if self.weighted else 0
        return Work(macs, tiles * taps * ceil_div(self._depth(), array.depth), tiles)

    def constants(self) -> int:
        w = self.window
        return w.kernel_h * w.kernel_w * self._depth() * w.out_c if self.weighted else 0

    def moved(self) -> int:
        w = self.window
        rows = w.y1 - w.y0
        maps = w.batch * (w.in_h * w.in_w * w.in_c * rows // w.out_h + rows * w.out_w * w.out_c)
        return maps + self.constants()

    def written(self) -> int:
        w, view = self.window, self.output
        rows = view.ref.rows or w.out_h
        return (w.batch * rows - 1) * view.row + view.pixel * (w.out_w - 1) + w.out_c


@dataclass(frozen=True)
class PoolForm(WindowForm):
    """A window whose output channels read one input channel each."""

    form = Form.POOL
    weighted = False


@dataclass(frozen=True)
class WalkForm(Params):
    """Two operands and a result, element by element. Of a stage, the outermost dimension counts rows."""

    form = Form.WALK
    walk: Broadcast

    @property
    def rows(self) -> int:
        """Rows that the call has when it is a stage of a cascade."""
        return self.walk.dims[0]

    def moved(self) -> int:
        return 3 * prod(self.walk.dims)

    def written(self) -> int:
        rows = self.walk.output.rows or self.walk.dims[0]
        return span((rows, *self.walk.dims[1:]), self.walk.output_strides, 1)


@dataclass(frozen=True)
class RowsForm(Params):
    """Runs of bytes, one behind the other, and a table of constants."""

    form = Form.ROWS
    input: Ref
    output: Ref
    table: Ref
    rows: Dim
    length: Count
    input_pitch: U32
    output_pitch: U32

    def moved(self) -> int:
        return 2 * self.rows * self.length

    def written(self) -> int:
        return ((self.output.rows or self.rows) - 1) * self.output_pitch + self.length


@dataclass(frozen=True)
class ProductForm(Params):
    """Rows times packed weights, with a bias and a scale for every output."""

    form = Form.PRODUCT
    input: Ref
    output: Ref
    weights: Ref
    bias: Ref
    scales: Ref
    rows: Dim
    in_features: Dim
    out_features: Dim

    def work(self, array: Array) -> Work:
        return matrix_work(self.rows, self.in_features, self.out_features, array)

    def constants(self) -> int:
        return self.in_features * self.out_features

    def moved(self) -> int:
        return self.constants() + self.rows * (self.in_features + self.out_features)

    def written(self) -> int:
        return self.rows * self.out_features


@dataclass(frozen=True)
class MoveForm(Params):
    """Elements from one strided layout to another. Of a stage, the outermost dimension counts rows."""

    form = Form.MOVE
    input: Ref
    output: Ref
    element_bytes: U32
    dims: Dims
    input_strides: Strides
    output_strides: Strides

    @property
    def rows(self) -> int:
        """Rows that the call has when it is a stage of a cascade."""
        return self.dims[0]

    def moved(self) -> int:
        return 2 * prod(self.dims) * self.element_bytes

    def written(self) -> int:
        rows = self.output.rows or self.dims[0]
        return span((rows, *self.dims[1:]), self.output_strides, self.element_bytes)


@dataclass(frozen=True)
class ResizeForm(Params):
    """Rows y0 <= y < y1 of a dense feature map, made of rows of another that a table names."""

    form = Form.RESIZE
    input: Ref
    output: Ref
    tables: Ref
    batch: Annotated[U32, Range(1, 0xFFFF)]
    in_h: Annotated[U32, Range(1, 0xFFFF)]
    in_w: Annotated[U32, Range(1, 0xFFFF)]
    out_h: Annotated[U32, Range(1, 0xFFFF)]
    out_w: Annotated[U32, Range(1, 0xFFFF)]
    channels: Annotated[U32, Range(1, 0xFFFF)]
    y0: U32
    y1: U32

    @property
    def rows(self) -> int:
        """Rows that the call has when it is a stage of a cascade."""
        return self.out_h

    def moved(self) -> int:
        rows = self.in_h * self.in_w * (self.y1 - self.y0) // self.out_h + (self.y1 - self.y0) * self.out_w
        return self.batch * self.channels * rows

    def written(self) -> int:
        return self.batch * (self.output.rows or self.out_h) * self.out_w * self.channels


@dataclass(frozen=True)
class AccumulateForm(Params):
    """Rows y0 <= y < y1 of `height`, taken into `sums`: row 0 begins, and the last row completes the output.

    Rows come from the top to the bottom, each once, in as many calls as there are stripes.
    """

    form = Form.ACCUMULATE
    input: Ref
    output: Ref
    sums: Ref
    height: Annotated[U32, Range(1, 0xFFFF)]
    row: Count  # bytes
    y0: U32
    y1: U32

    @property
    def rows(self) -> int:
        """Rows that the call has when it is a stage of a cascade."""
        return self.height


FORM_LAYOUTS = (WindowForm, WalkForm, RowsForm, ProductForm, MoveForm, ResizeForm, AccumulateForm)
STAGE_FORMS = FORM_LAYOUTS
"""What can be a stage of a cascade: a call of these can be narrowed to rows."""
