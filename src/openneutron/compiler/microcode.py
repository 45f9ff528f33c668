"""The microcode format: the one definition that the compiler, the disassembler and the C runtime share.

A microcode is a header, the descriptors of its inputs and outputs, and a list of kernel calls:

    Header (160 bytes) | Descriptor x (inputs + outputs) | Call, Call, ...        all little endian

A call is one word `kernel | size << 16` (size of the record in bytes, this word included) and the fixed-layout
parameters of that kernel. Every address is a `Ref` into one of five regions and every size is explicit, so that
the driver can check all of it before it runs anything. The dataclasses below are the layouts: their annotated
fields, in order, are the words of the record and the members of the C struct of the same name.

The header keeps the word positions that NXP's runtime reads sizes from, but a magic of its own: this microcode
is for OpenNeutron's firmware, and NXP's runtime must refuse it.

`python -m openneutron.compiler.microcode --write` writes the C header, `--check` compares it.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import IntEnum
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from openneutron.diagnostics import fail

MAGIC = 0x314E_4E4F  # "ONN1"
FORMAT_VERSION = 1
MAX_RANK = 6
ALIGNMENT = 16

# The id in a microcode of each target in openneutron.target.TARGETS; never reused.
TARGET_IDS = {"imxrt700": 1}


class Region(IntEnum):
    """Where a `Ref` points. INPUT and WEIGHTS are read only."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2
    WEIGHTS = 3
    PREFETCH = 4


class DType(IntEnum):
    """Element types of program inputs and outputs."""

    INT8 = 0
    UINT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT32 = 5
    BOOL = 6


class Kernel(IntEnum):
    """Kernel kinds: positions in the runtime's kernel table and bits of the required-kernel set; never reused."""

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


@dataclass(frozen=True)
class Word:
    """How an annotated field is stored: C type, `struct` code, and count for an array."""

    c_type: str
    code: str
    count: int = 0


U8 = Annotated[int, Word("uint8_t", "B")]
U16 = Annotated[int, Word("uint16_t", "H")]
U32 = Annotated[int, Word("uint32_t", "I")]
I32 = Annotated[int, Word("int32_t", "i")]
F32 = Annotated[float, Word("float", "f")]
Name32 = Annotated[bytes, Word("char", "s", 32)]
U32x4 = Annotated[tuple[int, ...], Word("uint32_t", "I", 4)]
Dims = Annotated[tuple[int, ...], Word("uint32_t", "I", MAX_RANK)]
Dims8 = Annotated[tuple[int, ...], Word("uint32_t", "I", 8)]
Strides = Annotated[tuple[int, ...], Word("int32_t", "i", MAX_RANK)]


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
    """An NHWC feature map of int8: bytes between neighbouring pixels and between rows, dense over the batch."""

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
    """Two inputs and an output walked together over `dims`; strides in bytes, 0 where an input is broadcast."""

    a: Ref
    b: Ref
    output: Ref
    dims: Dims
    a_strides: Strides
    b_strides: Strides
    output_strides: Strides

    def __str__(self) -> str:
        return f"{self.output} <- {self.a}, {self.b} over {_dims(self.dims)}"


def _dims(dims: Sequence[int]) -> str:
    kept = list(dims)
    while len(kept) > 1 and kept[0] == 1:
        kept.pop(0)
    return "x".join(map(str, kept))


class Params:
    """Base of kernel parameters; a subclass names its kernel."""

    kernel: ClassVar[Kernel]


# --- kernels that move data --------------------------------------------------------------------------------------


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

    `tables` holds dims[0] + ... + dims[5] int32 byte offsets; every sum must leave a run inside `input_bytes`.
    """

    kernel = Kernel.GATHER
    input: Ref
    output: Ref
    tables: Ref
    dims: Dims
    run: U32
    input_bytes: U32


# --- convolutions, products, pools -------------------------------------------------------------------------------


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

    The product is scaled in double precision, as the definition of "exact" demands; `scales` is double[out_features].
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


# --- reductions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReduceSum(Params):
    """int8 sum or mean: the sum over `reduced` of (value - input_zero), scaled by the multiplier; dense output."""

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
    """int32 index of the first largest (`minimum` 0) or smallest (1) value along the middle of outer x axis x inner."""

    kernel = Kernel.ARG_MAX
    input: Ref
    output: Ref
    outer: U32
    axis: U32
    inner: U32
    minimum: U32
    index_bytes: U32


# --- element by element ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Add(Params):
    """int8 a + b: both shifted left and scaled to a common scale, added, scaled back. Subtraction negates b."""

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
    """One byte in, one byte out through table[256], indexed by the value's bits; `rows` runs of `length` bytes."""

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
    """int8 bilinear resize of an NHWC map; `tables` holds (low, high, fraction/1024) int32 for each row, column."""

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


PARAMS: dict[Kernel, type[Params]] = {cls.kernel: cls for cls in Params.__subclasses__()}
assert list(PARAMS) and set(PARAMS) == set(Kernel), "every kernel has parameters"


