"""Bad files of a user: each has its own sentence with the file's name; none is "please report it"."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from openneutron.cli import main
from openneutron.diagnostics import OpenNeutronError
from openneutron.inputs.samples import load_samples, load_sequences
from openneutron.models.folders import load_folder
from openneutron.models.preprocessing import DEFAULT

EXAMPLE = (torch.zeros(1, 3, 8, 8),)


def zipped(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def bomb() -> bytes:
    """A zip that says it unpacks to six gigabytes."""
    raw = bytearray(zipped(inputs=b"x" * 1000, labels=b"x"))
    at = raw.index(b"PK\x01\x02")
    raw[at + 24 : at + 28] = (0xFFFFFFF0).to_bytes(4, "little")
    second = raw.index(b"PK\x01\x02", at + 4)
    raw[second + 24 : second + 28] = (0xFFFFFFF0).to_bytes(4, "little")
    return bytes(raw)


def picture(cut: int = 0) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (9, 200, 30)).save(buffer, "PNG")
    return buffer.getvalue()[: -cut or None]


def saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


NAN = np.full((2, 3, 8, 8), np.nan, np.float32)
INF = np.full((2, 3, 8, 8), np.inf, np.float32)
BAD = {
    "none.npz": b"PK no zip",
    "cut.npz": zipped(a=saved(NAN))[:-30],
    "empty.npz": zipped(),
    "garbage.npz": zipped(a=b"garbage"),
    "bomb.npz": bomb(),
    "deep.npy": b"\x93NUMPY\x01\x00\xf0\xff" + b"[" * 0xFFF0,
    "huge.npy": saved(np.zeros(1))[:-8].replace(b"(1,)", b"(99999999999,)"[:4]),
    "object.npy": b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    + b" " * 60,
    "text.npy": b"text",
    "words.npy": saved(np.array(["a", "b"])),
    "nan.npy": saved(NAN),
    "inf.npz": zipped(a=saved(INF)),
    "cut.png": picture(40),
    "none.png": b"no picture",
    "none.pt": b"no archive",
    "none.xz": b"no archive",
}


@pytest.mark.parametrize("name", BAD)
def test_samples(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BAD[name])
    with pytest.raises(OpenNeutronError) as raised:
        load_samples(path, EXAMPLE, 4)
    found = raised.value.diagnostic
    assert found.code == "ON605" and name in found.where and found.hint and found.problem.strip()


@pytest.mark.parametrize("name", [n for n in BAD if n.endswith(".npz")])
def test_labelled_data(tmp_path, name):
    (tmp_path / name).write_bytes(BAD[name])
    with pytest.raises(OpenNeutronError, match="ON605"):
        load_folder(tmp_path / name, (1, 3, 8, 8))


def test_a_picture_that_unpacks_without_bound(tmp_path):
    from PIL import Image

    path = tmp_path / "bomb.png"
    Image.new("1", (20_000, 20_000)).save(path)  # 400 million pixels in some kilobytes
    with pytest.raises(OpenNeutronError, match=r"bomb\.png"):
        DEFAULT.read(path, (1, 3, 8, 8))


def test_inputs_without_an_end(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo.npy")
    os.symlink("/dev/zero", "zero.npy")
    os.symlink("/dev/zero", "zero.pte")
    os.symlink("/dev/zero", "zero.tflite")
    for command in (["run", "zero.pte"], ["run", "zero.tflite"], ["compile", "zero.tflite"],
                    ["compile", "cifarnet", "--calibration", "fifo.npy"],
                    ["compile", "cifarnet", "--calibration", "zero.npy"]):  # fmt: skip
        assert main(command) == 1, command
        err = capfd.readouterr().err
        assert "not a regular file" in err and "ON699" not in err


CASES = {
    "text that is no Python": (["compile", "notes.py:build"], {"notes.py": b"Dear diary,\n"}, "ON604"),
    "bytes that are no text": (["compile", "notes.py:build"], {"notes.py": b"\xff\xfe\0\0"}, "ON604"),
    "deep JSON": (["diff", "a.json", "a.json"], {"a.json": b"[" * 100_000}, "ON608"),
    "deep TOML": (["check", "b.toml"], {"b.toml": b"a = " + b"[" * 100_000}, "ON108"),
    "a budget of bytes": (["check", "b.toml"], {"b.toml": b"\xff\xfe"}, "ON108"),
    "a budget of wrong types": (["check", "b.toml"], {"b.toml": b'[[model]]\nmodel = 3\n'}, "ON108"),
    "a selection of bytes": (["merge-kernels", "a.c", "-o", "o.c"], {"a.c": b"\xff\xfe"}, "ON422"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_commands(tmp_path, monkeypatch, capfd, case):
    monkeypatch.chdir(tmp_path)
    arguments, files, code = CASES[case]
    for name, data in files.items():
        Path(name).write_bytes(data)
    assert main(arguments) in (1, 2)
    err = capfd.readouterr().err
    assert code in err and next(iter(files)) in err and "please report" not in err


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    from openneutron.pipeline import compile_model

    inputs = (torch.ones(1, 2, 4, 4),)
    path = tmp_path_factory.mktemp("program") / "a.pte"
    path.write_bytes(compile_model(torch.nn.Conv2d(2, 2, 1).eval(), inputs, calibration=[inputs]).pte)
    return path


def test_labels_and_seeds(program, tmp_path, capfd):
    labels = tmp_path / "labels.txt"
    labels.write_bytes(b"cat\n\xff\xfe\n")
    assert main(["run", str(program), "--labels", str(labels)]) == 1
    assert "labels.txt" in (err := capfd.readouterr().err) and "UTF-8" in err and "ON605" in err
    assert main(["run", str(program), "--seed", "-1"]) == 2
    assert "--seed" in capfd.readouterr().err


@pytest.mark.parametrize("change", ["summary", "memory", "nodes", "missing", "name"])
def test_a_sidecar_of_wrong_types(program, capfd, monkeypatch, tmp_path, change):
    import hashlib

    from openneutron.report.data import SCHEMA
    from openneutron.report.sidecar import report_of_program, sidecar_path

    monkeypatch.chdir(tmp_path)
    good = report_of_program(program)
    bad = {**good, "schema": SCHEMA, "sha256": hashlib.sha256(program.read_bytes()).hexdigest(), change: 7}
    sidecar_path(program).write_text(json.dumps(bad))
    try:
        assert main(["report", str(program), "-o", "r.html"]) in (0, 1)
        err = capfd.readouterr().err
        assert "please report" not in err and "report.json" in err
    finally:
        sidecar_path(program).unlink()


def test_a_full_disk_elsewhere(monkeypatch, capfd):
    """A library's temporary file: the message says where there is no room."""
    from openneutron.commands.reference import ops

    def full(args):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("TMPDIR", "/tmp/full")
    monkeypatch.setattr(ops, "execute", full)
    assert main(["ops"]) == 1
    err = capfd.readouterr().err
    assert "ON609" in err and "/tmp/full" in err and "please report" not in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"[[model]]\nmodel = 'x'\nmax_cycles = {'9' * 5000}\n", "a value that Python cannot read"),
        (".".join("a" * 50_000) + " = 1\n", "a key of more than 32 parts"),
        ("[" + " . ".join(["a", '"b"', "'c'"] * 15_000) + "]\n", "a key of more than 32 parts"),
        ("# " + "x" * (1 << 20), "at most 1,048,576 are read"),
    ],
)
@pytest.mark.parametrize("command", ["check", "sweep"])
def test_tables_that_take_all_memory(tmp_path, capfd, command, text, said):
    """Python's reader of TOML takes 40 GB for one key of 200 kB."""
    (tmp_path / "file.toml").write_text(text)
    assert main([command, str(tmp_path / "file.toml")]) == 2
    assert said in capfd.readouterr().err


