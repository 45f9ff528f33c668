"""The frames of the serial protocol, and what is in them: the only definition of their bytes.

    0x55 0xAA | command or status, 1 byte | payload length, u32 | payload | CRC, u16        little endian

The protocol is the one of NXP's `executorch_modelrunner`. Commands and statuses from 0x10 and 0x90 on are
extensions of OpenNeutron's firmware, which the stock firmware refuses.
"""

from __future__ import annotations

import binascii
import struct
from dataclasses import dataclass, field
from enum import IntEnum

SYNC = b"\x55\xaa"
HEAD = struct.Struct("<BI")  # command or status, length of the payload
CRC = struct.Struct("<H")
BAUD = 115200


class Command(IntEnum):
    """What a client asks."""

    LOAD_MODEL = 0x01
    LOAD_INPUT = 0x02
    RUN = 0x03  # with a payload of one byte, OpenNeutron's firmware counts every step
    GET_INFO = 0x04
    HELLO = 0x10  # from here on OpenNeutron's firmware alone
    OPERATORS = 0x11  # the names of the CPU's operators
    METHODS = 0x12  # the names of the program's methods
    SELECT = 0x13  # a method, by its name; its state is new
    LOAD_INPUT_AT = 0x14  # one of several: its number, a byte, then its bytes
    RESET = 0x15  # the method as it was when it was loaded
    STEPS = 0x16  # what every step of the last run took


class Status(IntEnum):
    """What a board answers."""

    OK = 0x81
    INFO = 0x82
    RESULT = 0x83
    HELLO = 0x90
    TEXT = 0x91
    ERROR = 0xC0


class Code(IntEnum):
    """Why a board refuses: the first byte of an ERROR."""

    CRC = 0x01
    PROTOCOL = 0x02
    MODEL_TOO_BIG = 0x03
    MODEL_LOAD = 0x04
    INPUT_SIZE = 0x05
    NPU_INIT = 0x06
    EXECUTE = 0x07
    NO_MODEL = 0x08
    PROGRAM = 0x10
    METHOD_NAME = 0x11
    METHOD_META = 0x12
    PLANNED_BUFFERS = 0x13
    LOAD_METHOD = 0x14


# ExecuTorch's ScalarType numbers that NumPy has too.
DTYPES = {0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
          11: "bool"}  # fmt: skip
SIZES = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1}


@dataclass(frozen=True)
class Frame:
    """One answer."""

    status: int
    payload: bytes = field(repr=False)


@dataclass(frozen=True)
class Tensor:
    """An input or output as a board describes it; `data` is there in a result only."""

    dtype: str
    shape: tuple[int, ...]
    dim_order: tuple[int, ...] = ()
    nbytes: int = 0
    data: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Info:
    """What a board says of the method it has loaded; nothing if it has none, or too much to say."""

    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Result:
    """The outputs of one inference, and what it took."""

    microseconds: int
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Hello:
    """What OpenNeutron's firmware says of itself; sizes are in bytes."""

    version: int
    microcode: int  # the format it runs
    instructions_per_microsecond: int  # of an emulator, whose times are counted instructions; 0 on a board
    program_bytes: int
    planned_bytes: int
    method_bytes: int
    temporary_bytes: int
    io_bytes: int
    core: str


HELLO = struct.Struct("<BBIIIIII")
HELLO_VERSION = 1


class Malformed(Exception):
    """The payload of a whole frame is not what its status says."""


def checksum(data: bytes) -> int:
    """CRC-16/CCITT-FALSE."""
    return binascii.crc_hqx(data, 0xFFFF)


def encode(command: int, payload: bytes = b"") -> bytes:
    """A frame."""
    body = HEAD.pack(command, len(payload)) + payload
    return SYNC + body + CRC.pack(checksum(body))


