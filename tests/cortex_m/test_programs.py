"""Whole programs with cortex_m operators: lowered by ExecuTorch's passes, run in every way; wrong ones."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
from executorch.backends.cortex_m.quantizer.quantizer import CortexMQuantizer
from executorch.backends.cortex_m.target_config import CortexM, CortexMTargetConfig
from executorch.exir import EdgeProgramManager, to_edge
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from openneutron.diagnostics import OpenNeutronError
from openneutron.package.pte import inspect_program
from openneutron.pipeline import compile_model
from openneutron.run.delegate import REHEARSE, load_runtime
from openneutron.run.program import load_program
from tests.cortex_m.cases import CASES, Maker
from tests.cortex_m.program import Call, compile_calls, inputs_of, one_by_one, reference
from tests.native import RUNTIME


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.depthwise = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.grow = torch.nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = x + self.depthwise(x)
        x = self.grow(torch.nn.functional.max_pool2d(x, 2))
        x = torch.nn.functional.avg_pool2d(x * torch.sigmoid(x), x.shape[-1])
        return torch.softmax(self.head(x.flatten(1)), -1)


def _lowered(
    layout: torch.memory_format, core: CortexM, explicit: bool
) -> tuple[EdgeProgramManager, torch.Tensor]:
    torch.manual_seed(0)
    network, sample = Network().eval(), torch.randn(1, 3, 16, 16).to(memory_format=layout)
    if layout == torch.channels_last:
        network = network.to(memory_format=layout)
    module = torch.export.export(network, (sample,)).module(check_guards=False)
    prepared = prepare_pt2e(module, CortexMQuantizer(use_explicit_layout=explicit))
    prepared(sample)
    exported = torch.export.export(convert_pt2e(prepared), (sample,))
    edge = to_edge(exported, compile_config=cortex_m_edge_compile_config())
    target = CortexMTargetConfig(cpu=core)
    passes = CortexMPassManager(edge.exported_program(), target_config=target, use_explicit_layout=explicit)
    edge._edge_programs["forward"] = passes.transform()
    return edge, sample


LOWERINGS = {
    "channels-last-m33": (torch.channels_last, CortexM.M33, False),
    "channels-last-m55": (torch.channels_last, CortexM.M55, False),
    "nhwc-shapes-m33": (torch.contiguous_format, CortexM.M33, True),
}


@pytest.mark.parametrize("name", LOWERINGS)
def test_lowered_network_equals_the_dialect_in_python(name: str) -> None:
    edge, sample = _lowered(*LOWERINGS[name])
    expected = edge.exported_program().module()(sample)
    program = load_program(edge.to_executorch().buffer)
    called = {op for op in program.info.methods["forward"].operators if op.startswith("cortex_m::")}
    assert len(called) >= 9
    (result,) = program.run([sample])
    assert np.array_equal(result, expected.numpy())


def test_executorchs_own_runtime_finds_the_kernels() -> None:
    from executorch.runtime import Runtime

    load_runtime()
    call = Call("quantized_add", next(CASES["quantized_add"](Maker(3))))
    method = Runtime.get().load_program(compile_calls([call])).load_method("forward")
    assert method is not None
    assert torch.equal(method.execute(call.tensors)[0], reference(call))


def _wrong() -> Iterator[Call]:
    """Calls whose shapes can be inferred, but which the reference refuses or cannot mean."""
    m = Maker(0)
    x, image, lots = m.tensor(4), m.tensor(1, 4, 6, 6), 1 << 40
    ones, weight = torch.ones(8, dtype=torch.int32), m.tensor(8, 3, 3, 4)
    add = [x, 0, 1 << 30, 0, x, 0, 1 << 30, 0, 0, 1 << 30, 0, -128, 127]
    conv = [image, weight, None, [1, 1], [0, 0], [1, 1], 0, 0, ones, ones, -128, 127, m.scratch()]
    depthwise = [image, m.tensor(1, 3, 3, 8), None, *conv[3:6], 2, *conv[6:]]
    pool = [image, [2, 2], [2, 2], [0, 0], [1, 1], False, 0, 0, -128, 127]
    linear = [m.tensor(2, 4), m.tensor(3, 4), None, None, 0, 0, 0, [1 << 30], [0], 127, -128]
    yield Call("quantize_per_tensor", (torch.randn(3), 0.0, 0, -128, 127, torch.int8))
    yield Call("quantize_per_tensor", (torch.randn(3), 1.0, 0, -129, 127, torch.int8))
    yield Call("dequantize_per_tensor", (x, 1.0, 0, -128, 127, torch.int16))
    yield Call("softmax", (x, 0, 0, 0, 1 << 30, 20, 0))
    yield Call("softmax", (x, 0, 0, -128, 0, 20, 0))
    yield Call("softmax", (x, 4, 0, -128, 1 << 30, 20, 0))
    yield Call("softmax", (x, 0, 0, -128, 1 << 30, -(1 << 31), 0))
    yield Call("pad", (m.tensor(2, 3), [0, 0, 1, 1], [0, 0, 1, 1], 300))
    for position, value in ((2, lots), (3, 64), (10, -64), (5, lots), (11, -lots)):
        yield Call("quantized_add", _changed(add, position, value))
    channels = [m.tensor(1, 5, 6, 6), m.tensor(1, 2, 6, 6)]
    wrong = ((2, ones[:7]), (8, ones[:7]), (9, ones * 64), (6, lots), (0, channels[0]), (0, channels[1]))
    for position, value in (*wrong, (4, [-1, 0]), (1, weight.to(torch.int16))):
        yield Call("quantized_conv2d", _changed(conv, position, value))
    yield Call("quantized_depthwise_conv2d", _changed(depthwise, 6, 3))
    yield Call("quantized_depthwise_conv2d", _changed(depthwise, 0, m.tensor(1, 3, 6, 6)))
    for position, value in ((4, [2, 2]), (5, True), (7, 1), (3, [2, 0]), (8, lots)):
        yield Call("quantized_max_pool2d", _changed(pool, position, value))
    for position, value in ((1, m.tensor(3, 5)), (2, ones), (3, ones), (7, []), (8, [99])):
        yield Call("quantized_linear", _changed(linear, position, value))


def _changed(arguments: list[Any], position: int, value: Any) -> tuple[Any, ...]:
    return (*arguments[:position], value, *arguments[position + 1 :])


def test_wrong_arguments_are_errors_not_crashes(tmp_path: Path) -> None:
    calls = list(_wrong())
    data = one_by_one(compile_calls(calls))
    program, inputs = load_program(data), inputs_of(calls)
    assert len(program.info.methods) == len(calls)
    for i in range(len(calls)):
        with pytest.raises(OpenNeutronError, match="ON515"):
            program.run(inputs, f"call_{i}")
    path = tmp_path / "wrong.pte"
    path.write_bytes(data)
    assert subprocess.run([str(REHEARSE), str(path), "60"], capture_output=True).returncode == 3


def test_the_rehearsal_knows_the_operators(tmp_path: Path) -> None:
    path = tmp_path / "good.pte"
    path.write_bytes(compile_calls([Call(name, next(CASES[name](Maker(5)))) for name in CASES]))
    done = subprocess.run([str(REHEARSE), str(path), "60"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_bare_firmware_has_none_of_it() -> None:
    build = (RUNTIME / "CMakeLists.txt").read_text() + (RUNTIME / "firmware" / "CMakeLists.txt").read_text()
    assert "cortex_m" not in build


def test_a_softmax_that_the_kernel_refuses_stays_float() -> None:
    network, sample = (
        torch.nn.Sequential(torch.nn.Conv2d(3, 10, 4), torch.nn.Softmax(1)),
        torch.randn(1, 3, 4, 4),
    )
    made = compile_model(network.eval(), (sample,), calibration=[(sample,)], recipe="cortex-m")
    operators = inspect_program(made.pte).methods["forward"].operators
    assert "aten::_softmax.out" in operators and "cortex_m::softmax.out" not in operators
    assert np.isclose(load_program(made.pte).run((sample,))[0].sum(), 1, atol=1e-3)


class Joined(torch.nn.Module):
    """A ReLU whose result shares its range, below zero too, with what it is concatenated to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(4, 4, 3), torch.nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return torch.cat([y, self.second(y)], 1)


class Shifted(torch.nn.Module):
    """A constant of two dimensions between permutations of four: it is permuted with them, as broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(torch.randn(6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.permute(0, 2, 3, 1) + self.shift).permute(0, 3, 1, 2)


@pytest.mark.parametrize(("network", "quantized"), [(Joined, True), (Shifted, False)])
def test_what_executorchs_passes_lose_is_kept(network: type[torch.nn.Module], quantized: bool) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(1, 4, 5, 6),) for _ in range(2)]
    made = compile_model(  # which compares what it computes
        network().eval(), samples[0], calibration=samples if quantized else None, recipe="cortex-m"
    )
    assert "aten::convolution.out" not in inspect_program(made.pte).methods["forward"].operators
