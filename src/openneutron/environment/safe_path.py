"""`python -m openneutron`: Python puts the current folder first on its path, and importing this takes it out.

Otherwise a `json.py` that lies there would be imported in place of Python's own. What is imported here was
loaded when Python started; `from __future__` is an import like any other, and would not be.
"""

import os
import sys

_TAKES_A_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def _leave_current_folder() -> None:
    """Take the current folder off the path if `python -m` runs this package or a module of it."""
    if _run_as_module().partition(".")[0] != "openneutron" or getattr(sys.flags, "safe_path", False):
        return
    sources = os.path.abspath(__file__).rpartition(f"{os.sep}openneutron{os.sep}environment{os.sep}")[0]
    here = os.getcwd()
    if sys.path and sys.path[0] in ("", here) and here != sources:
        del sys.path[0]


def _run_as_module() -> str:
    """The module that `python -m` was given, or nothing."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word in _TAKES_A_VALUE:
            next(words, None)
        elif word.startswith("--"):
            continue
        elif not word.startswith("-"):
            return ""  # a script
        elif "c" in word.partition("m")[0]:
            return ""  # -c
        elif "m" in word:
            return word.partition("m")[2] or next(words, "")
    return ""


_leave_current_folder()
