"""The command line: parse, call, render. Each command is one file in `openneutron.commands`.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 after
Ctrl-C (docs/exit-codes.md).
Nothing here imports torch, so that help and the operator table appear at once.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import NoReturn

from openneutron import __version__
from openneutron.commands import COMMANDS
from openneutron.diagnostics import Diagnostic, OpenNeutronError, printable

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
_DESCRIPTION = "The open eIQ Neutron backend for ExecuTorch: quantize, compile and run PyTorch models."


class _Parser(argparse.ArgumentParser):
    """Names of files, which a shell may have put in, do not command the terminal."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the arguments."""
        super().error(printable(message))


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command."""
    parser = _Parser(prog="openneutron", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"openneutron {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.add_argument("--debug", action="store_true", help="show tracebacks and all library messages")
        sub.add_argument(
            "--quiet", action="store_true", help="no progress and no notes, only results and errors"
        )
        sub.add_argument(
            "--no-cache", action="store_true", help="compile anew what was compiled before, and keep nothing"
        )
        sub.set_defaults(execute=command.execute, parser=parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = build_parser()
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has printed what is wrong, or the help
        return int(stop.code or 0)
    debug = args.debug
    if not debug:
        _quieten()
    if args.quiet:
        os.environ["OPENNEUTRON_QUIET"] = "1"  # for processes of ours too
    if args.no_cache:
        os.environ["OPENNEUTRON_NO_CACHE"] = "1"
    try:
        return int(args.execute(args) or DONE)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; writing to it at exit would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        if _was_interrupted(error):
            print("\ninterrupted", file=sys.stderr)
            return INTERRUPTED
        if debug:
            traceback.print_exc()
        if isinstance(error, OpenNeutronError):
            _print_error(error.diagnostic)
            return USAGE if error.diagnostic.code.startswith("ON1") else FAILED
        if diagnostic := _full_disk(error) or _unusable_path(error):
            _print_error(diagnostic)
            return FAILED
        text = str(error).strip().splitlines()
        _print_error(
            Diagnostic(
                "ON699",
                "",
                f"{type(error).__name__}: {text[0] if text else 'no message'}",
                "--debug shows where this comes from; please report it.",
            )
        )
        return FAILED


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether a library made an error of its own of Ctrl-C."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _full_disk(error: BaseException) -> Diagnostic | None:
    """Libraries write temporary files too; their error does not say where."""
    if not isinstance(error, OSError):
        return None
    is_missing = isinstance(error, FileNotFoundError) and "temporary directory" in str(error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) and not is_missing:
        return None
    place = os.environ.get("TMPDIR") or "the folder for temporary files"
    problem = f"temporary files cannot be written there: {error.strerror or error}"
    return Diagnostic("ON609", place, problem, "Free some space, or set TMPDIR to a folder that has it.")


_OF_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM)


def _unusable_path(error: BaseException) -> Diagnostic | None:
    """What no file can be called, or what the user may not reach, wherever that is found out."""
    if isinstance(error, ValueError) and str(error).startswith("embedded null "):
        return Diagnostic("ON602", "", "the name of a file holds a null byte", "Check the path.")
    if not isinstance(error, OSError) or error.errno not in _OF_PATHS or error.filename is None:
        return None
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    return Diagnostic("ON602", name, f"cannot be used: {error.strerror}", "Check the path.")


def _print_error(diagnostic: Diagnostic) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(Text.assemble(("error: ", "bold red"), str(diagnostic)))
    console.print(Text(f"  more: openneutron explain {diagnostic.code}", style="dim"))


def _quieten() -> None:
    """Libraries warn about themselves while they are imported; --debug shows it."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
