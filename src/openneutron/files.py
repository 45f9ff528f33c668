"""Reading files that may be anything; writing files so that nothing half-written is seen under their names.

A file being written has a name of its own beside the final one and is locked by its writer. So a lock that
can be had tells a leftover of a killed process, whichever container it ran in; the next writer removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from openneutron.diagnostics import fail
from openneutron.environment.versions import tomllib

MOST_BYTES = 4 << 30  # of one file: more is no model, program or set of samples
MOST_TEXT_BYTES = 64 << 20
_MOST_TOML_BYTES = 1 << 20
# Python's reader takes memory with the square of a key's parts, as in `a.b.c = 1`.
_LONG_KEY = re.compile(r"""(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""")
COUNTS = "counts.json"  # in a firmware's folder: what its program took, which a report shows
_PART = re.compile(r"\.openneutron-[0-9a-f]{16}\.part")
_FOLDER = re.compile(r"openneutron-[0-9a-f]{16}")
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def read_file(path: Path, code: str = "ON602", most: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file of at most `most` bytes; anything else is a diagnostic, and is not read."""
    try:
        # Not blocking: to open a FIFO would wait for its writer, for ever if there is none.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        fail(code, str(path), "there is no such file", "Check the path.")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        fail(code, str(path), f"cannot be read: {reason}", "Check that it is a file and may be read.")
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "not a file")
            fail(code, str(path), f"is {kind}, not a regular file", "Copy the data to a file, and give that.")
        if status.st_size > most:
            fail(
                code, str(path), f"has {status.st_size:,} bytes; at most {most:,} are read", "Check the path."
            )
        with open(handle, "rb", closefd=False) as file:
            return file.read(most)  # a file that grows meanwhile is not followed
    except OSError as error:
        fail(code, str(path), f"cannot be read: {error.strerror}", "Check the disk.")
    finally:
        os.close(handle)


def files_below(folder: Path) -> list[Path]:
    """All files of a folder and its folders, sorted; what may not be read, or goes meanwhile, is left out."""
    return sorted(Path(place, name) for place, _, names in os.walk(folder) for name in names)


def read_text(path: Path, code: str, most: int = MOST_TEXT_BYTES) -> str:
    """The text of a regular file in UTF-8; anything else is a diagnostic."""
    try:
        return read_file(path, code, most).decode("utf-8")
    except UnicodeDecodeError as error:
        fail(
            code, str(path), f"byte {error.start} is not UTF-8: the file is no text", "Save it as UTF-8 text."
        )


def read_toml(path: Path, code: str, hint: str) -> dict[str, Any]:
    """The tables of a TOML file that a user wrote; whatever is wrong with it is a diagnostic."""
    text = read_text(path, code, _MOST_TOML_BYTES)
    if _LONG_KEY.search(text):
        fail(code, str(path), "has a key of more than 32 parts", hint)
    try:
        return tomllib.loads(text)
    except RecursionError:
        fail(code, str(path), "is nested too deeply", hint)
    except tomllib.TOMLDecodeError as error:
        fail(code, str(path), f"is not TOML: {error}", hint)
    except ValueError as error:  # a number of thousands of digits, a date that is none
        fail(code, str(path), f"has a value that Python cannot read: {error}", hint)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a regular file by these bytes, whole or not at all; write through a device or a FIFO.

    Links are followed. A new file's mode is the umask's, an old one keeps its own.
    """
    target = Path(os.path.realpath(path))
    try:
        old = _status(target)
        if old is not None and stat.S_ISDIR(old.st_mode):
            fail("ON601", str(path), "cannot be written: it is a folder", "Choose another place with -o.")
        if old is not None and not stat.S_ISREG(old.st_mode):
            with open(target, "wb", buffering=0) as through:
                _write_all(through.fileno(), data)
            return
        _remove_leftovers(target.parent, _PART)
        _replace(target, data, old)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        fail("ON601", str(path), f"cannot be written: {reason}", "Choose another place with -o.")


def replace_file(path: Path, data: bytes) -> None:
    """Put a file of the mode 0600 at this place, whatever was there: a link is replaced, not followed."""
    try:
        _remove_leftovers(path.parent, _PART)
        _replace(path, data, None, 0o600)
    except OSError as error:
        fail("ON601", str(path), f"cannot be written: {error.strerror}", "Choose another place.")


def is_own_file(path: Path) -> bool:
    """Whether there is a regular file of this user, and no link to one."""
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()


def cache_base() -> Path | None:
    """Where a user's programs keep what they can make again: None if there is no such place."""
    base = os.environ.get("XDG_CACHE_HOME") or (Path.home() / ".cache" if os.environ.get("HOME") else None)
    return None if base is None else Path(base) / "openneutron"


