"""The kernels and their parameters: what one call in a microcode can say.

Every class below is the layout of one record (see `layout`) and the C struct of the same name in the
generated header. Addresses are `Ref`s into five regions; every size is explicit, so that the driver can check
a call before it runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar

from openneutron.compiler.microcode.records import F32, I32, U8, U16, U32, Dims, Strides, Tail, U32x4


class Region(IntEnum):
    """Where a `Ref` points. INPUT and WEIGHTS are read only."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2
    WEIGHTS = 3
    PREFETCH = 4


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
        known = self.region in Region._value2member_map_
        name = Region(self.region).name.lower() if known else f"region{self.region}"
        if self.region in (Region.INPUT, Region.OUTPUT):
            name += str(self.index)
        return f"{name}+{self.offset}" + (f"%{self.rows}" if self.rows else "")

    def plus(self, offset: int) -> Ref:
        """The address `offset` bytes further on."""
        return Ref(self.region, self.index, self.rows, self.offset + offset)


@dataclass(frozen=True)
class View:
    """An NHWC feature map of int8: bytes between neighbouring pixels and rows, dense over the batch."""

    ref: Ref
    pixel: U32
    row: U32

    def __str__(self) -> str:
        return f"{self.ref}[{self.row},{self.pixel}]"


@dataclass(frozen=True)
class Window:
    """Geometry of a sliding window: output row y reads input rows y*stride_h - pad_top + k*dilation_h.

    Only output rows y0 <= y < y1 are computed. Taps outside the input count as the input's zero point.
    """

    batch: U32
    in_h: U32
    in_w: U32
    in_c: U32
    out_h: U32
    out_w: U32
    out_c: U32
    kernel_h: U32
    kernel_w: U32
    stride_h: U32
    stride_w: U32
    dilation_h: U32
    dilation_w: U32
    pad_top: I32
    pad_left: I32
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


class Params:
    """Base of kernel parameters; a subclass names its kernel."""

    kernel: ClassVar[Kernel]


# --- kernels that move data -----------------------------------------------------------------------


@dataclass(frozen=True)
class Wait(Params):
    """Block until the last prefetch on `channel` has finished."""

    kernel = Kernel.WAIT
    channel: U32


@dataclass(frozen=True)
class Prefetch(Params):
    """Start copying constants from WEIGHTS to PREFETCH on `channel`; a `Wait` must precede their use."""

    kernel = Kernel.PREFETCH
    source: Ref
    destination: Ref
    size: U32
    channel: U32


@dataclass(frozen=True)
class Copy(Params):
    """Copy elements between two strided layouts; strides in bytes, an input stride may be negative or 0."""

    kernel = Kernel.COPY
    input: Ref
    output: Ref
    element_bytes: U32
    dims: Dims
    input_strides: Strides
    output_strides: Strides


@dataclass(frozen=True)
class Fill(Params):
    """Set a strided block of elements to one value (the low `element_bytes` bytes of `value`)."""

    kernel = Kernel.FILL
    output: Ref
    element_bytes: U32
    value: U32
    dims: Dims
    output_strides: Strides


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
    run: U32
    input_bytes: U32


# --- convolutions, products, pools ----------------------------------------------------------------


@dataclass(frozen=True)
class Conv2D(Params):
    """int8 convolution, one group; `weights` packed in blocks of 8 channels x 4 values (see `pack_matrix`).

    `channels` holds int32[3][out_c]: bias with the input's zero point folded in, multiplier, shift.
    """

    kernel = Kernel.CONV_2D
    input: View
    output: View
    window: Window
    weights: Ref
    channels: Ref
    input_zero: I32
    output_zero: I32
    clamp_min: I32
    clamp_max: I32


@dataclass(frozen=True)
class Conv2DPointwise(Params):
    """Conv2D with a 1x1 window and no padding: the input is used in place."""

    kernel = Kernel.CONV_2D_POINTWISE
    input: View
    output: View
    window: Window
    weights: Ref
    channels: Ref
    input_zero: I32
    output_zero: I32
    clamp_min: I32
    clamp_max: I32


@dataclass(frozen=True)
class Conv2DPlanar(Params):
    """Conv2D of one image whose channels are planes, `plane` bytes apart: a picture as PyTorch gives it.

    `weights` are packed in the order channel, row, column of the window.
    """

    kernel = Kernel.CONV_2D_PLANAR
    input: View
    output: View
    window: Window
    plane: U32
    weights: Ref
    channels: Ref
    input_zero: I32
    output_zero: I32
    clamp_min: I32
    clamp_max: I32


@dataclass(frozen=True)
class DepthwiseConv2D(Params):
    """int8 depthwise convolution, out_c a multiple of in_c; `weights` int8[kernel_h][kernel_w][out_c].

    `channels` as for Conv2D, but with the bias of the model: the kernel subtracts the zero point itself.
    """

    kernel = Kernel.DEPTHWISE_CONV_2D
    input: View
    output: View
    window: Window
    weights: Ref
    channels: Ref
    input_zero: I32
    output_zero: I32
    clamp_min: I32
    clamp_max: I32


@dataclass(frozen=True)
class FullyConnected(Params):
    """rows x in_features times packed weights; `bias` int32[out_features] with the zero point folded in.

    The product is scaled in double precision, as the definition of "exact" demands, by the double
    `scales[out_features]`.
    """

    kernel = Kernel.FULLY_CONNECTED
    input: Ref
    output: Ref
    weights: Ref
    bias: Ref
    scales: Ref
    rows: U32
    in_features: U32
    out_features: U32
    output_zero: I32
    clamp_min: I32
    clamp_max: I32