class Scanner:
    """Finds frames in what a line brings; what is no frame is left out and counted."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.expect(0)

    def expect(self, most: int) -> None:
        """Begin a question, whose answer has at most so many bytes; what is there already stays."""
        self.most = most
        self.skipped = bytearray()  # the last of what was no frame, for a message
        self.bad_checksum = self.half = self.too_long = 0

    def clear(self) -> None:
        """Forget what is there."""
        self._buffer.clear()

    def feed(self, data: bytes) -> None:
        """Add what has come."""
        self._buffer += data

    def next(self, quiet: bool = False) -> Frame | None:
        """The next whole frame; with `quiet` nothing more will come, and what is incomplete is no frame."""
        while True:
            at = self._buffer.find(SYNC)
            if at < 0:
                keep = 0 if quiet or not self._buffer.endswith(SYNC[:1]) else 1
                self._skip(len(self._buffer) - keep)
                return None
            self._skip(at)
            start, size = len(SYNC), len(SYNC) + HEAD.size
            if len(self._buffer) < size:
                if not quiet:
                    return None
                self.half += 1
                self._skip(1)
                continue
            status, length = HEAD.unpack_from(self._buffer, start)
            end = size + length
            if length > self.most:
                self.too_long += 1
            elif len(self._buffer) < end + CRC.size:
                if not quiet:
                    return None
                self.half += 1
            elif CRC.unpack_from(self._buffer, end)[0] == checksum(bytes(self._buffer[start:end])):
                payload = bytes(self._buffer[size:end])
                del self._buffer[: end + CRC.size]
                return Frame(status, payload)
            else:
                self.bad_checksum += 1
            self._skip(1)  # a frame may begin within what only looked like one

    def _skip(self, count: int) -> None:
        if count > 0:
            self.skipped = (self.skipped + self._buffer[:count])[-200:]
            del self._buffer[:count]


class _Reader:
    def __init__(self, data: bytes):
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise Malformed(f"it ends after {len(self._data)} bytes, in the middle of a field")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, count: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(count), "little", signed=signed)

    def end(self) -> None:
        if self._at != len(self._data):
            raise Malformed(f"{len(self._data) - self._at} bytes follow the last field")

    def tensor(self, with_order: bool, with_data: bool) -> Tensor:
        dtype, rank = self.number(1), self.number(1)
        if dtype not in DTYPES:
            raise Malformed(f"there is no type {dtype}")
        shape = tuple(self.number(4, signed=True) for _ in range(rank))
        order = tuple(self.take(rank)) if with_order else ()
        nbytes, wanted = self.number(4), SIZES[dtype]
        for size in shape:
            wanted *= size
        if min(shape, default=0) < 0 or nbytes != wanted:
            raise Malformed(f"a tensor {DTYPES[dtype]}{list(shape)} is said to have {nbytes} bytes")
        if with_order and sorted(order) != list(range(rank)):
            raise Malformed(f"{list(order)} is no order of {rank} dimensions")
        return Tensor(DTYPES[dtype], shape, order, nbytes, self.take(nbytes) if with_data else b"")


def parse_info(payload: bytes) -> Info:
    """The payload of INFO."""
    if not payload:
        return Info()
    reader = _Reader(payload)
    inputs = tuple(reader.tensor(True, False) for _ in range(reader.number(1)))
    outputs = tuple(reader.tensor(True, False) for _ in range(reader.number(1)))
    reader.end()
    return Info(inputs, outputs)


def parse_result(payload: bytes) -> Result:
    """The payload of RESULT."""
    reader = _Reader(payload)
    microseconds = reader.number(8)
    outputs = tuple(reader.tensor(False, True) for _ in range(reader.number(1)))
    reader.end()
    return Result(microseconds, outputs)


def parse_hello(payload: bytes) -> Hello:
    """The payload of HELLO; a later version may say more."""
    if len(payload) < HELLO.size:
        raise Malformed(f"it has {len(payload)} bytes, not {HELLO.size} or more")
    core = payload[HELLO.size :].split(b"\0")[0].decode("ascii", "replace")
    return Hello(*(*HELLO.unpack_from(payload), core))


def result_bytes(outputs: list[tuple[int, int]]) -> int:
    """The payload of a RESULT with outputs of these (rank, bytes)."""
    return 9 + sum(6 + 4 * rank + nbytes for rank, nbytes in outputs)
