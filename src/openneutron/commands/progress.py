"""Progress on stderr: a bar on a terminal, one line a step elsewhere. Nothing here touches stdout."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from openneutron.diagnostics import printable
from openneutron.report.terminal import PlainConsole

Advance = Callable[[float], None]  # told the part that is done, from 0 to 1


class Steps:
    """Announces what is being done."""

    def __init__(self, quiet: bool = False):
        quiet = quiet or os.environ.get("OPENNEUTRON_QUIET") == "1"
        self.console = PlainConsole(stderr=True, quiet=quiet)

    @contextmanager
    def step(self, text: str, bar: bool = False) -> Iterator[Advance]:
        """One step; with `bar`, the yielded function moves it."""
        if not self.console.is_terminal:
            self.console.print(f"{text} ...")
            yield lambda part: None
            return
        columns = [
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
        ]
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(printable(text), total=1 if bar else None)
            yield lambda part: progress.update(task, completed=part)

    def note(self, text: str) -> None:
        """A remark."""
        self.console.print(f"note: {text}", style="yellow", soft_wrap=True)
