"""The microcode format: the one definition that the compiler, the disassembler and the C runtime share.

A microcode is a header, the descriptors of its inputs and outputs, and a list of kernel calls, little endian:

    Header (160 bytes) | Descriptor x (inputs + outputs) | State x states | Call, Call, ...

A call is one word `kernel | size << 16` (the size of the record in bytes, this word included) and the
parameters of that kernel (`kernels`). A cascade's stages are the calls behind it, and so is a loop's body.
Every address and size is explicit, so that the driver can check all of it before it runs anything.

The header keeps the word positions that NXP's runtime reads sizes from, but a magic of its own: this
microcode is for OpenNeutron's firmware, and NXP's runtime must refuse it.

`python -m openneutron.compiler.microcode --write` writes the C header and docs/microcode.md; `--check`
compares them.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any

from openneutron.compiler.microcode.expression import *  # noqa: F403
from openneutron.compiler.microcode.forms import *  # noqa: F403  (this module is the format, all of it)
from openneutron.compiler.microcode.forms import Params, dims_text
from openneutron.compiler.microcode.kernels import *  # noqa: F403
from openneutron.compiler.microcode.kernels import PARAMS, Cascade, Kernel, Loop, Prefetch, Wait
from openneutron.compiler.microcode.records import *  # noqa: F403
from openneutron.compiler.microcode.records import (
    U32,
    Dims8,
    Name32,
    U32x4,
    Word,
    format_of,
    layout,
    pack,
    tail_of,
    unpack,
)
from openneutron.diagnostics import fail
from openneutron.targets.chip import INVENTED
from openneutron.targets.table import TARGETS

MAGIC = 0x314E_4E4F  # "ONN1"
FORMAT_VERSION = 2
ALIGNMENT = 16

# The number in a microcode of every target; a chip that a user made up has one that no firmware runs.
TARGET_IDS = {target.name: target.number for target in TARGETS.values()}
INVENTED_NAME = "invented"
TARGET_NAMES = {number: name for name, number in TARGET_IDS.items()} | {INVENTED: INVENTED_NAME}


class DType(IntEnum):
    """Element types of program inputs and outputs."""

    INT8 = 0
    UINT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT32 = 5
    BOOL = 6


@dataclass(frozen=True)
class Descriptor:
    """A program input or output: dense, `bytes` long, in the caller's buffer or at `place` - 1 in scratch.

    An input in scratch is overwritten once it is not needed any more; an output is there when all is done.
    """

    dtype: U32
    rank: U32
    bytes: U32
    place: U32 = 0  # 0: in a buffer of its own
    dims: Dims8 = (0,) * 8


@dataclass(frozen=True)
class State:
    """A tensor that survives from run to run: dense, `bytes` long, at `offset` in the STATE region.

    It starts from the bytes at `initial` - 1 in the weights, or with `initial` 0 from `fill` in every byte.
    """

    dtype: U32
    rank: U32
    bytes: U32
    offset: U32
    dims: Dims8 = (0,) * 8
    initial: U32 = 0
    fill: U32 = 0
    name: Name32 = b""

    @property
    def label(self) -> str:
        """Its name, with `?` for what no name has."""
        return plain_name(self.name)


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
    states: U32 = 0
    state_bytes: U32 = 0  # of the STATE region: all that survives from run to run
    reserved: Annotated[tuple[int, ...], Word("uint32_t", "I", 9)] = (0,) * 9
    converter: Name32 = b""

    @property
    def name(self) -> str:
        """The converter's name, with `?` for what no name has: it goes into C comments and onto terminals."""
        return plain_name(self.converter)