def test_folders_that_change_while_they_are_listed(tmp_path, monkeypatch):
    """Another process removes a folder between its name and its content."""
    for name in ("gone", "stays"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "a.npy", np.zeros((1, 3, 8, 8), np.float32))
    scandir = os.scandir

    def vanishing(path="."):
        if str(path).endswith("gone"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert len(load_samples(tmp_path, EXAMPLE, 8)) == 1
    with pytest.raises(OpenNeutronError, match=r"ON605.*(there is no data set|cannot be listed)"):
        load_folder(tmp_path, (3, 8, 8), 8, DEFAULT)


@pytest.mark.parametrize("where", ["notes.txt", "notes.txt/inside", "loop", "a" * 300])
def test_intermediates_that_have_no_folder(tmp_path, monkeypatch, where):
    from openneutron import CompileOptions, compile_model

    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("Dear diary,")
    os.symlink("loop", "loop")
    inputs = (torch.ones(1, 2, 4, 4),)
    options = CompileOptions(intermediates_dir=where)
    with pytest.raises(OpenNeutronError, match=r"ON601.*cannot be made"):
        compile_model(torch.nn.Conv2d(2, 2, 1).eval(), inputs, calibration=[inputs], options=options)


@pytest.mark.parametrize("aim", ["[1, 2]", "{ a = 1 }", "1", "true", "'most'", "nan"])
def test_an_objective_that_is_no_word(tmp_path, capfd, aim):
    (tmp_path / "s.toml").write_text(
        f'model = "cifarnet"\n[options]\nper_channel = [true, false]\n[objectives]\ncycles = {aim}\n'
    )
    assert main(["sweep", str(tmp_path / "s.toml")]) == 2
    err = capfd.readouterr().err
    assert "objectives.cycles" in err and "must be max or min" in err


def test_numbers_that_torch_has_not(tmp_path):
    values = np.arange(192.0).reshape(1, 3, 8, 8)
    for dtype in (">f4", ">i2", np.longdouble, ">f8"):
        np.save(tmp_path / "a.npy", values.astype(dtype))
        ((found,),) = load_samples(tmp_path / "a.npy", EXAMPLE, 4)
        assert torch.equal(found, torch.from_numpy(values).float())


def test_a_sequence_without_frames(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 0, 1, 3, 8, 8), np.float32))
    with pytest.raises(OpenNeutronError, match=r"ON605.*a\.npy.*without frames"):
        load_sequences(tmp_path / "a.npy", EXAMPLE, 4)


