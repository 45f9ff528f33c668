"""Where compile time goes: stages name themselves, and a recorder, where there is one, adds up their seconds.

A stage inside another one takes its time away from it, so that the seconds of all stages add up to the whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

EXPORT = "torch.export"
TORCHAO = "torchao"
ACCURACY = "calibration"  # and what is done for accuracy
EXIR = "ExecuTorch (exir)"
QUANTIZER = "quantizer"
PASSES = "passes"
PARTITION = "partition"
LITERT = "to LiteRT"
MICROCODE = "microcode"
PACKAGE = "package"
VERIFY = "verify"
NOT_OURS = (EXPORT, TORCHAO)


@dataclass
class Seconds:
    """CPU seconds of the process by stage, in order of appearance."""

    spent: dict[str, float] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _since: float = 0.0

    @property
    def total(self) -> float:
        """Of all stages."""
        return sum(self.spent.values())

    @property
    def own(self) -> float:
        """Everything but torch.export and torchao."""
        return sum(seconds for name, seconds in self.spent.items() if name not in NOT_OURS)

    def enter(self, name: str) -> None:
        """A stage begins; the enclosing stage is paused."""
        self._charge()
        self._open.append(name)
        self.spent.setdefault(name, 0.0)

    def leave(self) -> None:
        """The innermost stage ends."""
        self._charge()
        self._open.pop()

    def _charge(self) -> None:
        now = time.process_time()
        if self._open:
            self.spent[self._open[-1]] += now - self._since
        self._since = now


_RECORDER: ContextVar[Seconds | None] = ContextVar("openneutron_stages", default=None)


@contextmanager
def record() -> Iterator[Seconds]:
    """Record the stages of everything that runs inside."""
    seconds = Seconds()
    token = _RECORDER.set(seconds)
    try:
        yield seconds
    finally:
        _RECORDER.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Count what runs inside as this stage; costs nothing where nobody records."""
    seconds = _RECORDER.get()
    if seconds is None:
        yield
        return
    seconds.enter(name)
    try:
        yield
    finally:
        seconds.leave()