# --- the whole ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Descriptor:
    """A program input or output: dense, `bytes` long."""

    dtype: U32
    rank: U32
    bytes: U32
    reserved: U32 = 0
    dims: Dims8 = (0,) * 8


@dataclass(frozen=True)
class Header:
    """The first 160 bytes. Words 6, 7, 9, 10, 11 and 12 are where NXP's runtime looks for the same sizes."""

    magic: U32 = MAGIC
    format_version: U32 = FORMAT_VERSION
    converter_version: U32 = 0
    target: U32 = 0
    header_bytes: U32 = 0
    flags: U32 = 0
    microcode_bytes: U32 = 0
    weights_bytes: U32 = 0
    calls: U32 = 0
    scratch_bytes: U32 = 0
    prefetch_bytes: U32 = 0
    inputs: U32 = 0
    outputs: U32 = 0
    calls_offset: U32 = 0
    crc: U32 = 0  # CRC-32 of the microcode with this word 0
    weights_crc: U32 = 0
    required_kernels: U32x4 = (0,) * 4
    channels: U32 = 0  # prefetch channels used: 0 .. channels - 1
    reserved: U32x4 = (0,) * 4
    reserved2: U32x4 = (0,) * 4
    reserved3: Annotated[tuple[int, ...], Word("uint32_t", "I", 3)] = (0,) * 3
    converter: Name32 = b""


