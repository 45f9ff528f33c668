"""The kernels and their parameters: what one call in a microcode can say.

Every class below is the layout of one record (see `records`) and the C struct of the same name in the
generated header; it derives from its form, whose fields come first. Addresses are `Ref`s into five regions;
every size is explicit, so that the driver can check a call before it runs it. What a kernel takes is part
of its record: the ranges of its fields, and `limits` on products of them, are checked by the driver (in
generated C) and known to the compiler and the partitioner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Annotated

from openneutron.compiler.microcode.expression import (
    ISLAND_CODE,
    ISLAND_OPERANDS,
    Instruction,
    IslandOp,
    Operand,
    Reduction,
    ResultForm,
)
from openneutron.compiler.microcode.forms import (
    AccumulateForm,
    Array,
    MoveForm,
    Params,
    PoolForm,
    ProductForm,
    Ref,
    ResizeForm,
    RowsForm,
    WalkForm,
    WindowForm,
    Work,
    ceil_div,
    matrix_work,
    span,
)
from openneutron.compiler.microcode.records import (
    F32,
    I32,
    MAX_DIM,
    MAX_RANK,
    U16,
    U32,
    Count,
    Dim,
    Dims,
    Dims4,
    Flag,
    Int8,
    Limit,
    Range,
    Shift,
    Strides,
    Tail,
    U32x4,
)

MAX_STAGES = 128  # of a cascade, and calls of a loop
MAX_TIMES = 0xFFFFFF  # that a loop runs
LAST_TOGETHER = 32  # results of a fully connected row that are written when all of the row has been read


class Kernel(IntEnum):
    """Positions in the runtime's kernel table and bits of the required-kernel set; never reused."""

    WAIT = 0
    PREFETCH = 1
    COPY = 2
    FILL = 3
    GATHER = 4
    CONV_2D = 5
    CONV_2D_POINTWISE = 6
    DEPTHWISE_CONV_2D = 7
    FULLY_CONNECTED = 8
    BATCH_MATMUL = 9
    AVERAGE_POOL_2D = 10
    MAX_POOL_2D = 11
    REDUCE_SUM = 12
    REDUCE_EXTREMUM = 13
    ADD = 14
    MUL = 15
    EXTREMUM = 16
    SQUARED_DIFFERENCE = 17
    PRELU = 18
    TABLE = 19
    SOFTMAX = 20
    RESIZE_BILINEAR = 21
    QUANTIZE = 22
    DEQUANTIZE = 23
    ARG_MAX = 24
    CASCADE = 25
    CONV_2D_PLANAR = 26
    ISLAND = 27
    LOOKUP = 28
    LOOP = 29
    REDUCE_ROWS = 30
    FULLY_CONNECTED_ROWS = 31
    WEAVE = 32
    TABLE_RUNS = 33
    STORE = 34


# --- kernels that move data -----------------------------------------------------------------------


@dataclass(frozen=True)
class Wait(Params):
    """Block until the last prefetch on `channel` has finished."""

    kernel = Kernel.WAIT
    channel: U32

    def moved(self) -> int:
        return 0

    def written(self) -> int:
        return 0


@dataclass(frozen=True)
class Prefetch(Params):
    """Start copying constants from WEIGHTS to PREFETCH on `channel`; a `Wait` must precede their use."""

    kernel = Kernel.PREFETCH
    source: Ref
    destination: Ref
    size: Count
    channel: U32

    def moved(self) -> int:
        return self.size

    def written(self) -> int:
        return 0  # of activations


@dataclass(frozen=True)
class Copy(MoveForm):
    """Copy elements between two strided layouts; strides in bytes, an input stride may be negative or 0."""

    kernel = Kernel.COPY


@dataclass(frozen=True)
class Fill(Params):
    """Set a strided block of elements to one value (the low `element_bytes` bytes of `value`)."""

    kernel = Kernel.FILL
    output: Ref
    element_bytes: U32
    value: U32
    dims: Dims
    output_strides: Strides

    def moved(self) -> int:
        return 2 * prod(self.dims) * self.element_bytes

    def written(self) -> int:
        return span(self.dims, self.output_strides, self.element_bytes)


