"""A program on a board: who answers, does it fit, upload, run, and the times that came back."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openneutron.board.arrays import from_memory, to_memory
from openneutron.board.client import Client
from openneutron.board.frames import Command, Info, Tensor
from openneutron.board.limits import (
    MODELRUNNER,
    BoardFirmware,
    check_fits_board,
    check_microcode,
    own_firmware,
    result_need,
)
from openneutron.board.port import open_port
from openneutron.diagnostics import fail
from openneutron.package.pte import MethodInfo, ProgramInfo, TensorSpec, tensor_bytes

Arrays = list[np.ndarray]
Advance = Callable[[float], None]


@dataclass(frozen=True)
class BoardRun:
    """The outputs of every input, and what each inference took by the board's own clock."""

    firmware: BoardFirmware
    outputs: list[Arrays] = field(repr=False)
    microseconds: tuple[int, ...]

    @property
    def counted(self) -> bool:
        """Whether the times are an emulator's, which counts instructions."""
        return self.firmware.instructions_per_microsecond > 0

    def statistics(self) -> dict[str, Any]:
        """The times as data: of a board microseconds, of an emulator counted instructions."""
        scale = self.firmware.instructions_per_microsecond or 1
        values = [value * scale for value in self.microseconds]
        return {
            "unit": "instructions" if self.counted else "microseconds",
            "inferences": len(values),
            "median": statistics.median(values),
            "mean": round(statistics.fmean(values), 1),
            "minimum": min(values),
            "maximum": max(values),
            "deviation": round(statistics.pstdev(values), 1),
        }


class Board:
    """A board that has answered."""

    def __init__(self, client: Client, where: str):
        self.where = where
        self._client = client
        client.greet()
        hello = client.hello()
        if hello is None:
            self.firmware = MODELRUNNER
        else:
            check_microcode(hello, where)
            self.firmware = own_firmware(hello, client.text(Command.OPERATORS).split())

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def load(self, data: bytes, info: ProgramInfo, method: MethodInfo, name: str, advance: Advance) -> None:
        """Upload a program, if it fits, and compare what the board finds in it."""
        check_fits_board(info, method, self.firmware, name)
        first = next(iter(info.methods))
        if method.name != first and not self.firmware.ours:
            fail("ON725", name, f"does not run on {self.firmware.name}: it runs the first method, {first}",
                 "Compile the method as a program of its own.")  # fmt: skip
        description = self._client.load_model(data, advance)
        if method.name != first:
            description = self._client.select(method.name)
        self._check_description(description, method)

    def run(self, method: MethodInfo, inputs: Sequence[Arrays], advance: Advance) -> BoardRun:
        """Run the method that is loaded on every input."""
        most, outputs, times = result_need(method), [], []
        for number, arrays in enumerate(inputs):
            for index, (array, spec) in enumerate(zip(arrays, method.inputs, strict=True)):
                several = index if self.firmware.ours and len(arrays) > 1 else None
                self._client.load_input(to_memory(array, spec), several)
            result = self._client.run(most)
            outputs.append(self._arrays(result.outputs, method))
            times.append(result.microseconds)
            advance((number + 1) / len(inputs))
        return BoardRun(self.firmware, outputs, tuple(times))

    def steps(self, method: MethodInfo, arrays: Arrays) -> str:
        """What every step of one inference took, in the words of OpenNeutron's firmware."""
        for index, (array, spec) in enumerate(zip(arrays, method.inputs, strict=True)):
            self._client.load_input(to_memory(array, spec), index)
        self._client.run(result_need(method), traced=True)
        return self._client.text(Command.STEPS)

    def reset_state(self) -> None:
        """Forget what earlier runs left in the program's state; OpenNeutron's firmware only."""
        self._client.reset()

    def _check_description(self, found: Info, method: MethodInfo) -> None:
        if found == Info():
            return  # too long for the board to say
        pairs = (("inputs", found.inputs, method.inputs), ("outputs", found.outputs, method.outputs))
        for what, theirs, ours in pairs:
            if len(theirs) != len(ours) or not all(map(_same, theirs, ours)):
                listing = ", ".join(map(str, theirs)) or "none"
                fail("ON723", self.where, f"it says that the program's {what} are {listing}, and they are "
                     f"{', '.join(map(str, ours))}", "Reset the board and try again.")  # fmt: skip

    def _arrays(self, outputs: tuple[Tensor, ...], method: MethodInfo) -> Arrays:
        if len(outputs) != len(method.outputs) or not all(map(_same, outputs, method.outputs)):
            fail("ON723", self.where, f"its result is {', '.join(map(str, outputs)) or 'empty'}, not "
                 f"{', '.join(map(str, method.outputs))}", "Reset the board and try again.")  # fmt: skip
        return [from_memory(o.data, spec) for o, spec in zip(outputs, method.outputs, strict=True)]


def open_board(name: str, *, baud: int, timeout: float) -> Board:
    """Open the line and find out who answers."""
    return connect(open_port(name, baud), name, baud=baud, timeout=timeout)


def connect(port: Any, name: str, *, baud: int, timeout: float) -> Board:
    """The board behind a line that is open."""
    client = Client(port, name, baud=baud, timeout=timeout)
    try:
        return Board(client, name)
    except BaseException:
        client.close()
        raise


def _same(found: Tensor, spec: TensorSpec | None) -> bool:
    if spec is None:
        return found.nbytes == tensor_bytes(None)
    return found.dtype == spec.dtype and found.shape == spec.shape
