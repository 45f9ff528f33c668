"""What a program remembers: exact step by step, from its initial values, checked before it runs."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.driver import prepare_problem
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.file import read, write
from openneutron.litert.reference import Reference
from openneutron.options import CompileOptions
from openneutron.package.payload import pack, parse
from openneutron.pipeline import compile_litert, compile_model, convert_model, quantize_model
from openneutron.quantize.sequences import outputs_over
from openneutron.run.native import NativeModel
from openneutron.run.program import load_program
from openneutron.targets.table import find_target
from tests.stateful.check import BOTH, check_network
from tests.stateful.graphs import changing_places
from tests.stateful.networks import CHANNELS, Assigned, Level, Newest, Ring, frames, random_network

TARGET = find_target("imxrt700")


@pytest.mark.parametrize("options", [*BOTH, CompileOptions(fetch_constants_to_sram=True)], ids=str)
def test_states_are_those_of_litert(options: CompileOptions):
    raw = write(changing_places())
    compiled, reference = compile_graph(read(raw), TARGET, options), Reference(raw)
    model = NativeModel(compiled.microcode, compiled.weights)
    given = [[np.full((1, 4), i, np.int8)] for i in range(12)]
    found = [model.run(x)[0] for x in given]
    for got, x in zip(found, given, strict=True):
        np.testing.assert_array_equal(got, reference.run(x)[0])
    model.reset()
    for got, x in zip(found, given, strict=True):
        np.testing.assert_array_equal(got, model.run(x)[0])


def test_a_file_keeps_names_order_and_initial_values():
    graph = read(write(changing_places()))
    assert [state.name for state in graph.states] == ["a", "b", "c", "ring"]
    assert graph.states[1].initial.tolist() == [[1, 2, 3, 4]]
    assert len(graph.given) == len(graph.returned) == 1


def test_a_tflite_with_variables_is_compiled():
    program = compile_litert(write(changing_places()))
    assert [name for name, _ in program.states] == ["a", "b", "c", "ring"]
    loaded, reference = load_program(program.pte), Reference(write(changing_places()))
    for i in range(5):
        x = [np.full((1, 4), i, np.int8)]
        np.testing.assert_array_equal(loaded.run(x)[0], reference.run(x)[0])


def _program() -> tuple[mc.Program, bytes]:
    compiled = compile_graph(changing_places(), TARGET, CompileOptions())
    return compiled.program, compiled.weights


def _changed(number: int, **fields: int) -> tuple[mc.State, ...]:
    states = list(_program()[0].states)
    states[number] = replace(states[number], **fields)
    return tuple(states)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"state_bytes": 0}, "outside"),
        ({"state_bytes": 1 << 31}, "contradicts itself"),
        ({"states": _changed(3, offset=1 << 20)}, "outside"),
        ({"states": _changed(1, offset=0)}, "outside"),
        ({"states": _changed(3, offset=56)}, "not aligned"),
        ({"states": _changed(1, initial=1 << 20)}, "outside"),
        ({"states": _changed(0, fill=256)}, "contradicts itself"),
        ({"states": _changed(0, bytes=8)}, "contradicts itself"),
        ({"states": _changed(0, dtype=9)}, "contradicts itself"),
        ({"states": _program()[0].states[:3]}, "contradicts itself"),
        ({"states": (), "state_bytes": 0}, "outside its memory region"),
    ],
)  # fmt: skip
def test_a_hostile_state_is_refused(changes: dict, problem: str):
    program, weights = _program()
    assert prepare_problem(mc.encode(program), weights) == ""
    assert problem in prepare_problem(mc.encode(replace(program, **changes)), weights)


def test_disassembly_and_payload_name_the_states():
    text = "\n".join(mc.disassemble(_program()[0]))
    assert "state0: a int8[1, 4] 4 bytes at state+0, starts from byte 33" in text
    program = compile_litert(write(changing_places()))
    payload = parse(pack(program.info.payloads()[0]))
    assert [state.label for state in payload.states] == ["a", "b", "c", "ring"] and payload.state_bytes == 64


@pytest.fixture(scope="module")
def ring():
    torch.manual_seed(0)
    module = Ring().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    told: list = []
    sequences = [frames(40, seed) for seed in range(5)]
    quantized = quantize_model(module, sequences, watch=told.append)
    compiled = compile_model(module, sequences[0][0], calibration=sequences)
    return module, before, quantized, compiled, told[0]


def test_the_callers_module_is_untouched_and_the_program_starts_from_its_values(ring):
    module, before, _, compiled, _ = ring
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())
    given = frames(50, 7)
    wanted = outputs_over(module, given)
    found = load_program(compiled.pte)
    distance = [abs(found.run(x)[0] - y[0].numpy()).max() for x, y in zip(given, wanted, strict=True)]
    assert distance[0] < 0.1 and max(distance) < 0.2  # it starts from 3, not from 0


def test_the_state_is_the_delegates_and_int8(ring):
    *_, compiled, _ = ring
    assert compiled.states == [("ring", 3 * CHANNELS)]  # the window: two frames and the new one
    assert not compiled.edge.graph_signature.buffers_to_mutate
    assert compiled.summary()["state_bytes"] == 32
    steps = [n.name for n in compiled.edge.graph.nodes if "quantize" in n.name]
    assert len(steps) == 2, steps


def test_the_error_is_told_over_time(ring):
    told = ring[-1]
    assert set(told.over_time) == {1, 10} and min(told.over_time.values()) > 25
    assert told.quality.output_db > 25 and told.quality.samples == 40


def test_what_stays_on_the_cpu_keeps_its_initial_value():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.register_buffer("n", torch.tensor([5]))

        def forward(self, x):
            self.n += 1
            return self.layer(x), self.n.clone()

    inputs = (torch.randn(1, 4),)
    program = load_program(compile_model(Counter().eval(), inputs, calibration=[inputs] * 2).pte)
    assert [int(program.run(inputs)[1][0]) for _ in range(3)] == [6, 7, 8]
    other = load_program(program._data)
    assert int(other.run(inputs)[1][0]) == 6
    program.reset()
    assert int(program.run(inputs)[1][0]) == 6 and int(other.run(inputs)[1][0]) == 7


def test_a_float_program_remembers_what_its_layers_made():
    class Last(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.register_buffer("last", torch.zeros(1, 4))

        def forward(self, x):
            result = x + self.last
            self.last.copy_(self.layer(x))
            return result

    torch.manual_seed(0)
    module, given = Last().eval(), [torch.randn(1, 4) for _ in range(3)]
    program = load_program(compile_model(module, (given[0],)).pte)
    for x, (wanted,) in zip(given, outputs_over(module, [(x,) for x in given]), strict=True):
        np.testing.assert_allclose(program.run((x,))[0], wanted.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("kind", [Assigned, Level, Newest])
def test_a_buffer_of_a_part_that_is_assigned_anew_one_that_is_a_number_and_two_frames(kind):
    random.seed(0)  # for two frames
    torch.manual_seed(0)
    module = torch.nn.Sequential(kind(), torch.nn.Flatten(1), torch.nn.Linear(CHANNELS, 3)).eval()
    assert check_network(module, 40, threads=(1,)).states == 1


def test_a_buffer_that_nobody_reads_is_no_state():
    class Seen(torch.nn.Sequential):
        def forward(self, x):
            y = super().forward(x)
            self.seen.copy_(y)
            return torch.relu(y)

    module = Seen(Assigned(), torch.nn.Flatten(1), torch.nn.Linear(CHANNELS, 3)).eval()
    module.register_buffer("seen", torch.zeros(1, 3))
    assert check_network(module, 20, threads=(1,)).states == 1


def test_a_buffer_that_is_written_by_broadcasting_and_one_without_values():
    class Level(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 3)
            self.register_buffer("level", torch.zeros(1, 6))
            self.register_buffer("ring", torch.zeros(1, 6, 0))  # of a convolution with one tap

        def forward(self, x):
            window = torch.cat([self.ring, x], -1)
            result = self.layer(window.flatten(1) - self.level)
            self.ring.copy_(window[..., 1:])
            self.level.copy_(x.abs().mean(1))
            return result

    torch.manual_seed(0)
    module, given = Level().eval(), frames(30, 1)
    sequences = [given, *(frames(30, seed) for seed in range(2, 8))]
    compiled = compile_model(module, given[0], calibration=sequences, accuracy="fast")
    assert compiled.states == [("level", 6)]
    program = load_program(compiled.pte)
    good = np.stack([y[0].detach().numpy() for y in outputs_over(module, given)])
    off = np.stack([program.run(x)[0] for x in given]) - good
    assert np.linalg.norm(off) < 0.03 * np.linalg.norm(good)  # 30 dB


def test_a_sequence_leaves_the_module_as_it_was():
    module = torch.nn.Sequential(Assigned())
    buffer, values = module[0].h, module[0].h.clone()
    first = outputs_over(module, frames(5, 0))
    assert module[0].h is buffer and torch.equal(buffer, values)
    assert all(map(torch.equal, first[4], outputs_over(module, frames(5, 0))[4]))


@pytest.mark.parametrize("seed", [4, 9008, 30004, 33008])
def test_random_networks(seed: int):
    found = check_network(random_network(seed), 60)
    assert found.states > 0


def test_a_batch_of_what_follows_one_another_is_refused():
    program, weights = _program()
    model = NativeModel(mc.encode(program), weights)
    with pytest.raises(OpenNeutronError, match="state"):
        model.run_batch([np.zeros((2, 1, 4), np.int8)])


@pytest.mark.parametrize("calibrated", [False, True])
def test_convert_writes_variables(calibrated: bool):
    torch.manual_seed(0)
    module, given = Ring().eval(), frames(30, 3)
    raw = convert_model(
        module, given[0], calibration=[frames(30, seed) for seed in range(2)] if calibrated else None
    )
    assert [state.name for state in read(raw).states] == ["ring"]
    reference = Reference(raw)
    (port,), (result,) = read(raw).given, read(raw).returned
    for (frame,), (wanted,) in zip(given, outputs_over(module, given), strict=True):
        x = frame.numpy()
        if port.quant is not None:
            x = np.clip(np.round(x / port.quant.scale[0]) + port.quant.zero_point[0], -128, 127).astype(
                np.int8
            )
        (found,) = reference.run([x])
        if result.quant is not None:
            found = (found.astype(np.float32) - result.quant.zero_point[0]) * result.quant.scale[0]
        np.testing.assert_allclose(found, wanted.numpy(), atol=0.1 if calibrated else 1e-5)


class Alike(torch.nn.Module):
    """Two buffers become the same tensor, and two what another was."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        for name in ("a", "b", "c", "d"):
            self.register_buffer(name, torch.rand(1, 4))

    def forward(self, x):
        y = torch.relu(self.layer(x))
        result = y + self.a - self.b * 0.5 + self.c * 0.25 - self.d
        self.c.copy_(self.a)
        self.d.copy_(self.a)
        self.a.copy_(y)
        self.b.copy_(y)
        return result


@pytest.mark.parametrize("calibrated", [False, True])
def test_buffers_that_become_the_same(calibrated: bool):
    torch.manual_seed(0)
    module, given = Alike().eval(), [(torch.rand(1, 4),) for _ in range(30)]
    compiled = compile_model(
        module, given[0], calibration=[given] if calibrated else None, options=BOTH[0], accuracy="fast"
    )
    program = load_program(compiled.pte)
    for x, (wanted,) in zip(given, outputs_over(module, given), strict=True):
        np.testing.assert_allclose(
            program.run(x)[0], wanted.detach().numpy(), atol=0.05 if calibrated else 1e-6
        )