@dataclass(frozen=True)
class Weave(Params):
    """Order `planes` x `rows` runs of `length` bytes by rows instead of by planes, in place.

    Then all channels of an image's row lie together, and are free together when nothing needs them any more.
    """

    kernel = Kernel.WEAVE
    limits = (Limit("MOST_RUNS", 8192, ("planes", "rows")),)
    data: Ref
    planes: Dim
    rows: Dim
    length: Dim

    def moved(self) -> int:
        return 2 * self.written()

    def written(self) -> int:
        return self.planes * self.rows * self.length


@dataclass(frozen=True)
class Gather(Params):
    """Copy runs from table-driven places: out[i0]..[i5] = in + t0[i0] + ... + t5[i5], `run` bytes each.

    `tables` holds dims[0] + ... + dims[5] int32 byte offsets; every sum must leave a run inside
    `input_bytes`.
    """

    kernel = Kernel.GATHER
    input: Ref
    output: Ref
    tables: Ref
    dims: Dims
    run: Dim
    input_bytes: U32

    def moved(self) -> int:
        return 2 * prod(self.dims) * self.run

    def written(self) -> int:
        return prod(self.dims) * self.run


@dataclass(frozen=True)
class Lookup(Params):
    """Copy the runs that indices name at run time: out[outer][i] = in[outer][indices[i]], `run` bytes each.

    `indices` are int32 or int64, as `index_bytes` says; one outside [0, axis) ends the run with an error.
    """

    kernel = Kernel.LOOKUP
    input: Ref
    indices: Ref
    output: Ref
    outer: Dim
    axis: Dim
    count: Dim
    run: Dim
    index_bytes: U32

    def moved(self) -> int:
        return self.count * (2 * self.outer * self.run + self.index_bytes)

    def written(self) -> int:
        return self.outer * self.count * self.run


@dataclass(frozen=True)
class Store(Params):
    """Write runs where indices say at run time: out[outer][indices[i] + j] = in[outer][i * length + j].

    What is in between stays as it is: the output is a state, or a copy of one. `indices` are int32 or int64,
    as `index_bytes` says; one outside [0, axis - length] ends the run with an error, and nothing is written.
    """

    kernel = Kernel.STORE
    input: Ref
    indices: Ref
    output: Ref
    outer: Dim
    axis: Dim
    count: Dim
    length: Dim
    run: Dim
    index_bytes: U32

    def moved(self) -> int:
        return self.count * (2 * self.outer * self.length * self.run + self.index_bytes)

    def written(self) -> int:
        return self.outer * self.axis * self.run


_WINDOW_VALUES = ("window.kernel_h", "window.kernel_w", "window.in_c")

# --- convolutions, products, pools ----------------------------------------------------------------


@dataclass(frozen=True)
class Convolution(WindowForm):
    """int8 convolution, one group: what every channel is scaled by stands in `channels`."""

    limits = (Limit("MOST_VALUES", (1 << 28) - 1, _WINDOW_VALUES),)
    weights: Ref
    channels: Ref
    input_zero: Int8
    output_zero: Int8
    clamp_min: Int8
    clamp_max: Int8


@dataclass(frozen=True)
class Conv2D(Convolution):
    """int8 convolution, one group; `weights` packed in blocks of 8 channels x 4 values (see `pack_matrix`).

    `channels` holds int32[3][out_c]: bias with the input's zero point folded in, multiplier, shift.
    """

    kernel = Kernel.CONV_2D


@dataclass(frozen=True)
class Conv2DPointwise(Convolution):
    """Conv2D with a 1x1 window and no padding: the input is used in place."""

    kernel = Kernel.CONV_2D_POINTWISE


