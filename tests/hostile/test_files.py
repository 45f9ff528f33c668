"""Writing: through devices, FIFOs and links, with the right mode, and nothing lost or left over."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from openneutron.diagnostics import OpenNeutronError
from openneutron.files import check_writable, read_file, scratch_folder, write_atomically

DATA = bytes(range(256)) * 40


def test_a_device_is_written_through(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_bytes(b"x")
    except PermissionError:
        device = Path("/dev/null")  # not root, and so safe to try
    before = device.stat()
    check_writable(device)
    write_atomically(device, DATA)
    assert stat.S_ISCHR(device.stat().st_mode) and device.stat().st_ino == before.st_ino


def test_a_fifo_is_written_through(tmp_path):
    fifo, got = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()))
    reader.start()
    write_atomically(fifo, DATA)
    reader.join()
    assert got == [DATA] and stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.parametrize("there", [True, False])
def test_links_are_followed(tmp_path, there):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    if there:
        target.write_bytes(b"old")
    link.symlink_to("folder/target")
    write_atomically(link, DATA)
    assert link.is_symlink() and target.read_bytes() == DATA and not target.is_symlink()
    assert os.listdir(tmp_path / "folder") == ["target"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_modes(tmp_path, mask):
    old = os.umask(mask)
    try:
        write_atomically(tmp_path / "new", DATA)
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~mask
        (tmp_path / "new").chmod(0o640)
        write_atomically(tmp_path / "new", b"again")
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    finally:
        os.umask(old)


def test_a_folder_and_a_missing_folder(tmp_path):
    for path in (tmp_path, tmp_path / "no" / "file"):
        with pytest.raises(OpenNeutronError, match="ON601"):
            write_atomically(path, DATA)
    assert not os.listdir(tmp_path)


WRITER = """
import sys, time
from pathlib import Path
from openneutron import files
real = files._write_all
def slow(handle, data):
    for i in range(0, len(data), 64):
        real(handle, data[i : i + 64])
        time.sleep(0.002)
files._write_all = slow
print("go", flush=True)
while True:
    files.write_atomically(Path(sys.argv[1]), b"new" * 1000)
"""


def test_killed_at_any_moment(tmp_path):
    """The old file or the new one, whole; what is left over is gone with the next write."""
    target = tmp_path / "model.pte"
    target.write_bytes(b"old")
    rng, leftovers = random.Random(1), 0
    for _ in range(10):
        command = [sys.executable, "-c", WRITER, str(target)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline()
        time.sleep(rng.random() * 0.15)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert target.read_bytes() in (b"old", b"new" * 1000)
        leftovers += len(os.listdir(tmp_path)) > 1
        write_atomically(target, b"old")
        assert os.listdir(tmp_path) == ["model.pte"]
    assert leftovers  # else the test would not have met a writer at work


def test_two_writers(tmp_path):
    """Each file seen is one of the two, and neither takes the other's for a leftover."""
    target, problems = tmp_path / "model.pte", []

    def write(letter: bytes) -> None:
        try:
            for _ in range(60):
                write_atomically(target, letter * 50_000)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if target.exists():
            assert target.read_bytes() in (b"a" * 50_000, b"b" * 50_000)
    assert not problems and os.listdir(tmp_path) == ["model.pte"]


@pytest.mark.parametrize("room", [0, 1, 4096, 9999])
def test_a_full_disk(tmp_path, room):
    """At whatever byte the disk is full: the old file stays, and a diagnostic says so."""
    target = tmp_path / "model.pte"
    target.write_bytes(b"old")
    code = f"""
import resource, signal
from pathlib import Path
from openneutron.diagnostics import OpenNeutronError
from openneutron.files import write_atomically
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
try:
    write_atomically(Path({str(target)!r}), bytes(10_000))
except OpenNeutronError as error:
    print(error.diagnostic.code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ON601"
    assert target.read_bytes() == b"old" and os.listdir(tmp_path) == ["model.pte"]


def test_scratch_folders_of_the_dead(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = f"""
import os, tempfile
tempfile.tempdir = {str(tmp_path)!r}
from openneutron.files import scratch_folder
with scratch_folder() as folder:
    (folder / "large").write_bytes(bytes(100))
    os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(os.listdir(tmp_path)) == 1
    with scratch_folder() as mine, scratch_folder() as other:
        assert sorted(os.listdir(tmp_path)) == sorted([mine.name, other.name])
    assert not os.listdir(tmp_path)


def test_no_room_for_temporary_files(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(OpenNeutronError, match="ON609") as raised, scratch_folder():
        pass
    assert str(tmp_path / "file") in raised.value.diagnostic.where


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "sparse", "null byte"])
def test_what_is_not_read(tmp_path, kind):
    path = tmp_path / "input"
    if kind == "fifo":
        os.mkfifo(path)  # without a writer: to open it would wait for ever
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 5 << 30)
    else:
        path = Path("a\0b")
    with pytest.raises(OpenNeutronError) as raised:
        read_file(path, "ON605")
    assert raised.value.diagnostic.code == "ON605" and raised.value.diagnostic.hint
