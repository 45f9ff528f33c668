"""The cache of compiled partitions: what comes out is what the compiler gives, and damage is ignored."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from openneutron.compiler.compile import compile_graph
from openneutron.converter import cache
from openneutron.converter.cache import compile_or_recall
from openneutron.litert.build import Builder
from openneutron.litert.file import read, write
from openneutron.litert.ir import Builtin, Quant
from openneutron.options import CompileOptions
from openneutron.targets.table import find_target

TARGET = find_target("imxrt700")
Q = Quant.per_tensor(0.1, -5)


def model(width: int = 6) -> bytes:
    b = Builder()
    x = b.input("x", (1, width), quant=Q)
    y = b.op(Builtin.ADD, [x, x], (1, width), Q, options={"fusedActivationFunction": 0})
    return write(b.graph([b.op(Builtin.LOGISTIC, [y], (1, width), Quant.per_tensor(1 / 256, -128))]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(cache.NO_CACHE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "openneutron" / "partitions"


class Compiler:
    """Counts how often it was needed."""

    count = 0

    def __call__(self, litert: bytes, **options):
        chosen = CompileOptions(**options)

        def compile():
            self.count += 1
            return compile_graph(read(litert), TARGET, chosen)

        return compile_or_recall(litert, TARGET, chosen, compile)


def test_the_second_time_is_recalled_and_equal(folder: Path) -> None:
    compile = Compiler()
    first, second = compile(model()), compile(model())
    assert first == second and compile.count == 1
    compile(model(7)), compile(model(), optimise="size")
    assert compile.count == 3
    compile(model(), intermediates_dir="elsewhere")  # changes nothing of what is compiled
    assert compile.count == 3 and len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("at", [0, 20, 50, 80, -1])
def test_a_damaged_entry_is_ignored_and_replaced(folder: Path, at: int) -> None:
    compile = Compiler()
    first = compile(model())
    (file,) = folder.iterdir()
    good = file.read_bytes()
    file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at:][1:])
    assert compile(model()) == first and compile.count == 2
    assert file.read_bytes() == good


def test_an_entry_under_another_name_is_ignored(folder: Path) -> None:
    compile = Compiler()
    compile(model())
    (file,) = folder.iterdir()
    compile(model(7))
    (other,) = (f for f in folder.iterdir() if f != file)
    other.write_bytes(file.read_bytes())
    assert compile(model(7)).program.inputs != compile(model()).program.inputs
    assert compile.count == 3


def test_the_oldest_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile = Compiler()
    compile(model())
    (first,) = folder.iterdir()
    monkeypatch.setattr(cache, "MOST_BYTES", 5 * first.stat().st_size)
    for width in range(7, 20):
        compile(model(width))
    assert not first.exists()
    assert sum(f.stat().st_size for f in folder.iterdir()) <= cache.MOST_BYTES


def test_no_cache_keeps_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.NO_CACHE, "1")
    compile = Compiler()
    compile(model()), compile(model())
    assert compile.count == 2 and not folder.exists()


def test_the_digest_covers_every_module_that_compiling_imports() -> None:
    found = "[m.__file__ for n, m in sys.modules.items() if n.startswith('openneutron') and m.__file__]"
    code = f"import json, sys, openneutron.compiler.compile; print(json.dumps({found}))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not set(json.loads(run.stdout)) - set(map(str, cache.compiler_sources()))


def test_a_folder_that_cannot_be_written_costs_only_time(folder: Path) -> None:
    folder.parent.write_text("a file where the folder should be")
    compile = Compiler()
    assert compile(model()) == compile(model()) and compile.count == 2


def facts(change) -> bytes:
    """The entry of the model with other facts, sealed again."""
    entry = next(iter(cache._folder().iterdir())).read_bytes()
    key, body = entry[40:72], entry[72:]
    (size,) = struct.unpack_from("<Q", body)
    text = json.dumps(change(json.loads(body[8 : 8 + size]))) if callable(change) else change
    new = key + struct.pack("<Q", len(text)) + text.encode() + body[8 + size :]
    return cache._MAGIC + hashlib.sha256(new).digest() + new


def with_field(name: str, value):
    return lambda known: {**known, name: value}


ODD = [
    "[]", "7", "null", "[" * 100_000, '{"kind": "Cost"}', '{"kind": "__import__"}',
    with_field("cycles", "many"), with_field("cycles", []), with_field("buffers", [[]]),
    with_field("calls", 3),
    lambda known: {**known, "calls": [{**call, "operator": 7} for call in known["calls"]]},
    lambda known: {**known, "calls": [{**call, "cost": None} for call in known["calls"]]},
]  # fmt: skip


@pytest.mark.parametrize("change", ODD, ids=range(len(ODD)))
def test_an_entry_with_odd_facts_is_ignored_and_replaced(folder: Path, change) -> None:
    compile = Compiler()
    first = compile(model())
    (file,) = folder.iterdir()
    good = file.read_bytes()
    file.write_bytes(facts(change))
    assert compile(model()) == first and compile.count == 2
    assert file.read_bytes() == good


def test_entries_that_are_no_files_of_ours(folder: Path, tmp_path: Path) -> None:
    """A link is not written through, a FIFO is not waited for, a folder is left alone."""
    compile = Compiler()
    first = compile(model())
    (file,) = folder.iterdir()
    good = file.read_bytes()
    outside = tmp_path / "outside"
    outside.write_bytes(b"of the user")
    copy = tmp_path / "copy"
    copy.write_bytes(good)
    for make in (
        lambda: file.symlink_to(outside),
        lambda: file.symlink_to(copy),
        lambda: file.symlink_to(tmp_path / "gone"),
        lambda: os.mkfifo(file),
    ):
        file.unlink()
        make()
        count = compile.count
        assert compile(model()) == first and compile.count == count + 1
        assert not file.is_symlink() and file.read_bytes() == good and file.stat().st_mode & 0o777 == 0o600
    assert outside.read_bytes() == b"of the user" and not (tmp_path / "gone").exists()
    file.unlink()
    file.mkdir()
    assert compile(model()) == first and file.is_dir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_an_entry_of_another_user_is_ignored(folder: Path) -> None:
    compile = Compiler()
    first = compile(model())
    (file,) = folder.iterdir()
    os.chown(file, 12345, 12345)
    assert compile(model()) == first and compile.count == 2
    assert file.stat().st_uid == os.getuid()