@dataclass(frozen=True)
class Conv2DPlanar(WindowForm):
    """Conv2D of one image whose channels are planes, `plane` bytes apart: an image as PyTorch gives it.

    `weights` are packed in the order channel, row, column of the window.
    """

    kernel = Kernel.CONV_2D_PLANAR
    limits = (Limit("PATCH_BYTES", 1024, _WINDOW_VALUES),)  # windows of 4 channels up to 16 x 16
    input_in_planes = True
    plane: Annotated[U32, Range(0, 1 << 30)]
    weights: Ref
    channels: Ref
    input_zero: Int8
    output_zero: Int8
    clamp_min: Int8
    clamp_max: Int8


@dataclass(frozen=True)
class DepthwiseConv2D(PoolForm):
    """int8 depthwise convolution, out_c a multiple of in_c; `weights` int8[kernel_h][kernel_w][out_c].

    `channels` as for Conv2D, but with the bias of the model: the kernel subtracts the zero point itself.
    """

    kernel = Kernel.DEPTHWISE_CONV_2D
    limits = (Limit("MOST_ROWS", 64, ("window.kernel_h",)),)
    weighted = True
    weights: Ref
    channels: Ref
    input_zero: Int8
    output_zero: Int8
    clamp_min: Int8
    clamp_max: Int8


@dataclass(frozen=True)
class FullyConnected(ProductForm):
    """rows x in_features times packed weights; `bias` int32[out_features] with the zero point folded in.

    The product is scaled in double precision, as the definition of "exact" demands, by the double
    `scales[out_features]`. Results of a single row that are computed last may lie over that row.
    """

    kernel = Kernel.FULLY_CONNECTED
    output_zero: Int8
    clamp_min: Int8
    clamp_max: Int8

    @property
    def trailing(self) -> tuple[int, int]:
        """Results computed together as the last ones: of an output that lies before its input, and behind."""
        before = ceil_div(max(self.out_features - LAST_TOGETHER, 0), 8) * 8  # whole blocks of packed weights
        both = self.out_features - before, min(self.out_features, LAST_TOGETHER)
        return both if self.rows == 1 else (0, 0)


@dataclass(frozen=True)
class FullyConnectedRows(AccumulateForm):
    """FULLY_CONNECTED of one row that is a feature map: `weights` packed for each of its rows by itself.

    `sums` holds int32[out_features] between stripes.
    """

    kernel = Kernel.FULLY_CONNECTED_ROWS
    weights: Ref
    bias: Ref
    scales: Ref
    out_features: Dim
    output_zero: Int8
    clamp_min: Int8
    clamp_max: Int8

    def work(self, array: Array) -> Work:
        return matrix_work(1, self.height * self.row, self.out_features, array)

    def moved(self) -> int:
        return self.height * self.row * (self.out_features + 1) + self.out_features

    def written(self) -> int:
        return self.out_features

    def carried(self) -> int:
        return 4 * self.out_features


@dataclass(frozen=True)
class BatchMatmul(Params):
    """output[batch][m][n] = sum over k of lhs[m][k] * rhs[k][n], both activations; strides in bytes."""

    kernel = Kernel.BATCH_MATMUL
    lhs: Ref
    rhs: Ref
    output: Ref
    batch: Dims4
    lhs_batch_strides: Annotated[U32x4, Range(0, 0x7FFFFFFF)]
    rhs_batch_strides: Annotated[U32x4, Range(0, 0x7FFFFFFF)]
    m: Dim
    n: Dim
    k: Dim
    lhs_row: Annotated[U32, Range(0, MAX_DIM)]
    lhs_column: Annotated[U32, Range(0, MAX_DIM)]
    rhs_row: Annotated[U32, Range(0, MAX_DIM)]
    rhs_column: Annotated[U32, Range(0, MAX_DIM)]
    lhs_zero: Int8
    rhs_zero: Int8
    output_zero: Int8
    multiplier: I32
    shift: Shift
    clamp_min: Int8
    clamp_max: Int8

    def work(self, array: Array) -> Work:
        return matrix_work(prod(self.batch) * self.m, self.k, self.n, array)

    def moved(self) -> int:
        return prod(self.batch) * (self.m * self.k + self.k * self.n + self.m * self.n)

    def written(self) -> int:
        return prod(self.batch) * self.m * self.n


