"""The pipeline: what a user gets from a module, and what a summary says about it."""

import gc
import json
import weakref
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import openneutron
from openneutron.diagnostics import OpenNeutronError
from openneutron.options import CompileOptions
from openneutron.package.program import CompiledProgram
from openneutron.pipeline import compile_model, quantize_model
from openneutron.run.program import load_program
from tests.programs import assert_runs_exactly, compiled_for, random_inputs
from tests.run.models import Plain, Split

CONTRACT = {
    "program", "partitions", "npu_nodes", "cpu_nodes", "macs_npu", "macs_cpu", "scratch_bytes",
    "sram_prefetch_bytes", "weights_bytes", "program_bytes", "fits", "cycles_estimated", "kernels",
}  # fmt: skip


@cache
def split() -> CompiledProgram:
    return compiled_for(Split(), Split.shapes)


def test_public_names() -> None:
    assert openneutron.compile_model is compile_model
    assert openneutron.quantize_model is quantize_model


def test_summary(tmp_path: Path) -> None:
    path = split().save(tmp_path / "split.pte")
    summary = split().summary(path)
    assert set(summary) >= CONTRACT
    assert json.loads(json.dumps(summary)) == summary
    assert summary["program"] == str(path) and path.stat().st_size == summary["program_bytes"]
    assert summary["partitions"] == 2 and summary["fits"] is True
    (left,) = summary["cpu_nodes"]
    assert left["op"] == "aten.atan.default" and left["code"] == "ON201" and left["reason"] and left["hint"]
    assert summary["macs_npu"] == 9 * 11 * 6 * 4 * 9 + 7 * 9 * 5 * 6 * 9 and summary["macs_cpu"] == 0
    assert "CONV_2D" in summary["kernels"] and summary["cycles_estimated"] > 0
    assert summary["scratch_bytes"] == max(p.converted.scratch_bytes for p in split().partitions)


def test_what_stays_on_the_cpu_is_counted() -> None:
    options = CompileOptions(operators_not_to_delegate=("aten::convolution",))
    program = compiled_for(Split(), Split.shapes, options=options)
    assert program.summary()["macs_cpu"] == split().summary()["macs_npu"]
    assert {entry.reject.code for entry in program.rejected} >= {"ON204"}
    assert not program.partitions


def test_same_input_same_bytes() -> None:
    again = compiled_for(Split(), Split.shapes)
    assert [p.converted.microcode for p in again.partitions] == [
        p.converted.microcode for p in split().partitions
    ]
    assert again.pte == split().pte


def test_a_float_model_stays_on_the_cpu() -> None:
    inputs = random_inputs(Plain.shapes, 0)
    program = compile_model(Plain().eval(), inputs)
    assert not program.partitions and {e.reject.code for e in program.rejected} == {"ON202"}
    assert program.macs_cpu > 0 and program.summary()["kernels"] == []
    (got,), want = load_program(program.pte).run(inputs), Plain().eval()(*inputs)
    torch.testing.assert_close(torch.from_numpy(got), want, rtol=1e-4, atol=1e-4)


def test_stages_one_by_one() -> None:
    """Quantizing and compiling apart give what compiling with calibration gives."""
    samples = [random_inputs(Split.shapes, seed) for seed in range(3)]
    quantized = quantize_model(Split().eval(), samples)
    assert compile_model(quantized, samples[0]).pte == split().pte
    exported = torch.export.export(quantized, samples[0])
    assert len(compile_model(exported, samples[0]).partitions) == 2


@pytest.mark.parametrize("channels_last", [False, True])
def test_training(channels_last: bool) -> None:
    """QAT, with a batch norm after a convolution without bias: the incumbent's sore point."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    samples = [random_inputs([(2, 3, 8, 8)], seed, channels_last) for seed in range(4)]

    def train(prepared: torch.fx.GraphModule) -> None:
        optimizer = torch.optim.SGD(prepared.parameters(), 1e-2)
        for (x,) in samples:
            optimizer.zero_grad()
            prepared(x).square().mean().backward()
            optimizer.step()

    quantized = quantize_model(model, samples, qat=True, train_fn=train)
    program = compile_model(quantized, samples[0])
    assert len(program.partitions) == 1 and not program.rejected
    assert_runs_exactly(program, lambda seed: random_inputs([(2, 3, 8, 8)], seed, channels_last), 3)


def test_bad_calls(tmp_path: Path) -> None:
    with pytest.raises(OpenNeutronError) as caught:
        quantize_model(Plain(), [])
    assert caught.value.diagnostic.code == "ON209"
    with pytest.raises(OpenNeutronError) as caught:
        quantize_model(Plain(), [random_inputs(Plain.shapes, 0)], qat=True)
    assert caught.value.diagnostic.code == "ON104"
    with pytest.raises(OpenNeutronError) as caught:
        split().save(tmp_path / "no such folder" / "a.pte")
    assert caught.value.diagnostic.code == "ON601"
    assert list(tmp_path.iterdir()) == []


def test_does_not_fit() -> None:
    with pytest.raises(OpenNeutronError) as caught:
        compiled_for(Plain(), Plain.shapes, options=CompileOptions(sram_bytes=1000))
    assert caught.value.diagnostic.code == "ON403"


def test_what_was_compiled_before_is_let_go():
    """A search compiles hundreds of models in one process."""
    seen = [weakref.ref(compiled_for(Plain(), Plain.shapes).edge) for _ in range(3)]
    gc.collect()
    assert [ref() is None for ref in seen[:2]] == [True, True]  # torch itself holds on to the last
