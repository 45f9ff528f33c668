"""`openneutron compile`: every kind of model, the summary, the options."""

import json
import lzma

import numpy as np
import pytest
import torch

from tests.trained import NAMES, trained_model

CONTRACT = {
    "program", "partitions", "npu_nodes", "cpu_nodes", "macs_npu", "macs_cpu", "scratch_bytes",
    "sram_prefetch_bytes", "weights_bytes", "program_bytes", "fits", "cycles_estimated", "kernels",
}  # fmt: skip


def test_a_file_may_define_dataclasses(cli, tmp_path):
    (tmp_path / "typed_network.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "import torch\n"
        "@dataclass\n"
        "class Size:\n"
        "    width: int = 8\n"
        "def net():\n"
        "    x = torch.zeros(1, Size().width)\n"
        "    return torch.nn.Linear(8, 4), x, [torch.randn(1, 8) for _ in range(8)]\n"
    )
    done = cli("compile", "typed_network.py:net", "--json")
    assert done.code == 0, done.err


def test_own_callable_is_compiled_and_runs(cli, tmp_path):
    done = cli("compile", "own.py:net", "-o", "sub/net.pte", "--json")
    assert done.code == 0, done.err
    data = done.json
    assert data.keys() >= CONTRACT
    assert data["program"] == "sub/net.pte"
    assert data["partitions"] == 1 and data["cpu_nodes"] == [] and data["fits"] is True
    assert data["program_bytes"] == (tmp_path / "sub/net.pte").stat().st_size
    assert data["macs_npu"] == 16 * 16 * 9 * 8 + 512 * 4 and data["macs_cpu"] == 0

    np.save("x.npy", np.zeros((1, 1, 16, 16), np.float32))
    done = cli("run", "sub/net.pte", "--input", "x.npy", "--output-dir", "results", "--json")
    assert done.code == 0, done.err
    assert np.load("results/output_0.npy").shape == (1, 4)
    assert done.json["files"] == ["results/output_0.npy"]


def test_the_summary_says_what_users_ask_for(cli):
    done = cli("compile", "own.py:split", "--report", "report.json")
    assert done.code == 0, done.err
    for text in ("on the NPU", "on the CPU", "partitions", "scratch", "fits the SRAM", "estimated", "hint"):
        assert text in done.out, done.out
    assert "aten.atan.default" in done.out and "ON201" in done.out
    assert "random" in done.err  # no calibration data were given
    with open("report.json") as file:
        report = json.load(file)
    assert report["summary"]["partitions"] == 2
    assert [n["reason"]["code"] for n in report["nodes"] if "atan" in n["op"]] == ["ON201"]
    assert {step["kernel"] for step in report["timeline"]} >= {"CONV_2D", "aten.atan.default"}
    assert "atan" in report["summary"]["hint"]


def test_size_mode_needs_less_and_gives_the_same_bits(cli):
    np.save("x.npy", np.random.default_rng(0).normal(size=(1, 1, 16, 16)).astype(np.float32))
    found = {}
    for aim in ("performance", "size"):
        done = cli(
            "compile", "own.py:net", "--optimise", aim, "--cycle-budget", "2", "-o", f"{aim}.pte", "--json"
        )
        assert done.code == 0, done.err
        assert cli("run", f"{aim}.pte", "--input", "x.npy", "--output-dir", aim).code == 0
        found[aim] = done.json, np.load(f"{aim}/output_0.npy")
    (fast, wanted), (small, got) = found["performance"], found["size"]
    assert small["scratch_bytes"] < fast["scratch_bytes"] / 2
    assert fast["cycles_estimated"] < small["cycles_estimated"] <= 3 * fast["cycles_estimated"]
    assert "CASCADE" in small["kernels"] and "CASCADE" not in fast["kernels"]
    np.testing.assert_array_equal(wanted, got)
    assert cli("compile", "own.py:net", "--optimise", "speed").code == 2


def test_default_output_is_named_after_the_model(cli, tmp_path):
    assert cli("compile", "own.py:net").code == 0
    assert (tmp_path / "own.pte").exists()


def test_without_quantizing_nothing_is_delegated_and_the_hint_says_why(cli):
    done = cli("compile", "own.py:net", "--no-quantize", "--json")
    assert done.code == 0, done.err
    assert done.json["npu_nodes"] == 0 and done.json["macs_npu"] == 0
    assert {r["code"] for r in done.json["cpu_nodes"]} == {"ON202"}
    assert "--quantize" in done.json["hint"]


def test_without_delegating_the_program_still_runs(cli):
    assert cli("compile", "own.py:net", "--no-delegate", "-o", "cpu.pte").code == 0
    assert cli("run", "cpu.pte").code == 0


