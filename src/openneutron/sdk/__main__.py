"""`python -m openneutron.sdk COMMAND ...`: a program for which OpenNeutron answers as `eiq_neutron_sdk`.

python -m openneutron.sdk -m MODULE ...      python -m openneutron.sdk FILE.py ...
python -m openneutron.sdk -c CODE ...        python -m openneutron.sdk PROGRAM ...   (pytest, python, bash)
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.sdk.session import open_sdk


def main(arguments: Sequence[str]) -> int:
    """Run the command in a session of its own; its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    try:
        command = command_of(arguments)
        with open_sdk():
            return _run(command)
    except OpenNeutronError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def command_of(arguments: Sequence[str]) -> list[str]:
    """The whole command: what Python runs is given to this Python, with Python's own options."""
    first = arguments[0]
    if first.startswith("--"):
        _refuse(f"there is no option '{first}'", "Write: python -m openneutron.sdk COMMAND ...")
    if first.startswith("-") or first.endswith(".py"):
        return [sys.executable, *arguments]
    return list(arguments)


def _run(command: Sequence[str]) -> int:
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        _refuse(f"'{command[0]}' cannot be run: {error.strerror}", "For a module of Python write -m MODULE.")
    # Ctrl-C reaches the command as well, which decides what it means; other signals are passed on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for passed_on in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(passed_on, lambda number, _: process.send_signal(number))
    code = process.wait()
    return 128 - code if code < 0 else code


def _refuse(problem: str, hint: str) -> NoReturn:
    fail("ON430", "openneutron.sdk", problem, hint)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
