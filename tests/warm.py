"""Commands in processes that need not import torch first: a server has, and forks for each command.

The imports and what torch.export sets up at its first model are three seconds of a processor's work, most of
what a short command takes. `commands()` is a folder of an `openneutron` and a `python` that ask the server:
everything else about them is as in a process of its own, which other tests of a command are.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from functools import cache
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
CLIENT = """#!{python} -ISE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = json.dumps([{kind!r}, sys.argv, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(request)
    answer = server.recv(4)
sys.exit(int.from_bytes(answer, "big") if answer else 1)
"""


@cache
def _server() -> tuple[subprocess.Popen[bytes], Path]:
    """The server of this process, which ends with it, and its folder."""
    folder = Path(tempfile.mkdtemp())
    command = [sys.executable, "-W", "ignore", "-m", "tests.warm", str(folder)]
    # Threads of torch's would not be there after a fork.
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    atexit.register(_end, process, folder)
    return process, folder


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.terminate()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def commands() -> Path:
    """The folder of commands, to be the first of PATH; the server is started with the first call."""
    process, folder = _server()
    while not (folder / "bin").exists():
        assert process.poll() is None
        time.sleep(0.01)
    return folder / "bin"


def work() -> float:
    """Seconds of a processor's work of the commands that have ended."""
    if not _server.cache_info().currsize:
        return 0.0
    file = _server()[1] / "work"
    return sum(map(float, file.read_text().split())) if file.exists() else 0.0


def _serve(folder: Path) -> NoReturn:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    listener.listen(16)
    _write_clients(folder)
    _import_all()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _answer(connection, folder / "work")
        connection.close()
        while _reaped():
            pass


def _write_clients(folder: Path) -> None:
    unfinished = folder / "unfinished"
    unfinished.mkdir()
    for kind in ("openneutron", "python"):
        file = unfinished / kind
        address = str(folder / "socket")
        file.write_text(CLIENT.format(python=sys.executable, address=address, kind=kind))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    unfinished.rename(folder / "bin")


def _import_all() -> None:
    """What a command imports, and what is made once in a process when the first model is compiled."""
    import torch
    import tqdm

    from openneutron.pipeline import compile_model

    tqdm.tqdm.monitor_interval = 0  # no thread
    inputs = (torch.ones(1, 2, 4, 4),)
    compile_model(torch.nn.Conv2d(2, 2, 1).eval(), inputs, calibration=[inputs], verify=False)


def _reaped() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _answer(connection: socket.socket, account: Path) -> NoReturn:
    """Run one command in a process of its own, and tell its exit code."""
    head, files, _, _ = socket.recv_fds(connection, 4, 3)
    length = int.from_bytes(head, "big")
    data = b""
    while len(data) < length:
        data += connection.recv(length - len(data))
    child = os.fork()
    if child == 0:
        connection.close()
        _run(*json.loads(data), files)
    if connection in select.select([connection, os.pidfd_open(child)], [], [])[0]:
        os.kill(child, signal.SIGKILL)  # whoever asked is gone
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    with account.open("a") as stream:
        stream.write(f"{used.ru_utime + used.ru_stime}\n")
    connection.sendall((code if code >= 0 else 128 - code).to_bytes(4, "big"))
    os._exit(0)


def _run(kind: str, argv: list[str], folder: str, environment: dict[str, str], files: list[int]) -> NoReturn:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    try:
        _execute(kind, argv)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if stop.code is not None and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def _execute(kind: str, argv: list[str]) -> None:
    """As Python itself takes its arguments: -c CODE, -m MODULE or a file."""
    if kind == "openneutron":
        from openneutron.__main__ import run

        sys.argv = argv
        run()
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    how, *rest = argv[1:]
    if how == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif how == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [how, *rest], str(Path(how).resolve().parent)
        runpy.run_path(how, run_name="__main__")


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