def test_options_reach_the_compiler(cli, tmp_path):
    done = cli(
        "compile", "own.py:net", "-o", "a.pte", "--json", "--operators_not_to_delegate", "aten::linear",
        "aten::addmm", "--dump_kernel_selection_code", "--fetch_constants_to_sram", "--intermediates", "kept",
        "-r", "--per-channel", "--sram", "64K",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert {r["code"] for r in done.json["cpu_nodes"]} >= {"ON204"}
    assert done.json["sram_prefetch_bytes"] > 0 and done.json["sram_bytes"] == 65536
    assert "NEUTRON_KERNEL_MAX_POOL_2D" in (tmp_path / "a_kernel_selection.c").read_text()
    assert list((tmp_path / "kept").glob("*_pure.et.tflite"))
    assert list((tmp_path / "kept").glob("*_neutron.et.tflite"))


def test_int8_ends_and_channels_last(cli):
    options = ("--use_channels_last_dim_order", "-r")
    assert cli("compile", "own.py:net", *options, "-o", "a.pte").code == 0
    done = cli("run", "a.pte", "--json")
    assert done.json["inputs"] == [{"shape": [1, 1, 16, 16], "dtype": "int8"}]


@pytest.mark.parametrize("kind", ["npz", "folder", "npy", "pt", "xz"])
def test_calibration_data(cli, tmp_path, kind):
    samples = np.random.default_rng(0).standard_normal((6, 1, 16, 16)).astype(np.float32)
    if kind == "npz":
        np.savez("data.npz", inputs=samples)
        place = "data.npz"
    elif kind == "npy":
        np.save("data.npy", samples[:, 0:1])
        place = "data.npy"
    elif kind == "pt":
        torch.save(torch.from_numpy(samples), "data.pt")
        place = "data.pt"
    elif kind == "xz":  # pairs of a sample and its label
        with lzma.open("data.pt.xz", "wb") as file:
            torch.save([(torch.from_numpy(sample), torch.tensor(3)) for sample in samples], file)
        place = "data.pt.xz"
    else:
        (tmp_path / "data").mkdir()
        for i, sample in enumerate(samples):
            np.save(f"data/{i}.npy", sample)
        place = "data"
    done = cli("compile", "own.py:without_calibration", "--calibration", place, "-o", "a.pte")
    assert done.code == 0, done.err
    assert "with 6 samples" in done.err


def test_pt2_float_and_quantized(cli):
    from openneutron import quantize_model

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU()).eval()
    inputs = (torch.randn(1, 1, 8, 8),)
    torch.export.save(torch.export.export(module, inputs), "float.pt2")
    quantized = torch.export.export(quantize_model(module, [inputs]), inputs)
    torch.export.save(quantized, "int8.pt2")
    for name in ("float", "int8"):
        done = cli("compile", f"{name}.pt2", "--json")
        assert done.code == 0, done.err
        assert done.json["partitions"] == 1 and done.json["cpu_nodes"] == []
        assert cli("run", f"{name}.pte").code == 0


@pytest.mark.parametrize("model", NAMES)
def test_tflite_of_others_equals_the_reference(cli, model):
    from openneutron.litert.reference import run_reference

    file = trained_model(model)
    done = cli("compile", file, "-o", "a.pte", "--json")
    assert done.code == 0, done.err
    assert done.json["partitions"] == 1 and done.json["macs_npu"] > 2_000_000
    refused = cli("compile", file, "-o", "b.pte", "--per-channel")
    assert refused.code == 2 and "no effect" in refused.err
    spec = cli("run", "a.pte", "--json").json["inputs"][0]
    x = np.random.default_rng(1).integers(-128, 128, spec["shape"]).astype(spec["dtype"])
    np.save("x.npy", x)
    expected = run_reference(file.read_bytes(), [x])[0]
    for program in ("a.pte", file):
        assert cli("run", program, "--input", "x.npy", "--output-dir", "d").code == 0
        assert np.array_equal(np.load("d/output_0.npy"), expected)


def test_same_input_same_bytes(cli, tmp_path):
    for name in ("a.pte", "b.pte"):
        assert cli("compile", "own.py:net", "-o", name).code == 0
    assert (tmp_path / "a.pte").read_bytes() == (tmp_path / "b.pte").read_bytes()


def test_the_hint_counts_what_channels_last_inputs_would_save(cli):
    plain = cli("compile", "own.py:pooled", "-r", "--json").json
    assert plain["border_transposes"] == 1 and "channels-last inputs" in plain["hint"]
    saved = plain["transpose_cycles_estimated"]
    last = cli("compile", "own.py:pooled", "-r", "--use_channels_last_dim_order", "--json").json
    assert last["border_transposes"] == 0 and "channels-last" not in last["hint"]
    assert plain["cycles_estimated"] - last["cycles_estimated"] == saved
