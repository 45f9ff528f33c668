"""Nothing in a .pt2 file runs: not its pickles, expressions, guards, libraries or names."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from openneutron.diagnostics import OpenNeutronError
from openneutron.inputs.source import load_source

TRACE = Path("ran")  # what code from a file would make, in the test's own folder


class Bomb:
    """Unpickled, it makes the file."""

    def __reduce__(self):
        return (exec, (f"open({str(TRACE)!r}, 'w').close()",))


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(module, (torch.zeros(1, 3, 8, 8),)), path)
    return path


def change(path: Path, edit) -> None:
    """Write the archive again with what `edit` makes of its files (name in the archive -> bytes)."""
    with zipfile.ZipFile(path) as archive:
        files = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    edit(files)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"model/{name}", data)


def change_graph(path: Path, edit) -> None:
    def of_files(files):
        document = json.loads(files["models/model.json"])
        edit(document)
        files["models/model.json"] = json.dumps(document).encode()

    change(path, of_files)


def refuse(path: Path, word: str = "") -> None:
    with pytest.raises(OpenNeutronError) as raised:
        load_source(str(path))
    found = raised.value.diagnostic
    assert found.code in ("ON603", "ON205") and str(path) in found.where and found.hint
    assert word in found.problem
    assert not TRACE.exists()


def torch_bomb() -> bytes:
    buffer = io.BytesIO()
    torch.save(((Bomb(),), {}), buffer)
    return buffer.getvalue()


def test_a_good_file_is_read(saved):
    change(saved, lambda files: None)  # the helper itself keeps a file good
    source = load_source(str(saved))
    assert tuple(source.example_inputs[0].shape) == (1, 3, 8, 8)


def test_sample_inputs_are_not_unpickled(saved):
    change(saved, lambda files: files.update({"data/sample_inputs/model.pt": torch_bomb()}))
    refuse(saved, "run code")


@pytest.mark.parametrize("part", ["weights", "constants"])
def test_pickled_tensors_are_not_unpickled(saved, part):
    name = {"weights": "weight_0", "constants": "tensor_0"}[part]

    def edit(files):
        config = f"data/{part}/model_{part}_config.json"
        document = json.loads(files[config])
        document["config"]["0.weight"] = {
            "path_name": name, "is_param": True, "use_pickle": True, "tensor_meta": None,
        }  # fmt: skip
        files[config] = json.dumps(document).encode()
        files[f"data/{part}/{name}"] = torch_bomb()

    change(saved, edit)
    refuse(saved, "run code")


@pytest.mark.parametrize(
    "name",
    [
        "data/constants/custom_obj_0",
        "data/constants/opaque_obj_0",
        "data/weights/model.pt",
        "data/constants/model.pt",
        "data/aotinductor/model/model.so",
    ],
)
def test_objects_and_libraries_are_refused(saved, name):
    change(saved, lambda files: files.update({name: pickle.dumps(Bomb())}))
    refuse(saved, name)


RUN = f"__import__('builtins').open({str(TRACE)!r},'w')"


def test_guards_are_not_run(saved):
    change_graph(saved, lambda d: d.update(guards_code=[RUN]))
    refuse(saved, "guard")


def test_expressions_are_not_evaluated(saved):
    def edit(document):
        value = next(iter(document["graph_module"]["graph"]["tensor_values"].values()))
        value["sizes"][0] = {"as_expr": {"expr_str": RUN, "hint": {"as_int": 4}}}

    change_graph(saved, edit)
    refuse(saved, "shape")


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.system",
        "torch.hub.load",
        "torch.ops.load_library",
        "torch.ops.aten.from_file.default",
        "_operator.methodcaller",
    ],
)
def test_only_operators_are_called(saved, target):
    change_graph(saved, lambda d: d["graph_module"]["graph"]["nodes"][0].update(target=target))
    refuse(saved, "operator")


def test_names_do_not_become_code(saved):
    def edit(document):
        text = json.dumps(document).replace('"x"', json.dumps(f"x=({RUN})").replace("'", "\\u0027"))
        text = text if "\\u0027" in text else text.replace('"input"', json.dumps(f"x=({RUN})"))
        document.clear()
        document.update(json.loads(text))

    change_graph(saved, edit)
    refuse(saved, "name")


def test_containers_are_not_imported(saved):
    tree = {
        "type": "collections.defaultdict",
        "context": {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": []},
        "children_spec": [],
    }

    def edit(document):
        document["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = json.dumps([1, tree])

    change_graph(saved, edit)
    refuse(saved, "defaultdict")


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04", b"no zip at all", b"[" * 100_000], ids=["empty", "cut", "text", "deep"]
)
def test_what_is_no_archive(saved, data):
    saved.write_bytes(data)
    refuse(saved)


def test_deep_json(saved):
    change(saved, lambda files: files.update({"models/model.json": b"[" * 100_000 + b"]" * 100_000}))
    refuse(saved)


def test_nothing_in_an_etrecord_runs(tmp_path):
    """It lies beside a program and is read unasked: names, operators and shapes in it are checked."""
    from openneutron import compile_model
    from openneutron.run.profile import read_etrecord

    inputs = (torch.zeros(1, 3, 8, 8),)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    good = compile_model(module, inputs, calibration=[inputs], etrecord=True).save_etrecord(
        tmp_path / "a.etrecord"
    )
    assert read_etrecord(good) is not None
    with zipfile.ZipFile(good) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    program = next(name for name in files if name.startswith("edge_dialect_exported_program/forward"))
    for one, other in (
        (b"executorch.exir.dialects.edge.ops.aten.convolution.default", b"torch.hub.load"),
        (b'"name": "', b'"name": "x; import os  # '),
        (b'"as_int": 3}', b'"as_expr": {"expr_str": "__import__(0)", "hint": null}}'),
        (b"builtins.tuple", b"os.system"),
    ):
        bad = tmp_path / "bad.etrecord"
        old = files[program]
        assert one in old, one
        with zipfile.ZipFile(bad, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, old.replace(one, other) if name == program else data)
        with pytest.raises(OpenNeutronError, match="might run code"):
            read_etrecord(bad)
    with zipfile.ZipFile(bad, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, torch_bomb() if name == f"{program}_state_dict" else data)
    with pytest.raises(OpenNeutronError, match="ON516"):
        read_etrecord(bad)
    assert not TRACE.exists()
    fifo = tmp_path / "fifo.etrecord"
    os.mkfifo(fifo)
    with pytest.raises(OpenNeutronError, match="is a FIFO"):
        read_etrecord(fifo)
