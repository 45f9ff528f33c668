"""The client of a board: one question, one answer, and a sentence for everything else that can come.

The protocol has no numbers that tell which question an answer belongs to. So the client never asks again
after a failure, and after every run it asks once more what is loaded: a board answers in order, so a second
RESULT before that INFO means that the first one was an answer to an earlier question.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from openneutron.board.frames import (
    Code,
    Command,
    Frame,
    Hello,
    Info,
    Malformed,
    Result,
    Scanner,
    Status,
    encode,
    parse_hello,
    parse_info,
    parse_result,
)
from openneutron.board.port import LineError, Port
from openneutron.diagnostics import fail, printable

QUIET_SECONDS = 0.25  # a line without a byte for so long has ended what it was saying
BANNER_SECONDS = 5.0  # and one that never ends is refused after this
CHUNK = 2048
SMALL = 65536  # bytes of an answer that is no result
_SHOWN = 60
_AGAIN = "Reset the board and try again; if it stays so, check cable, port and --baud."

EXPLAINED: dict[int, tuple[str, str]] = {
    Code.CRC: ("what it received had a wrong checksum", "The line loses bytes: check the cable and --baud."),
    Code.PROTOCOL: ("it does not know the command", "Is it the modelrunner firmware, or `firmware --serve`?"),
    Code.MODEL_TOO_BIG: ("the program is larger than its buffer", "Compile a smaller model."),
    Code.MODEL_LOAD: ("the program could not be loaded", "Compile it again for this chip and firmware."),
    Code.INPUT_SIZE: ("the input has another size than its program's", "Is it the program you gave?"),
    Code.NPU_INIT: ("the NPU could not be started", "Reset the board; is its firmware for this chip?"),
    Code.EXECUTE: ("the program failed while running", "Reset the board; `openneutron run` tells more here."),
    Code.NO_MODEL: ("it has no program or no input", "It was reset in between: run the command again."),
    Code.PROGRAM: ("ExecuTorch refused the program", "Is its ExecuTorch the version that wrote the program?"),
    Code.METHOD_NAME: ("the program has no method", "Compile it again."),
    Code.METHOD_META: ("the description of the method is unreadable", "Compile it again."),
    Code.PLANNED_BUFFERS: (
        "there is not enough memory for the method's tensors",
        "Compile it with a smaller --sram, or a smaller model.",
    ),
    Code.LOAD_METHOD: (
        "the method could not be loaded",
        "An operator is most likely not registered in the firmware, or the NPU refused the microcode.",
    ),
}


class Client:
    """Asks a board; whatever goes wrong is a diagnostic."""

    def __init__(
        self,
        port: Port,
        where: str,
        *,
        baud: int,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._port, self._where, self._timeout, self._now = port, where, timeout, clock
        self._seconds_per_byte = 10 / baud
        self._scanner = Scanner()  # what came behind an answer is there when the next question is asked
        self._described = Info()
        self.banner = ""
        self.loaded = False

    def close(self) -> None:
        """Let the line go."""
        self._port.close()

    # --- questions ---

    def greet(self) -> Info:
        """Skip what the board says at its start, then find out that it answers."""
        self.banner = self._until_quiet()
        for attempt in (1, 2):  # it may have been starting
            try:
                answer = self._ask(Command.GET_INFO, (Status.INFO,), SMALL, wait=self._timeout / 2)
                break
            except _Silent as silent:
                if attempt == 2:
                    self._silent(silent)
        if attempt == 2:
            self._until_quiet()  # the first question may be answered after all
        return self._parsed(parse_info, answer)

    def hello(self) -> Hello | None:
        """What OpenNeutron's firmware says of itself; None for another, which does not know the question."""
        answer = self.ask(Command.HELLO, (Status.HELLO, Status.ERROR))
        if answer.status == Status.ERROR:
            if answer.payload[:1] == bytes([Code.CRC]):
                self._refused(answer, Command.HELLO)
            return None
        return self._parsed(parse_hello, answer)

    def load_model(self, program: bytes, advance: Callable[[float], None] = lambda part: None) -> Info:
        """Upload a program."""
        self.ask(Command.LOAD_MODEL, (Status.OK,), program, advance=advance)
        self.loaded = True
        return self.info()

    def info(self) -> Info:
        """What is loaded."""
        self._described = self._parsed(parse_info, self.ask(Command.GET_INFO, (Status.INFO,)))
        return self._described

    def load_input(self, data: bytes, index: int | None = None) -> None:
        """Upload an input; with an index, one of several."""
        if index is None:
            self.ask(Command.LOAD_INPUT, (Status.OK,), data)
        else:
            self.ask(Command.LOAD_INPUT_AT, (Status.OK,), bytes([index]) + data)

    def run(self, most: int, traced: bool = False) -> Result:
        """Run once; `most` is the size of the answer."""
        payload = b"\1" if traced else b""
        answer = self.ask(Command.RUN, (Status.RESULT,), payload, most=most)
        result = self._parsed(parse_result, answer)
        after = self.ask(Command.GET_INFO, (Status.INFO,), most=max(most, SMALL), strict=True)
        if self._parsed(parse_info, after) != self._described:
            fail("ON723", self._where, "after the run it describes another program than before", _AGAIN)
        return result

    def text(self, command: Command, payload: bytes = b"") -> str:
        """An answer in words."""
        return self.ask(command, (Status.TEXT,), payload, most=1 << 20).payload.decode("utf-8", "replace")

    def select(self, method: str) -> Info:
        """Choose a method."""
        self.ask(Command.SELECT, (Status.OK,), method.encode())
        return self.info()

    def reset(self) -> None:
        """Forget what earlier runs left in the program's state."""
        self.ask(Command.RESET, (Status.OK,))

    # --- one question ---

    def ask(
        self,
        command: Command,
        wanted: tuple[Status, ...],
        payload: bytes = b"",
        *,
        most: int = SMALL,
        strict: bool = False,
        advance: Callable[[float], None] = lambda part: None,
    ) -> Frame:
        """Send a question and wait for its answer; if strict, nothing else may have come since the last."""
        try:
            return self._ask(command, wanted, most, payload, strict=strict, advance=advance)
        except _Silent as silent:
            self._silent(silent)

    def _ask(
        self,
        command: Command,
        wanted: tuple[Status, ...],
        most: int,
        payload: bytes = b"",
        *,
        wait: float | None = None,
        strict: bool = False,
        advance: Callable[[float], None] = lambda part: None,
    ) -> Frame:
        patience = self._timeout if wait is None else wait
        if not strict:
            self._drop()
        self._send(encode(command, payload), advance)
        scanner = self._scanner
        scanner.expect(most)
        # Twice the time the largest answer takes on the line: one that never stops talking is no board.
        last = self._now() + patience + 2 * most * self._seconds_per_byte
        heard = self._now()
        while True:
            frame = scanner.next()
            if frame is None:
                now = self._now()
                left = min(heard + patience, last) - now
                if left <= 0:
                    frame = scanner.next(quiet=True)
                    if frame is None:
                        raise _Silent(command, scanner)
                else:
                    data = self._read(min(left, 0.5))
                    if data:
                        scanner.feed(data)
                        heard = self._now()
                    continue
            if frame.status in wanted:
                return frame
            if strict and frame.status == Status.RESULT:
                fail("ON723", self._where, "it sent two results for one run: the first is an earlier one's",
                     _AGAIN)  # fmt: skip
            if frame.status == Status.ERROR:
                self._refused(frame, command)
            if frame.status < 0x80 or frame.status in set(Status):
                continue  # an echo of what was sent, or an answer to an earlier question
            fail("ON723", self._where, f"its answer has the unknown status {frame.status:#04x}", _AGAIN)

    def _send(self, data: bytes, advance: Callable[[float], None]) -> None:
        # A line that takes no bytes for as long as ten chunks take is stuck.
        seconds = max(self._timeout, 10 * CHUNK * self._seconds_per_byte)
        try:
            for at in range(0, len(data), CHUNK):
                self._port.write(data[at : at + CHUNK], seconds)
                advance(min(1.0, (at + CHUNK) / len(data)))
        except LineError as error:
            self._gone(error)

    def _read(self, seconds: float) -> bytes:
        try:
            return self._port.read(seconds)
        except LineError as error:
            self._gone(error)

    def _until_quiet(self) -> str:
        """Read until nothing comes any more: the text of a board that has just started."""
        heard, end = bytearray(), self._now() + BANNER_SECONDS
        while data := self._read(QUIET_SECONDS):
            heard = (heard + data)[-4096:]
            if self._now() > end:
                fail("ON722", self._where, f"it never stops sending: {_shown(heard)}",
                     "Is it a board with the modelrunner firmware, and is --baud right?")  # fmt: skip
        return heard.decode("utf-8", "replace")

    def _drop(self) -> None:
        """Whatever is there before a question is no answer to it."""
        self._scanner.clear()
        end = self._now() + 1.0
        while self._read(0.0) and self._now() < end:
            pass

    def _parsed(self, parse, answer: Frame):  # type: ignore[no-untyped-def]
        try:
            return parse(answer.payload)
        except Malformed as error:
            fail(
                "ON723", self._where, f"its answer {Status(answer.status).name} is malformed: {error}", _AGAIN
            )

    # --- what went wrong ---

    def _refused(self, frame: Frame, command: Command) -> NoReturn:
        if not frame.payload:
            fail("ON724", self._where, f"it refused {command.name} and does not say why", _AGAIN)
        code, said = (
            frame.payload[0],
            printable(" ".join(frame.payload[1:161].decode("utf-8", "replace").split())),
        )
        what, hint = EXPLAINED.get(code, ("for a reason that only its firmware knows", _AGAIN))
        if code == Code.NO_MODEL and self.loaded:
            what = "it has lost the program or the input: it was reset"
        more = f" (“{said}”)" if said else ""
        fail("ON724", self._where, f"it refused {command.name} with code {code:02x}: {what}{more}", hint)

    def _silent(self, silent: _Silent) -> NoReturn:
        scanner, asked = silent.scanner, silent.command.name
        if scanner.bad_checksum:
            fail("ON723", self._where, f"the answer to {asked} has a wrong checksum",
                 "The line loses or changes bytes: check the cable and --baud, then try again.")  # fmt: skip
        if scanner.half:
            fail("ON723", self._where, f"the answer to {asked} broke off in the middle", _AGAIN)
        if scanner.too_long:
            fail("ON723", self._where, f"the answer to {asked} claims more bytes than it can have", _AGAIN)
        if scanner.skipped:
            fail("ON723", self._where, f"no answer to {asked} came, but {_shown(scanner.skipped)}",
                 "If that is the text of its start, it was reset. Else check --baud, and that the port is "
                 "the modelrunner's.")  # fmt: skip
        fail("ON722", self._where, f"no answer to {asked} came within {self._timeout:g} s",
             "Is it the right port, and does the board run the modelrunner firmware? A reset helps if an "
             "upload was interrupted; --timeout waits longer.")  # fmt: skip

    def _gone(self, error: LineError) -> NoReturn:
        fail(
            "ON722",
            self._where,
            f"the line is gone: {error}",
            "Was the board unplugged, or reset? Try again.",
        )


class _Silent(Exception):
    """No answer came in time."""

    def __init__(self, command: Command, scanner: Scanner):
        super().__init__(command.name)
        self.command, self.scanner = command, scanner


def _shown(data: bytes | bytearray) -> str:
    """The end of what was heard, for a message."""
    text = " ".join(bytes(data[-_SHOWN:]).decode("ascii", "replace").replace("�", "?").split())
    return f"“{printable(text)}”"
