"""`python -m openneutron` is the `openneutron` command, and this is where its process begins."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130


class _Interrupt:
    """What Ctrl-C does: the first ends the command as soon as it can, the second at once."""

    seen = 0

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        self.seen += 1
        if self.seen > 1:
            self.leave()
        raise KeyboardInterrupt

    def leave(self) -> NoReturn:
        os.write(2, b"\ninterrupted\n")
        os._exit(INTERRUPTED)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """What SIGTERM does: the first ends the command and what it started, the second this process alone."""
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)


def run() -> NoReturn:
    """Run the command of this process; Ctrl-C at any moment is a message and exit code 130."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    # Python looks for garbage each time 700 more objects live, which is a sixth of the time to import torch.
    gc.set_threshold(50_000, 20, 20)
    interrupt, code = _Interrupt(), INTERRUPTED
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # `nohup`, `&` in a script: it stays ignored
        signal.signal(signal.SIGINT, interrupt)
    try:
        from openneutron.cli import main

        code = main()
    except KeyboardInterrupt:
        interrupt.leave()
    # All is done. Python would forget the handler before it ends, and Ctrl-C then end it without a word.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if interrupt.seen and code != INTERRUPTED:  # a library has swallowed it
        interrupt.leave()
    # Ctrl-C inside a text that a library executes marks the process, which Python would then end by the
    # signal although the exception was caught. The mark is taken away where the next text begins.
    exec("")
    sys.exit(code)


if __name__ == "__main__":
    run()