@dataclass(frozen=True)
class Program:
    """A decoded microcode: what runs, on which inputs, with how much memory."""

    calls: tuple[Params, ...]
    inputs: tuple[Descriptor, ...]
    outputs: tuple[Descriptor, ...]
    weights_bytes: int
    scratch_bytes: int
    prefetch_bytes: int = 0
    target: str = "imxrt700"
    converter: str = "openneutron"
    converter_version: tuple[int, int, int] = (0, 0, 0)
    weights_crc: int = 0
    header: Header | None = field(default=None, compare=False)

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels the calls need, in table order."""
        return sorted({c.kernel for c in self.calls})


# The contract between `select` and the assembler; a call is its parameters.
KernelCall = Params

T = TypeVar("T")


def layout(cls: type) -> Iterator[tuple[str, Word | type]]:
    """(name, how stored) of each field of a layout: a Word, or the class of a nested layout."""
    hints = get_type_hints(cls, include_extras=True)
    for f in fields(cls):
        hint = hints[f.name]
        if get_origin(hint) is Annotated:
            yield f.name, next(a for a in get_args(hint) if isinstance(a, Word))
        else:
            assert is_dataclass(hint), f"{cls.__name__}.{f.name} has no layout"
            yield f.name, hint


@cache
def format_of(cls: type) -> struct.Struct:
    """The `struct` of a layout, nested ones in line."""
    return struct.Struct("<" + _codes(cls))


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
    """The bytes of one layout."""
    try:
        return format_of(type(value)).pack(*_flatten(value))
    except struct.error as error:
        raise ValueError(f"{value}: {error}") from error


def unpack(cls: type[T], raw: bytes, offset: int = 0) -> T:
    """One layout read from bytes."""
    return _build(cls, iter(format_of(cls).unpack_from(raw, offset)))


def _build(cls: type[T], values: Iterator[Any]) -> T:
    items: dict[str, Any] = {}
    for name, word in layout(cls):
        if not isinstance(word, Word):
            items[name] = _build(word, values)
        elif word.count and word.code != "s":
            items[name] = tuple(next(values) for _ in range(word.count))
        else:
            items[name] = next(values)
    return cls(**items)


def encode(program: Program) -> bytes:
    """The microcode of a program; the same program gives the same bytes."""
    body = b"".join(map(pack, (*program.inputs, *program.outputs)))
    calls_offset = format_of(Header).size + len(body)
    for call in program.calls:
        params = pack(call)
        body += struct.pack("<HH", call.kernel, 4 + len(params)) + params
    body += b"\0" * (-(format_of(Header).size + len(body)) % ALIGNMENT)
    bits = sum(1 << k for k in program.kernels)
    channels = [c.channel + 1 for c in program.calls if isinstance(c, Prefetch | Wait)]
    major, minor, patch = program.converter_version
    header = Header(
        converter_version=major << 16 | minor << 8 | patch,
        target=TARGET_IDS[program.target],
        header_bytes=format_of(Header).size,
        microcode_bytes=format_of(Header).size + len(body),
        weights_bytes=program.weights_bytes,
        calls=len(program.calls),
        scratch_bytes=program.scratch_bytes,
        prefetch_bytes=program.prefetch_bytes,
        inputs=len(program.inputs),
        outputs=len(program.outputs),
        calls_offset=calls_offset,
        weights_crc=program.weights_crc,
        required_kernels=tuple(bits >> 32 * i & 0xFFFF_FFFF for i in range(4)),
        channels=max(channels, default=0),
        converter=program.converter.encode()[:31],
    )
    return seal(pack(header) + body)


CRC_OFFSET = 14 * 4


def seal(microcode: bytes) -> bytes:
    """The same microcode with its checksum set."""
    zeroed = microcode[:CRC_OFFSET] + bytes(4) + microcode[CRC_OFFSET + 4 :]
    return zeroed[:CRC_OFFSET] + struct.pack("<I", zlib.crc32(zeroed)) + zeroed[CRC_OFFSET + 4 :]


def decode(raw: bytes, where: str = "microcode") -> Program:
    """The program in a microcode; damaged or foreign bytes are a diagnostic."""
    size = format_of(Header).size
    if len(raw) < 4 or struct.unpack_from("<I", raw)[0] != MAGIC:
        fail("ON501", where, "not an OpenNeutron microcode", "It may have been made by NXP's converter.")
    if len(raw) < size:
        fail("ON501", where, f"truncated: {len(raw)} bytes, the header alone has {size}")
    header = unpack(Header, raw)
    if header.format_version != FORMAT_VERSION:
        fail("ON502", where, f"format version {header.format_version}, this is version {FORMAT_VERSION}",
             "Compile the model again with this version of openneutron.")  # fmt: skip
    if header.microcode_bytes > len(raw) or header.header_bytes != size:
        fail("ON501", where, f"truncated: {len(raw)} of {header.microcode_bytes} bytes")
    raw = raw[: header.microcode_bytes]
    if seal(raw) != raw:
        fail("ON501", where, "damaged: the checksum does not match")
    try:
        return _decode_body(raw, header)
    except (struct.error, KeyError, ValueError, StopIteration) as error:
        fail("ON501", where, f"damaged: {type(error).__name__}: {error}")


def _decode_body(raw: bytes, header: Header) -> Program:
    at = header.header_bytes
    descriptors = []
    for _ in range(header.inputs + header.outputs):
        descriptors.append(unpack(Descriptor, raw, at))
        at += format_of(Descriptor).size
    calls = []
    at = header.calls_offset
    for _ in range(header.calls):
        kind, size = struct.unpack_from("<HH", raw, at)
        cls = PARAMS[Kernel(kind)]
        if size != 4 + format_of(cls).size:
            raise ValueError(
                f"call {len(calls)} has {size} bytes, {cls.__name__} takes {4 + format_of(cls).size}"
            )
        calls.append(unpack(cls, raw, at + 4))
        at += size
    version = header.converter_version
    targets = {number: name for name, number in TARGET_IDS.items()}
    return Program(
        calls=tuple(calls),
        inputs=tuple(descriptors[: header.inputs]),
        outputs=tuple(descriptors[header.inputs :]),
        weights_bytes=header.weights_bytes,
        scratch_bytes=header.scratch_bytes,
        prefetch_bytes=header.prefetch_bytes,
        target=targets[header.target],
        converter=header.converter.rstrip(b"\0").decode(errors="replace"),
        converter_version=(version >> 16, version >> 8 & 255, version & 255),
        weights_crc=header.weights_crc,
        header=header,
    )


def disassemble(program: Program) -> list[str]:
    """The program as text, one line a call."""
    major, minor, patch = program.converter_version
    lines = [
        f"; OpenNeutron microcode, format {FORMAT_VERSION}, target {program.target}, "
        f"{program.converter} {major}.{minor}.{patch}",
        f"; weights {program.weights_bytes}, scratch {program.scratch_bytes}, prefetch {program.prefetch_bytes} bytes",
    ]
    for name, items in (("input", program.inputs), ("output", program.outputs)):
        for i, d in enumerate(items):
            shape = list(d.dims[: d.rank])
            lines.append(f"; {name}{i}: {DType(d.dtype).name.lower()}{shape} {d.bytes} bytes")
    for i, call in enumerate(program.calls):
        text = " ".join(_operand(call, name) for name, _ in layout(type(call)))
        lines.append(f"{i:4d}  {call.kernel.name.lower():<18} {text}")
    return lines


def _operand(call: Params, name: str) -> str:
    value = getattr(call, name)
    if isinstance(value, tuple):
        return f"{name}={','.join(map(str, value))}" if "stride" in name else f"{name}={_dims(value)}"
    return f"{name}={value}"


def descriptor(dtype: str, shape: Sequence[int]) -> Descriptor:
    """The descriptor of a dense tensor."""
    kind = DType[dtype.upper()]
    sizes = {DType.INT16: 2, DType.INT32: 4, DType.INT64: 8, DType.FLOAT32: 4}
    count = sizes.get(kind, 1)
    for d in shape:
        count *= d
    if len(shape) > 8:
        raise ValueError(f"rank {len(shape)} is more than 8")
    return Descriptor(kind, len(shape), count, 0, tuple(shape) + (0,) * (8 - len(shape)))


if __name__ == "__main__":
    from openneutron.compiler.microcode_header import main

    sys.exit(main(sys.argv[1:]))
