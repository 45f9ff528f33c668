"""A board made of a pty, written from the protocol's description alone: no code is shared with the client.

It answers as NXP's modelrunner does. What a program computes it is told: `compute` maps the bytes of the
input to those of the outputs. A `Fault` changes what goes over the line.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
import tty
from collections.abc import Callable
from dataclasses import dataclass, field

TYPES = {"uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7,
         "bool": 11}  # fmt: skip
BANNER = b"\r\nExecuTorch model runner\r\nready, waiting for frames\r\n"


def crc16(data: bytes) -> int:
    """CRC-16/CCITT-FALSE: polynomial 0x1021, initial 0xFFFF."""
    value = 0xFFFF
    for byte in data:
        value = (value << 8 & 0xFFFF) ^ _ROWS[value >> 8 ^ byte]
    return value


def _row(value: int) -> int:
    for _ in range(8):
        value = (value << 1 ^ 0x1021 if value & 0x8000 else value << 1) & 0xFFFF
    return value


_ROWS = [_row(number << 8) for number in range(256)]


def frame(status: int, payload: bytes = b"") -> bytes:
    """An answer as bytes."""
    body = bytes([status]) + len(payload).to_bytes(4, "little") + payload
    return b"\x55\xaa" + body + crc16(body).to_bytes(2, "little")


@dataclass
class Shape:
    """A tensor as INFO and RESULT have it."""

    dtype: str
    sizes: tuple[int, ...]
    nbytes: int
    order: tuple[int, ...] = ()

    def head(self, with_order: bool) -> bytes:
        """Everything but the values."""
        rank = len(self.sizes)
        order = bytes(self.order or range(rank)) if with_order else b""
        sizes = struct.pack(f"<{rank}i", *self.sizes)
        return bytes([TYPES[self.dtype], rank]) + sizes + order + self.nbytes.to_bytes(4, "little")


@dataclass
class Model:
    """What the board is told of the program it will be sent."""

    inputs: list[Shape]
    outputs: list[Shape]
    compute: Callable[[bytes], list[bytes]]
    microseconds: int = 848


Send = Callable[[bytes], None]
Fault = Callable[[int, bytes, "Board"], bytes | None]  # (command, answer) -> what is sent instead


@dataclass
class Limits:
    """As in the description."""

    program: int = 384 * 1024
    input: int = 256 * 1024
    info: int = 256


@dataclass
class Board:
    """A board; `name` is the port to open."""

    model: Model
    fault: Fault | None = None
    errors: dict[int, tuple[int, bytes]] = field(
        default_factory=dict
    )  # command -> the error it is answered with
    banner: bytes = b""
    limits: Limits = field(default_factory=Limits)
    received: list[tuple[int, int]] = field(default_factory=list)  # (command, length)
    _loaded: bytes | None = None
    _input: bytes | None = None

    def __enter__(self) -> Board:
        self.master, slave = os.openpty()
        tty.setraw(self.master)
        tty.setraw(slave)
        self.name = os.ttyname(slave)
        self._slave: int | None = slave
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
        for handle in (self.master, self._slave):
            try:
                if handle is not None:
                    os.close(handle)
            except OSError:
                pass

    def disappear(self) -> None:
        """As if it were unplugged."""
        self._stop.set()
        if self._slave is not None:
            os.close(self._slave)
            self._slave = None
        os.close(self.master)

    def send(self, data: bytes) -> None:
        """Bytes onto the line."""
        while data and not self._stop.is_set():
            _, ready, _ = select.select([], [self.master], [], 0.1)
            if ready:
                data = data[os.write(self.master, data) :]

    def reset(self) -> None:
        """As if the reset button were pressed."""
        self._loaded = self._input = None
        self.send(self.banner)

    def _serve(self) -> None:
        try:
            self.send(self.banner)
            buffer = bytearray()
            while not self._stop.is_set():
                buffer += self._read()
                while (answer := self.answer(buffer)) is not None:
                    self.send(answer)
        except (OSError, ValueError):
            return  # the other side has gone

    def answer(self, buffer: bytearray) -> bytes | None:
        """What is sent for the next whole frame in the buffer; None if there is none."""
        found = self._frame(buffer)
        if found is None:
            return None
        command, payload, good = found
        self.received.append((command, len(payload)))
        answer = self._answer(command, payload) if good else frame(0xC0, b"\x01bad crc")
        if self.fault is not None:
            changed = self.fault(command, answer, self)
            answer = b"" if changed is None else changed
        return answer

    def _read(self) -> bytes:
        ready, _, _ = select.select([self.master], [], [], 0.02)
        return os.read(self.master, 65536) if ready else b""

    def _frame(self, buffer: bytearray) -> tuple[int, bytes, bool] | None:
        at = buffer.find(b"\x55\xaa")
        if at < 0:
            return None
        del buffer[:at]
        if len(buffer) < 7:
            return None
        length = int.from_bytes(buffer[3:7], "little")
        if len(buffer) < 9 + length:
            return None
        body, check = bytes(buffer[2 : 7 + length]), int.from_bytes(buffer[7 + length : 9 + length], "little")
        del buffer[: 9 + length]
        return body[0], body[5:], crc16(body) == check

    def _answer(self, command: int, payload: bytes) -> bytes:
        if command in self.errors:
            code, text = self.errors[command]
            return frame(0xC0, bytes([code]) + text)
        if command == 1:
            self._input = None
            if len(payload) > self.limits.program:
                return frame(0xC0, b"\x03model too big")
            self._loaded = payload
            return frame(0x81)
        if command == 2:
            if self._loaded is None:
                return frame(0xC0, b"\x08no model")
            if len(payload) != self.model.inputs[0].nbytes or len(payload) > self.limits.input:
                return frame(0xC0, b"\x05input size")
            self._input = payload
            return frame(0x81)
        if command == 3:
            if self._loaded is None or self._input is None:
                return frame(0xC0, b"\x08no model or input")
            given, self._input = self._input, None
            return frame(0x83, self._result(given))
        if command == 4:
            info = self._info() if self._loaded is not None else b""
            return frame(0x82, info if len(info) <= self.limits.info else b"")
        return frame(0xC0, b"\x02unknown command")

    def _info(self) -> bytes:
        parts = [bytes([len(self.model.inputs)]), *(t.head(True) for t in self.model.inputs)]
        parts += [bytes([len(self.model.outputs)]), *(t.head(True) for t in self.model.outputs)]
        return b"".join(parts)

    def _result(self, given: bytes) -> bytes:
        values = self.model.compute(given)
        pairs = zip(self.model.outputs, values, strict=True)
        head = self.model.microseconds.to_bytes(8, "little") + bytes([len(values)])
        return head + b"".join(t.head(False) + data for t, data in pairs)


class Wire:
    """A line to the same board without a thread, on which time passes only while nothing comes."""

    def __init__(self, board: Board):
        self.board, self.now = board, 0.0
        self._in, self._out = bytearray(), bytearray(board.banner)

    def clock(self) -> float:
        """Seconds."""
        return self.now

    def read(self, seconds: float) -> bytes:
        """What the board has sent."""
        if not self._out:
            self.now += max(seconds, 0.001)
        data, self._out = bytes(self._out), bytearray()
        return data

    def write(self, data: bytes, seconds: float) -> None:
        """To the board, which answers at once."""
        self._in += data
        while (answer := self.board.answer(self._in)) is not None:
            self._out += answer

    def close(self) -> None:
        """Nothing to do."""


def slowly(seconds: float, piece: int = 8) -> Fault:
    """Answers come in pieces, with pauses."""

    def fault(command: int, answer: bytes, board: Board) -> bytes | None:
        for at in range(0, len(answer), piece):
            board.send(answer[at : at + piece])
            time.sleep(seconds)
        return None

    return fault