@dataclass(frozen=True)
class AveragePool2D(PoolForm):
    """int8 average over the taps inside the input, rounded half away from zero; in_c == out_c."""

    kernel = Kernel.AVERAGE_POOL_2D
    clamp_min: Int8
    clamp_max: Int8


@dataclass(frozen=True)
class MaxPool2D(PoolForm):
    """int8 maximum over the taps inside the input; in_c == out_c."""

    kernel = Kernel.MAX_POOL_2D
    clamp_min: Int8
    clamp_max: Int8


# --- reductions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReduceSum(Params):
    """int8 sum or mean: the sum over `reduced` of (value - input_zero), scaled; dense output."""

    kernel = Kernel.REDUCE_SUM
    input: Ref
    output: Ref
    kept: Dims
    kept_strides: Strides
    reduced: Dims
    reduced_strides: Strides
    input_zero: Int8
    output_zero: Int8
    multiplier: I32
    shift: Shift

    def moved(self) -> int:
        return prod(self.kept) * (prod(self.reduced) + 1)

    def written(self) -> int:
        return prod(self.kept)


class RowsReduction(IntEnum):
    """What REDUCE_ROWS makes of all pixels of a channel."""

    SUM = 0  # as REDUCE_SUM
    AVERAGE = 1  # as AVERAGE_POOL_2D
    MAXIMUM = 2
    MINIMUM = 3


@dataclass(frozen=True)
class ReduceRows(AccumulateForm):
    """Sum, average or extremum of each of `channels` over all rows of a feature map and all their pixels.

    `sums` holds int32[channels] between stripes of a sum or an average; an extremum is kept in the output.
    """

    kernel = Kernel.REDUCE_ROWS
    limits = (Limit("MOST_PIXELS", MAX_DIM, ("height", "width")),)
    reduction: Annotated[U32, Range(0, max(RowsReduction))]
    width: Dim
    channels: Dim
    pixel: Dim  # bytes between neighbours
    input_zero: Int8
    output_zero: Int8
    multiplier: I32
    shift: Shift
    clamp_min: Int8
    clamp_max: Int8

    def moved(self) -> int:
        return self.height * self.width * self.channels + self.channels

    def written(self) -> int:
        return self.channels

    def carried(self) -> int:
        return 4 * self.channels if self.reduction <= RowsReduction.AVERAGE else 0


@dataclass(frozen=True)
class ReduceExtremum(Params):
    """int8 maximum (`minimum` 0) or minimum (1) over `reduced`; dense output."""

    kernel = Kernel.REDUCE_EXTREMUM
    input: Ref
    output: Ref
    kept: Dims
    kept_strides: Strides
    reduced: Dims
    reduced_strides: Strides
    minimum: Flag

    def moved(self) -> int:
        return prod(self.kept) * (prod(self.reduced) + 1)

    def written(self) -> int:
        return prod(self.kept)


@dataclass(frozen=True)
class ArgMax(Params):
    """Index of the first largest (`minimum` 0) or smallest (1) value of each outer x [axis] x inner."""

    kernel = Kernel.ARG_MAX
    input: Ref
    output: Ref
    outer: Dim
    axis: Dim
    inner: Dim
    minimum: Flag
    index_bytes: U32

    def moved(self) -> int:
        return self.outer * self.inner * (self.axis + 1)

    def written(self) -> int:
        return self.outer * self.inner * self.index_bytes


# --- element by element ---------------------------------------------------------------------------


