"""Programs of other flows: what can be known of them is said, and what cannot is said too."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower

from openneutron.cli import main
from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model
from tests.board.fake import Board, Model, Shape
from tests.board.programs import Layer, layer_program

_file = Path(__file__).parents[1] / "converter/sdk.py"
_spec = importlib.util.spec_from_file_location("eiq_stand_in_of_boards", _file)
assert _spec is not None and _spec.loader is not None
sdk = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sdk)


@pytest.fixture(scope="module")
def stock(tmp_path_factory) -> bytes:
    """A program as NXP's converter makes it, without OpenNeutron's seal."""
    inputs = (torch.randn(1, 3, 8, 8),)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(sdk.install(tmp_path_factory.mktemp("sdk"))))
        options = CompileOptions(converter="eiq")
        made = compile_model(
            torch.nn.Conv2d(3, 4, 3).eval(), inputs, calibration=[inputs], options=options, verify=False
        )
    return made.pte[:-48]  # the length of a seal


@pytest.fixture(scope="module")
def files(stock, tmp_path_factory) -> dict[str, Path]:
    exported = torch.export.export(Layer().eval(), (torch.ones(1, 6),))
    lowered = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    folder, made = tmp_path_factory.mktemp("others"), {"stock": stock, "portable": layer_program()}
    made["xnnpack"] = bytes(lowered.to_executorch().buffer)
    # Made by ExecuTorch 1.5.1's own NXP backend, in a process of its own, with tests/converter/sdk.py for the
    # converter: two partitions, log1p between them. Formats: the runtime transposes, not the NPU.
    made |= {path.stem: path.read_bytes() for path in Path(__file__).with_name("data").glob("nxp*.pte")}
    assert len(made) == 6
    made["other"] = made["nxp"].replace(b"NeutronBackend", b"NeutronSidecar")
    for name, data in made.items():
        (folder / f"{name}.pte").write_bytes(data)
    return {name: folder / f"{name}.pte" for name in made}


SAYS = {
    "stock": ("delegate 0: NeutronBackend", "microcode 96, weights 40", "scratch 4,096",
              "not public", "input 0: int8[1, 3, 8, 8]", "fits NXP's"),
    "portable": ("no delegate", "CPU operator aten::addmm.out", "without a seal", "fits NXP's"),
    "nxp": ("delegate 1: NeutronBackend", "as it lies in memory, 8 bytes short of the next 16", "not public",
            "CPU operator aten::log1p.out: not in NXP's", "no kernel for aten::log1p.out"),
    "nxp_formats": ("input 0: int8[1, 8, 10, 10], transposed to channels last by the runtime",
                    "output 0: int8[1, 8, 8, 8], transposed from channels last by the runtime"),
    "nxp_profiling": ("profile 256, debug 128", "scratch 4,096", "not public"),
    "other": ("delegate 0: NeutronSidecar", "the backend's own", "there is no backend NeutronSidecar"),
    "xnnpack": ("delegate 0: XnnpackBackend", "the backend's own", "there is no backend XnnpackBackend"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["doctor", "disasm"])
@pytest.mark.parametrize("name", SAYS)
def test_what_can_be_known(files, capsys, command, name):
    assert main([command, str(files[name])]) == 0
    out = capsys.readouterr().out
    assert all(says in out for says in SAYS[name]), out


@pytest.mark.parametrize("name", SAYS)
def test_reports_and_differences(files, tmp_path, capsys, name):
    assert main(["report", str(files[name]), "-o", str(tmp_path / "r.json")]) == 0
    missing = json.loads((tmp_path / "r.json").read_text())["missing"]
    unknown = ("not public", "XnnpackBackend", "NeutronSidecar")
    assert any(word in s for s in missing for word in unknown) is (name != "portable")
    assert main(["diff", str(files[name]), str(files["portable"])]) == 0
    assert ("cycles are not known" in capsys.readouterr().out) is (name != "portable")


def test_what_is_not_known_is_no_figure(files, tmp_path, capsys):
    """Neither 0 cycles nor a partition for an operator; what the program does tell is compared."""
    assert main(["diff", str(files["nxp"]), str(files["nxp_formats"]), "--json"]) == 0
    found = {f["key"]: (f["a"], f["b"]) for f in json.loads(capsys.readouterr().out)["figures"]}
    for key in ("cycles_estimated", "time_us_estimated", "npu_nodes", "macs_npu", "border_transposes"):
        assert found[key] == (None, None), key
    assert found["runtime_transposes"] == (0, 3) and found["partitions"] == (2, 2)
    (tmp_path / "b.toml").write_text(
        f'[[model]]\nmodel = "{files["nxp"]}"\nmin_npu_macs = 0\nmin_npu_nodes = 50\nmax_cycles = 9\n'
    )
    assert main(["check", str(tmp_path / "b.toml")]) == 1
    assert capsys.readouterr().out.count("not known") == 3
    assert main(["report", str(files["nxp"]), "-o", str(tmp_path / "r.json")]) == 0
    assert "Not estimated" in json.loads((tmp_path / "r.json").read_text())["summary"]["estimate_label"]


@pytest.mark.parametrize("name", ["nxp", "stock", "xnnpack"])
def test_damaged_programs_of_others(files, tmp_path, capsys, name):
    """Cut short, or with bytes changed: every command says something, and none gives up."""
    data, generator, path = files[name].read_bytes(), random.Random(0), tmp_path / "bad.pte"
    for number in range(30):
        bad = bytearray(data)
        if number < 10:
            bad = bad[: generator.randrange(len(bad))]
        else:
            for _ in range(generator.choice([1, 3, 30])):
                bad[generator.randrange(len(bad))] = generator.randrange(256)
        path.write_bytes(bad)
        for words in (["doctor"], ["disasm"], ["report", "-o", str(tmp_path / "r.json")]):
            code = main([*words, str(path)])
            out, err = capsys.readouterr()
            assert code in (0, 1, 2) and "ON699" not in err, (number, words, err)
            assert out.strip() if code == 0 else "error: ON" in err, (number, words)
        assert main(["diff", str(path), str(files["portable"])]) in (0, 1, 2)
        assert "ON699" not in capsys.readouterr().err, number


def test_an_estimate_from_the_graph(files, tmp_path, capsys):
    litert = tmp_path / "g.tflite"
    assert main(["convert", "dscnn", "-o", str(litert), "--quiet"]) == 0
    assert main(["doctor", str(files["stock"]), "--litert", str(litert)]) == 0
    assert "cycles of the NPU" in capsys.readouterr().out
    assert main(["report", str(files["stock"]), "--litert", str(litert), "-o", str(tmp_path / "r.json")]) == 0
    summary = json.loads((tmp_path / "r.json").read_text())["summary"]
    assert summary["time_us_estimated"] > 0 and "g.tflite" in summary["estimate_label"]
    assert main(["doctor", "--litert", str(litert)]) == 2


def test_a_payload_of_the_future(stock, tmp_path, capsys):
    """Another version byte: nothing of the payload is known, and the rest of the program still is."""
    at = stock.find(b"\x6e\x4d\x43\x64")
    data = bytearray(stock)
    data[at] ^= 1
    path = tmp_path / "new.pte"
    path.write_bytes(bytes(data))
    assert main(["doctor", str(path)]) == 0
    out = capsys.readouterr().out
    assert "a form this version does not know" in out and "quantize_per_tensor" in out
    assert main(["report", str(path), "-o", str(tmp_path / "r.json")]) == 0


def test_stock_microcode_on_the_stock_firmware(files, capsys):
    """The host cannot run it: what came back is not compared, and that is said."""
    four = Shape("float32", (1, 4, 6, 6), 576)
    model = Model([Shape("float32", (1, 3, 8, 8), 768)], [four], lambda given: [bytes(576)])
    with Board(model) as board:
        assert main(["run", str(files["stock"]), "--board", board.name, "--samples", "1"]) == 0
    assert "the host cannot run NXP's microcode" in capsys.readouterr().out


def test_stock_microcode_against_the_quantized_model(tmp_path, monkeypatch, capsys):
    """What the model computes is kept beside the program; a board is right within what rounding explains."""
    (tmp_path / "sdk").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(sdk.install(tmp_path / "sdk")))
    path = tmp_path / "net.pte"
    (tmp_path / "net.py").write_text(
        "import torch\n\ndef make():\n    torch.manual_seed(0)\n"
        "    return torch.nn.Conv2d(3, 4, 3).eval(), (torch.randn(1, 3, 8, 8),)\n"
    )
    assert main(["compile", f"{tmp_path / 'net.py'}:make", "--converter", "eiq", "-o", str(path)]) == 0
    with np.load(path.with_name("net.reference.npz")) as kept:
        wanted = {kept[f"input_{n}_0"].tobytes(): kept[f"output_{n}_0"] for n in range(4)}
    shape = Shape("float32", (1, 4, 6, 6), 576)

    def board(change):
        compute = lambda given: [change(wanted[given]).astype(np.float32).tobytes()]  # noqa: E731
        return Board(Model([Shape("float32", (1, 3, 8, 8), 768)], [shape], compute))

    for change, code in ((lambda x: x, 0), (lambda x: x + 1e-6, 0), (lambda x: x[..., ::-1], 1)):
        with board(change) as there:
            capsys.readouterr()
            assert main(["run", str(path), "--board", there.name, "--samples", "6"]) == code
        out, err = capsys.readouterr()
        assert "of what rounding explains" in out if code == 0 else "ON726" in err
    # Another program's reference, or a damaged one, is none.
    path.with_name("net.reference.npz").write_bytes(b"PK\x03\x04 damaged")
    with board(lambda x: x) as there:
        there.model.compute = lambda given: [bytes(576)]
        assert main(["run", str(path), "--board", there.name]) == 0
    assert "compared with nothing" in capsys.readouterr().out
