"""Whole compiles that are killed, meet a full disk at any of their writes, or write one file at once."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

OLD = b"the program of yesterday"
MODEL = """
import torch

def net():
    torch.manual_seed(0)
    return torch.nn.Conv2d(1, 2, 3), (torch.zeros(1, 1, 6, 6),), [torch.randn(1, 1, 6, 6)]
"""
# The program, its sidecar, the report and the kernel selection: all that a compile can write.
COMMAND = ["compile", "model.py:net", "-o", "out/net.pte", "--report", "out/net.html"]
COMMAND += ["--dump_kernel_selection_code"]


def compile_in_child(before: Callable[[], None] = lambda: None) -> int:
    """Start the command in a process of its own that need not import anything; its id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(null, stream)
        from openneutron.cli import main

        before()
        code = main(COMMAND)
    finally:
        os._exit(code)


def result(child: int) -> int:
    """The exit code of a child, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def files() -> dict[str, bytes]:
    """What there is in the folder of the results and in the one of temporary files."""
    return {f.name: f.read_bytes() for d in ("out", "tmp") for f in Path(d).rglob("*") if f.is_file()}


def restore(old: dict[str, bytes]) -> None:
    """Put yesterday's files back, leaving what else there is."""
    for name in old:
        Path("out", name).write_bytes(OLD)


def intact(new: dict[str, bytes]) -> bool:
    """Whether each result is yesterday's or today's, whole."""
    return all(files().get(name) in (OLD, data) for name, data in new.items())


def killed(new: dict[str, bytes], seconds: float) -> None:
    """Ten kills at random moments; one run that ends cleans up behind all of them."""
    rng, early = random.Random(4), 0
    for _ in range(10):
        restore(new)
        child = compile_in_child()
        time.sleep(rng.random() * seconds)
        os.kill(child, signal.SIGKILL)
        early += result(child) < 0
        assert intact(new)
    assert early >= 5, early
    assert result(compile_in_child()) == 0
    assert files() == new, files().keys()


def interrupted(new: dict[str, bytes], seconds: float) -> None:
    """Ctrl-C at twenty moments, up to the last: a message and 130, or it was done; no death by the signal."""
    from openneutron.__main__ import run

    rng, early = random.Random(5), 0
    for i in range(20):
        restore(new)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            for stream in (1, 2):
                os.dup2(write, stream)
            os.close(read)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.argv = ["openneutron", *COMMAND]
            run()
        os.close(write)
        time.sleep(
            0.05 + (rng.random() if i % 2 else 0.7 + 0.5 * rng.random()) * seconds
        )  # late, every other
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGINT)
        with open(read, "rb") as output:
            said = output.read().decode()
        code = result(child)
        assert code in (0, 130), (code, said)
        assert "Traceback" not in said and "ON699" not in said, said
        assert (code == 130) == ("interrupted" in said), (code, said)
        early += code == 130
        assert intact(new) and files().keys() == new.keys(), files().keys()
    assert early >= 5, early


def full_disk(new: dict[str, bytes]) -> None:
    """No room at the n-th write, or for files of more than a few bytes: an error, and the old files."""

    def at(n: int) -> Callable[[], None]:
        real, left = os.write, [n]

        def write(handle: int, data: bytes) -> int:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(handle, data)

        return lambda: setattr(os, "write", write)

    def below(room: int) -> Callable[[], None]:
        def limit() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

        return limit

    smallest = min(map(len, new.values()))
    for fault in (*map(at, range(len(new))), *map(below, (0, 1, smallest - 1))):
        restore(new)
        assert result(compile_in_child(fault)) == 1
        assert intact(new) and files().keys() == new.keys(), files().keys()


def two_writers(new: dict[str, bytes]) -> None:
    """Two compiles to one place: both succeed, and the result is one of theirs."""
    restore(new)
    children = compile_in_child(), compile_in_child()
    assert [result(child) for child in children] == [0, 0]
    assert files() == new


def main() -> None:
    """All of it, in the current folder."""
    import torch

    from openneutron.cli import main as openneutron

    torch.set_num_threads(1)
    Path("model.py").write_text(MODEL)
    Path("out").mkdir()
    openneutron(COMMAND)  # imports everything
    start = time.monotonic()
    assert result(compile_in_child()) == 0
    seconds = time.monotonic() - start
    new = files()
    assert len(new) == 4, new.keys()
    interrupted(new, seconds)
    killed(new, seconds)
    full_disk(new)
    two_writers(new)


@pytest.mark.slow  # compiles that are interrupted
@pytest.mark.timeout(3600)  # some sixty in a row, beside whatever else the machine does
def test_compiling_is_interrupted(tmp_path):
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "tests.hostile.test_interrupted"]
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    main()