@dataclass(frozen=True)
class BatchMatmul(Params):
    """output[batch][m][n] = sum over k of lhs[m][k] * rhs[k][n], both activations; strides in bytes."""

    kernel = Kernel.BATCH_MATMUL
    lhs: Ref
    rhs: Ref
    output: Ref
    batch: U32x4
    lhs_batch_strides: U32x4
    rhs_batch_strides: U32x4
    m: U32
    n: U32
    k: U32
    lhs_row: U32
    lhs_column: U32
    rhs_row: U32
    rhs_column: U32
    lhs_zero: I32
    rhs_zero: I32
    output_zero: I32
    multiplier: I32
    shift: I32
    clamp_min: I32
    clamp_max: I32


@dataclass(frozen=True)
class AveragePool2D(Params):
    """int8 average over the taps inside the input, rounded half away from zero; in_c == out_c."""

    kernel = Kernel.AVERAGE_POOL_2D
    input: View
    output: View
    window: Window
    clamp_min: I32
    clamp_max: I32


@dataclass(frozen=True)
class MaxPool2D(Params):
    """int8 maximum over the taps inside the input; in_c == out_c."""

    kernel = Kernel.MAX_POOL_2D
    input: View
    output: View
    window: Window
    clamp_min: I32
    clamp_max: I32


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
    input_zero: I32
    output_zero: I32
    multiplier: I32
    shift: I32


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
    minimum: U32


@dataclass(frozen=True)
class ArgMax(Params):
    """Index of the first largest (`minimum` 0) or smallest (1) value of each outer x [axis] x inner."""

    kernel = Kernel.ARG_MAX
    input: Ref
    output: Ref
    outer: U32
    axis: U32
    inner: U32
    minimum: U32
    index_bytes: U32


# --- element by element ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Add(Params):
    """int8 a + b: both shifted left, scaled to a common scale, added, scaled back. Subtraction negates b."""

    kernel = Kernel.ADD
    walk: Broadcast
    left_shift: U32
    a_zero: I32
    b_zero: I32
    output_zero: I32
    a_multiplier: I32
    a_shift: I32
    b_multiplier: I32
    b_shift: I32
    output_multiplier: I32
    output_shift: I32
    clamp_min: I32
    clamp_max: I32


@dataclass(frozen=True)
class Mul(Params):
    """int8 (a - a_zero) * (b - b_zero), scaled."""

    kernel = Kernel.MUL
    walk: Broadcast
    a_zero: I32
    b_zero: I32
    output_zero: I32
    multiplier: I32
    shift: I32
    clamp_min: I32
    clamp_max: I32


@dataclass(frozen=True)
class Extremum(Params):
    """int8 maximum (`minimum` 0) or minimum (1) of two inputs of one quantization."""

    kernel = Kernel.EXTREMUM
    walk: Broadcast
    minimum: U32


@dataclass(frozen=True)
class SquaredDifference(Params):
    """int8 (a - b)^2; fields as for Add."""

    kernel = Kernel.SQUARED_DIFFERENCE
    walk: Broadcast
    left_shift: U32
    a_zero: I32
    b_zero: I32
    output_zero: I32
    a_multiplier: I32
    a_shift: I32
    b_multiplier: I32
    b_shift: I32
    output_multiplier: I32
    output_shift: I32
    clamp_min: I32
    clamp_max: I32


@dataclass(frozen=True)
class Prelu(Params):
    """int8 a where a >= 0, else a * b (the slope): one multiplier for each case."""

    kernel = Kernel.PRELU
    walk: Broadcast
    a_zero: I32
    b_zero: I32
    output_zero: I32
    positive_multiplier: I32
    positive_shift: I32
    negative_multiplier: I32
    negative_shift: I32


@dataclass(frozen=True)
class Table(Params):
    """table[256] indexed by the value's bits; `rows` runs of `length` bytes, `*_pitch` bytes apart."""

    kernel = Kernel.TABLE
    input: Ref
    output: Ref
    table: Ref
    rows: U32
    length: U32
    input_pitch: U32
    output_pitch: U32


@dataclass(frozen=True)
class Softmax(Params):
    """int8 softmax along dense rows of `depth` values, fixed point."""

    kernel = Kernel.SOFTMAX
    input: Ref
    output: Ref
    rows: U32
    depth: U32
    multiplier: I32
    shift: I32
    diff_min: I32


@dataclass(frozen=True)
class ResizeBilinear(Params):
    """int8 bilinear resize, NHWC; `tables` holds int32 (low, high, fraction/1024) per row, then column."""

    kernel = Kernel.RESIZE_BILINEAR
    input: Ref
    output: Ref
    tables: Ref
    batch: U32
    in_h: U32
    in_w: U32
    out_h: U32
    out_w: U32
    channels: U32


@dataclass(frozen=True)
class Quantize(Params):
    """float32 to int8: round(x / scale) + zero, saturated."""

    kernel = Kernel.QUANTIZE
    input: Ref
    output: Ref
    count: U32
    scale: F32
    zero: I32


@dataclass(frozen=True)
class Dequantize(Params):
    """int8 to float32: scale * (x - zero)."""

    kernel = Kernel.DEQUANTIZE
    input: Ref
    output: Ref
    count: U32
    scale: F32
    zero: I32


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

    A stage is a window kernel (its y0 and y1 are the step's), an element-wise kernel or a TABLE; of the last
    two, the outermost dimension (`dims[0]`, `rows`) counts rows, and `Ref.rows` makes a rolling buffer.
    """

    kernel = Kernel.CASCADE
    stages: U32
    count: U32
    steps: Annotated[tuple[Step, ...], Tail(Step)]


PARAMS: dict[Kernel, type[Params]] = {cls.kernel: cls for cls in Params.__subclasses__()}
assert list(PARAMS) and set(PARAMS) == set(Kernel), "every kernel has parameters"