@dataclass(frozen=True)
class CommonScale(WalkForm):
    """int8: both operands shifted left and scaled to a common scale, then put together and scaled back."""

    left_shift: Annotated[U32, Range(0, 20)]
    a_zero: Int8
    b_zero: Int8
    output_zero: Int8
    a_multiplier: I32
    a_shift: Shift
    b_multiplier: I32
    b_shift: Shift
    output_multiplier: I32
    output_shift: Shift
    clamp_min: Int8
    clamp_max: Int8


@dataclass(frozen=True)
class Add(CommonScale):
    """int8 a + b; subtraction negates b."""

    kernel = Kernel.ADD


@dataclass(frozen=True)
class Mul(WalkForm):
    """int8 (a - a_zero) * (b - b_zero), scaled."""

    kernel = Kernel.MUL
    a_zero: Int8
    b_zero: Int8
    output_zero: Int8
    multiplier: I32
    shift: Shift
    clamp_min: Int8
    clamp_max: Int8


@dataclass(frozen=True)
class Extremum(WalkForm):
    """int8 maximum (`minimum` 0) or minimum (1) of two inputs of one quantization."""

    kernel = Kernel.EXTREMUM
    minimum: Flag


@dataclass(frozen=True)
class SquaredDifference(CommonScale):
    """int8 (a - b)^2."""

    kernel = Kernel.SQUARED_DIFFERENCE


@dataclass(frozen=True)
class Prelu(WalkForm):
    """int8 a where a >= 0, else a * b (the slope): one multiplier for each case."""

    kernel = Kernel.PRELU
    a_zero: Int8
    b_zero: Int8
    output_zero: Int8
    positive_multiplier: I32
    positive_shift: Shift
    negative_multiplier: I32
    negative_shift: Shift


@dataclass(frozen=True)
class Table(RowsForm):
    """table[256] indexed by the value's bits; `rows` runs of `length` bytes, `*_pitch` bytes apart."""

    kernel = Kernel.TABLE


@dataclass(frozen=True)
class TableRuns(RowsForm):
    """TABLE of some channels: every row is `runs` runs of `length` bytes, `*_run_pitch` bytes apart."""

    kernel = Kernel.TABLE_RUNS
    runs: Dim
    input_run_pitch: U32
    output_run_pitch: U32

    def moved(self) -> int:
        return self.runs * super().moved()

    def written(self) -> int:
        return super().written() + (self.runs - 1) * self.output_run_pitch


@dataclass(frozen=True)
class Softmax(Params):
    """int8 softmax along dense rows of `depth` values, fixed point."""

    kernel = Kernel.SOFTMAX
    input: Ref
    output: Ref
    rows: Dim
    depth: Dim
    multiplier: I32
    shift: Annotated[I32, Range(0, 30)]
    diff_min: Annotated[I32, Range(-(1 << 31), 0)]

    def moved(self) -> int:
        return 2 * self.rows * self.depth

    def written(self) -> int:
        return self.rows * self.depth


@dataclass(frozen=True)
class ResizeBilinear(ResizeForm):
    """int8 bilinear resize, NHWC; `tables` holds int32 (low, high, fraction/1024) per row, then column."""

    kernel = Kernel.RESIZE_BILINEAR


@dataclass(frozen=True)
class Quantize(Params):
    """float32 to int8: round(x / scale) + zero, saturated."""

    kernel = Kernel.QUANTIZE
    input: Ref
    output: Ref
    count: Count
    scale: F32
    zero: Int8

    def moved(self) -> int:
        return 5 * self.count

    def written(self) -> int:
        return self.count


@dataclass(frozen=True)
class Dequantize(Params):
    """int8 to float32: scale * (x - zero)."""

    kernel = Kernel.DEQUANTIZE
    input: Ref
    output: Ref
    count: Count
    scale: F32
    zero: Int8

    def moved(self) -> int:
        return 5 * self.count

    def written(self) -> int:
        return 4 * self.count


# --- float32 expressions of int8 tensors -------------------------------------------------------------