def test_every_sequence_has_a_part_in_calibration(tmp_path):
    lengths = {"a": 300, "b": 3, "c": 300, "d": 300}
    for name, count in lengths.items():
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "a.npy", np.zeros((count, 3, 8, 8), np.float32))
    found = load_sequences(tmp_path, EXAMPLE, 10)  # 80 frames
    assert [len(frames) for frames in found] == [25, 3, 26, 26]
    assert [len(frames) for frames in load_sequences(tmp_path, EXAMPLE, 1)] == [8]


IDX = {"train-images": 3, "train-labels": 1, "t10k-images": 3, "t10k-labels": 1}


def test_data_sets_with_an_odd_file(tmp_path):
    shape = (1, 3, 32, 32)
    os.mkfifo(tmp_path / "test_batch")
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02}.")
    with pytest.raises(OpenNeutronError, match="KeyError"):
        load_folder(tmp_path, shape)
    # A table of a billion objects is asked for; then a pixel that is shown a billion times.
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02Nr\xff\xff\xff\x3f.")
    with pytest.raises(OpenNeutronError, match="TypeError"):
        load_folder(tmp_path, shape)
    (tmp_path / "data_batch_1").write_bytes(
        b"\x80\x02}(U\x04datacnumpy\nndarray\n(J\x00\x00\x01\x00M\x00\x0ct\x85Ru."
    )
    with pytest.raises(OpenNeutronError, match=r"data_batch_1.*CIFAR"):
        load_folder(tmp_path, shape)
    (tmp_path / "data_batch_1").unlink()
    (tmp_path / "test_batch").rename(tmp_path / "data_batch_1")
    (tmp_path / "test_batch").write_bytes(b"")
    with pytest.raises(OpenNeutronError, match="FIFO"):
        load_folder(tmp_path, shape)
    folder = tmp_path / "idx"
    folder.mkdir()
    for name, rank in IDX.items():
        header = struct.pack(f">HBB{rank}I", 0, 8, rank, 1, *[0] * (rank - 1))
        (folder / f"{name}-idx{rank}-ubyte").write_bytes(header + b"\1")
    with pytest.raises(OpenNeutronError, match=r"ON605.*idx"):
        load_folder(folder, shape)


@pytest.mark.parametrize("name", ["a" * 300, "loop"])
@pytest.mark.parametrize(
    "words",
    [
        ["compile", "cifarnet", "-o", "{}"],
        ["compile", "cifarnet", "--calibration", "{}"],
        ["compile", "cifarnet", "--target-file", "{}.toml"],
        ["eval", "cifarnet", "--data", "{}"],
        ["tune", "{}"],
        ["tune", "no/model"],
    ],
    ids=" ".join,
)
def test_names_that_no_file_can_have(tmp_path, monkeypatch, capfd, words, name):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    os.symlink("loop.toml", "loop.toml")
    assert main([word.format(name) for word in words]) in (1, 2)
    err = capfd.readouterr().err
    assert "error: ON" in err and "ON699" not in err


def test_lists_that_take_all_memory(tmp_path, capfd):
    path = tmp_path / "list.txt"
    for text in ("zoo\n" * 200_000, "zoo\n" * 4_000_000):
        path.write_text(text)
        assert main(["targets", "--predict", str(path)]) in (1, 2)
        assert "list.txt" in capfd.readouterr().err