def plain_name(raw: bytes) -> str:
    """A name in a microcode, with `?` for what no name has."""
    return re.sub(r"[^\w .+-]", "?", raw.rstrip(b"\0").decode("ascii", "replace"), flags=re.ASCII)


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
    states: tuple[State, ...] = ()
    state_bytes: int = 0
    header: Header | None = field(default=None, compare=False)

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels the calls need, in table order."""
        return sorted({c.kernel for c in self.calls})


# The contract between `select` and the assembler; a call is its parameters.
KernelCall = Params


def encode(program: Program) -> bytes:
    """The microcode of a program; the same program gives the same bytes."""
    body = b"".join(map(pack, (*program.inputs, *program.outputs, *program.states)))
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
        target=TARGET_IDS.get(program.target, INVENTED),
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
        states=len(program.states),
        state_bytes=program.state_bytes,
        converter=program.converter.encode()[:31],
    )
    return with_checksum(pack(header) + body)


CRC_OFFSET = 14 * 4


def with_checksum(microcode: bytes) -> bytes:
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
    if with_checksum(raw) != raw:
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
    states = []
    for _ in range(header.states):
        states.append(unpack(State, raw, at))
        at += format_of(State).size
    calls: list[Params] = []
    at = header.calls_offset
    for _ in range(header.calls):
        kind, size = struct.unpack_from("<HH", raw, at)
        cls = PARAMS[Kernel(kind)]
        fixed, tail = 4 + format_of(cls).size, tail_of(cls)
        more = size - fixed
        if more and (tail is None or more < 0 or more % format_of(tail[1]).size):
            raise ValueError(f"call {len(calls)} has {size} bytes, {cls.__name__} takes {fixed}")
        calls.append(unpack(cls, raw, at + 4, more))
        at += size
    version = header.converter_version
    return Program(
        calls=tuple(calls),
        inputs=tuple(descriptors[: header.inputs]),
        outputs=tuple(descriptors[header.inputs :]),
        weights_bytes=header.weights_bytes,
        scratch_bytes=header.scratch_bytes,
        prefetch_bytes=header.prefetch_bytes,
        target=TARGET_NAMES[header.target],
        converter=header.name,
        converter_version=(version >> 16, version >> 8 & 255, version & 255),
        weights_crc=header.weights_crc,
        states=tuple(states),
        state_bytes=header.state_bytes,
        header=header,
    )


def disassemble(program: Program) -> list[str]:
    """The program as text, one line a call."""
    major, minor, patch = program.converter_version
    lines = [
        f"; OpenNeutron microcode, format {FORMAT_VERSION}, target {program.target}, "
        f"{program.converter} {major}.{minor}.{patch}",
        f"; bytes: weights {program.weights_bytes}, scratch {program.scratch_bytes}, "
        f"prefetch {program.prefetch_bytes}" + (f", state {program.state_bytes}" if program.states else ""),
    ]
    for name, items in (("input", program.inputs), ("output", program.outputs)):
        for i, d in enumerate(items):
            shape = list(d.dims[: d.rank])
            where = f" in scratch at {d.place - 1}" if d.place else ""
            lines.append(f"; {name}{i}: {DType(d.dtype).name.lower()}{shape} {d.bytes} bytes{where}")
    for i, state in enumerate(program.states):
        start = f"weights+{state.initial - 1}" if state.initial else f"byte {state.fill}"
        lines.append(
            f"; state{i}: {state.label} {DType(state.dtype).name.lower()}{list(state.dims[: state.rank])} "
            f"{state.bytes} bytes at state+{state.offset}, starts from {start}"
        )
    stages = 0  # of the last cascade or loop, still to come
    for i, call in enumerate(program.calls):
        text = " ".join(_operand(call, name) for name, _ in layout(type(call)))
        lines.append(f"{i:4d}  {'  ' if stages else ''}{call.kernel.name.lower():<18} {text}")
        stages = max(0, stages - 1)
        if isinstance(call, Cascade):
            stages = call.stages
        elif isinstance(call, Loop):
            stages = call.body
        if (tail := tail_of(type(call))) is not None:
            items = getattr(call, tail[0])
            lines += [f"      ; {' '.join(map(str, row))}" for row in _rows(items, 10)]
    return lines


def _rows(items: Sequence[Any], count: int) -> list[Sequence[Any]]:
    return [items[i : i + count] for i in range(0, len(items), count)]


def _operand(call: Params, name: str) -> str:
    value = getattr(call, name)
    if isinstance(value, tuple):
        return f"{name}={','.join(map(str, value))}" if "stride" in name else f"{name}={dims_text(value)}"
    return f"{name}={value}"


def descriptor(dtype: str, shape: Sequence[int], at: int | None = None) -> Descriptor:
    """The descriptor of a dense tensor in a buffer of its own, or `at` an offset in scratch."""
    kind = DType[dtype.upper()]
    sizes = {DType.INT16: 2, DType.INT32: 4, DType.INT64: 8, DType.FLOAT32: 4}
    count = sizes.get(kind, 1)
    for d in shape:
        count *= d
    if len(shape) > 8:
        raise ValueError(f"rank {len(shape)} is more than 8")
    place = 0 if at is None else at + 1
    return Descriptor(kind, len(shape), count, place, tuple(shape) + (0,) * (8 - len(shape)))