@dataclass(frozen=True)
class Island(Params):
    """A float32 expression of up to six tensors, element by element, as `code` says on eight registers.

    The result is the register the last instruction writes. With a reduction, the innermost `reduced` dims are
    reduced one after the other in order, a sum is divided by `divisor`, and the output has no strides there.
    """

    kernel = Kernel.ISLAND
    output: Ref
    dims: Dims
    output_strides: Strides
    reduction: Annotated[U32, Range(0, max(Reduction))]
    reduced: Annotated[U32, Range(0, MAX_RANK)]
    divisor: F32
    result: Annotated[U32, Range(0, max(ResultForm))]
    scale: F32
    zero: Int8
    steps: Ref
    a: Operand
    b: Operand
    c: Operand
    d: Operand
    e: Operand
    f: Operand
    operands: Annotated[U32, Range(1, ISLAND_OPERANDS)]
    count: Annotated[U32, Range(1, ISLAND_CODE)]
    code: Annotated[tuple[Instruction, ...], Tail(Instruction)]

    def work(self, array: Array) -> Work:
        slow = {IslandOp.DIV: 4, IslandOp.SQRT: 4, IslandOp.RSQRT: 8}  # as many sums
        instructions = 1 + sum(slow.get(IslandOp(code.op), 1) for code in self.code)  # one for the result
        return Work(instructions=prod(self.dims) * instructions)

    def moved(self) -> int:
        return prod(self.dims) * (self.operands + 1)

    def written(self) -> int:
        kept = (*self.dims[: MAX_RANK - self.reduced], *[1] * self.reduced)
        return span(kept, self.output_strides, 4 if self.result == ResultForm.FLOAT else 1)


# --- several calls as one, in stripes of rows -------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """Part of a cascade: output rows y0 .. y1 - 1 of one of its stages."""

    stage: U16
    y0: U16
    y1: U16
    reserved: U16 = 0

    def __str__(self) -> str:
        return f"{self.stage}:{self.y0}..{self.y1}"


@dataclass(frozen=True)
class Cascade(Params):
    """The next `stages` calls are not run as they stand but as `steps` say: stripes of rows, interleaved.

    A stage has a form: a window, a resize and an accumulation take the step's y0 and y1; of element-wise
    kernels, copies, TABLEs and products the outermost dimension (`dims[0]`, `rows`) counts rows, and
    `Ref.rows` makes a rolling buffer.
    """

    kernel = Kernel.CASCADE
    stages: Annotated[U32, Range(1, MAX_STAGES)]
    count: U32
    steps: Annotated[tuple[Step, ...], Tail(Step)]

    def moved(self) -> int:
        return 0  # beyond what its stages do: see `cost.cascade_cost`

    def written(self) -> int:
        return 0


# --- several calls again and again --------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """Part of a loop: an address of one of its calls, by its position in bytes, and how far it moves a turn.

    Only addresses of activations move; those of constants stay.
    """

    call: U16
    at: U16
    stride: I32

    def __str__(self) -> str:
        return f"{self.call}:{self.at}{self.stride:+}"


@dataclass(frozen=True)
class Loop(Params):
    """The next `body` calls run `times` times, one after the other; `moves` say which addresses move on.

    The body has no cascades and no loops. Moves are in the order of the calls, and of the addresses in each.
    """

    kernel = Kernel.LOOP
    body: Annotated[U32, Range(1, MAX_STAGES)]
    times: Annotated[U32, Range(1, MAX_TIMES)]
    count: U32
    moves: Annotated[tuple[Move, ...], Tail(Move)]

    def moved(self) -> int:
        return 0  # what its calls do is theirs

    def written(self) -> int:
        return 0


def _records(base: type[Params]) -> Iterator[type[Params]]:
    for cls in base.__subclasses__():
        yield from ([cls] if "kernel" in vars(cls) else _records(cls))


PARAMS: dict[Kernel, type[Params]] = {cls.kernel: cls for cls in _records(Params)}
assert set(PARAMS) == set(Kernel), "every kernel has parameters"