def make_folder(folder: Path) -> None:
    """Make a folder and those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail("ON601", str(folder), f"cannot be made: {error.strerror}", "Choose another place.")


def check_writable(path: Path) -> None:
    """Fail now if `write_atomically` would fail later; makes the folder of a file that is not there yet."""
    target = Path(os.path.realpath(path))
    try:
        old = _status(target)
        if old is not None and not stat.S_ISREG(old.st_mode):
            if not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target.parent, _PART)
        probe = target.parent / f".openneutron-{secrets.token_hex(8)}.part"
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(probe)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        fail("ON601", str(path), f"cannot be written: {reason}", "Choose another place with -o.")


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for one piece of work in TMPDIR; what killed processes left there is removed on the way.

    It goes with the process that made it: a fork that leaves the block as well removes nothing.
    """
    base, owner = Path(tempfile.gettempdir()), os.getpid()
    try:
        _remove_leftovers(base, _FOLDER)
        while True:
            folder = base / f"openneutron-{secrets.token_hex(8)}"
            folder.mkdir(mode=0o700)
            handle = _locked(os.open(folder, os.O_RDONLY | os.O_CLOEXEC), folder)
            if handle is not None:
                break
    except OSError as error:
        _no_room(base, error)
    try:
        yield folder
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def write_scratch(path: Path, data: bytes) -> None:
    """Write a file of a scratch folder; a full disk is a diagnostic that names the folder."""
    try:
        path.write_bytes(data)
    except OSError as error:
        _no_room(path.parent.parent, error)


def lock_file(path: Path, wait: bool = True) -> int:
    """The handle of a lock that ends with this process; BlockingIOError if another has it.

    Neither a link nor what the file holds is touched.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(handle)
        raise
    return handle


def _no_room(folder: Path, error: OSError) -> NoReturn:
    fail(
        "ON609",
        str(folder),
        f"temporary files cannot be written there: {error.strerror}",
        "Free some space, or set TMPDIR to a folder that has it.",
    )


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _replace(target: Path, data: bytes, old: os.stat_result | None, mode: int = 0o666) -> None:
    while True:
        part = target.parent / f".openneutron-{secrets.token_hex(8)}.part"
        handle = _locked(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), part)
        if handle is not None:
            break
    try:
        _write_all(handle, data)
        if old is not None:
            with contextlib.suppress(OSError):  # another owner's file: only root may keep it theirs
                os.fchown(handle, old.st_uid, old.st_gid)
            os.fchmod(handle, stat.S_IMODE(old.st_mode))
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _locked(handle: int, path: Path) -> int | None:
    """The handle, locked; None if another process took the new file for a leftover before it was locked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            os.close(handle)
            raise
        return handle  # no locks on this file system, and so nobody takes it for a leftover
    status = _status(path)
    if status is not None and os.path.samestat(status, os.fstat(handle)):
        return handle
    os.close(handle)
    return None


def _remove_leftovers(folder: Path, pattern: re.Pattern[str]) -> None:
    """Remove what was left by writers that no longer live: their locks can be had."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in [e for e in entries if pattern.fullmatch(e.name)]:
            with contextlib.suppress(OSError):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                handle = os.open(entry.path, flags)
                try:
                    if os.fstat(handle).st_uid != os.getuid():
                        continue
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)
                finally:
                    os.close(handle)
