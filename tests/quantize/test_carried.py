"""State that a model passes as inputs and outputs: it becomes the program's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.file import read
from openneutron.pipeline import compile_model, convert_model
from openneutron.quantize.carried import Port, carry_state, ports_of, suggested
from openneutron.quantize.export import export_model
from openneutron.run.program import load_program


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(8, 16), nn.Linear(16, 4)

    def forward(self, x, h):
        h = self.cell(x, h)
        return self.head(h), h


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 16), nn.Linear(16, 4)

    def forward(self, x, state, gain):
        h, c = self.cell(x * gain, state)
        return {"y": self.head(h), "state": (h, c)}


class Delay(nn.Module):
    """What one state was is what the other becomes, and a state itself is returned."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    def forward(self, x, first, second):
        return self.head(x) + second, second.view(8), x.view(1, 8), first.view(1, 8)


class Stacked(nn.Module):
    """Hidden and cell states of two layers in one tensor, as recurrent models are exported."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.LSTMCell(8, 16), nn.LSTMCell(16, 16), nn.Linear(16, 4)
        self.register_buffer("zero", torch.zeros(1))

    def forward(self, x, state):
        h, c = self.one(x, (state[0], state[1]))
        h2, c2 = self.two(h, (state[2], state[3]))
        return self.head(h2), torch.stack([h, c, h2, c2]) + self.zero


ZERO = torch.zeros(1, 16)
GAIN = torch.ones(1)
# The last is the bytes of state: four a value of a GRU's state and an LSTM's cell, one of the rest.
CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, str], tuple[Any, ...], int]] = {
    "a cell": (Cell, (ZERO,), {"1": "h"}, (), 64),
    "in containers": (Nested, ((ZERO, ZERO), GAIN), {"state_0": "state_0", "2": "2"}, (GAIN,), 80),
    "a delay": (Delay, (ZERO[:, :8], ZERO[:, :8]), {"2": "first", "3": "second"}, (), 0),
    "stacked": (Stacked, (torch.zeros(4, 1, 16),), {"1": "state"}, (), 160),
}


@pytest.mark.parametrize("case", CASES)
def test_the_program_keeps_it(case: str):
    cls, rest, pairs, left, size = CASES[case]
    torch.manual_seed(0)
    model, frames = cls().eval(), [torch.randn(1, 8) for _ in range(60)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wanted, given = [], (frames[0], *rest)
    with torch.no_grad():
        for frame in frames:
            found = pytree.tree_leaves(model(frame, *given[1:]))
            leaves, numbers = pytree.tree_leaves((frame, *given[1:])), len(found) - len(pairs)
            at = 1
            for value in found[numbers:]:
                leaves[at], at = value, at + 1
            given = pytree.tree_unflatten(leaves, pytree.tree_structure(given))
            wanted.append([value.numpy().copy() for value in found[:numbers]])
    carried, inputs = carry_state(model, (frames[0], *rest), pairs)
    assert len(inputs) == 1 + len(left)
    with torch.no_grad():
        for frame, expected in zip(frames, wanted, strict=True):
            for got, want in zip(pytree.tree_leaves(carried(frame, *left)), expected, strict=True):
                np.testing.assert_array_equal(got, want)
    sequences = [[(frame, *left) for frame in frames[i : i + 30]] for i in (0, 30)]
    example = (frames[0], *rest)
    compiled = compile_model(model, example, calibration=sequences, accuracy="fast", state=pairs)
    assert sum(count for _, count in compiled.states) == size
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    steps = [n for n in compiled.edge.graph.nodes if "quantize" in n.name]
    # What the caller is given as it was stored stays ExecuTorch's.
    assert case == "a delay" or len(steps) == 1 + len(left) + len(wanted[0])
    program = load_program(compiled.pte)
    for _ in range(2):
        for frame, expected in zip(frames[:20], wanted, strict=False):
            for got, want in zip(program.run((frame, *left)), expected, strict=True):
                assert abs(got - want).max() < 0.15
        program.reset()


def test_samples_with_state_are_taken_without_it():
    carried, _ = carry_state(Cell().eval(), (torch.zeros(1, 8), ZERO), {"1": "h"})
    x = torch.ones(1, 8)
    assert carried.frames([(x, ZERO), [(x, ZERO), (x,)], x]) == [(x,), [(x,), (x,)], (x,)]


def test_a_stacked_state_has_a_scale_for_each_part():
    torch.manual_seed(0)
    frames = [(torch.randn(1, 8),) for _ in range(30)]
    compiled = compile_model(
        Stacked().eval(), (*frames[0], torch.zeros(4, 1, 16)), calibration=[frames], state={"1": "state"},
        accuracy="fast",
    )  # fmt: skip
    assert [name for name, _ in compiled.states] == ["state_0", "state_1", "state_2", "state_3"]


def test_convert_writes_variables():
    torch.manual_seed(0)
    raw = convert_model(Cell().eval(), (torch.zeros(1, 8), ZERO), state={"1": "h"})
    graph = read(raw)
    assert [s.name for s in graph.states] == ["h"] and len(graph.given) == len(graph.returned) == 1


def test_several_methods():
    inputs = (torch.zeros(1, 8), ZERO)
    state = {"a": {"1": "h"}}
    program = compile_model({"a": Cell().eval(), "b": Cell().eval()}, {"a": inputs, "b": inputs}, state=state)
    assert len(load_program(program.pte).run(inputs[:1], "a")) == 1
    assert len(load_program(program.pte).run(inputs, "b")) == 2


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({"1": "hidden"}, "no input 'hidden'"),
        ({"9": "h"}, "no output '9'"),
        ({"1": "x"}, r"the output is float32\[1, 16\], the input float32\[1, 8\]"),
        ({"1": "h", "1 ": "h"}, "no output '1 '"),
    ],
)  # fmt: skip
def test_pairs_that_fit_nothing_are_refused(state: dict[str, str], problem: str):
    with pytest.raises(OpenNeutronError, match=problem) as error:
        carry_state(Cell().eval(), (torch.zeros(1, 8), ZERO), state)
    assert error.value.diagnostic.code == "ON104"


def test_an_output_has_to_be_left():
    class Last(nn.Module):
        def forward(self, x, last):
            return x + last

    with pytest.raises(OpenNeutronError, match="no output is left"):
        carry_state(Last(), (ZERO, ZERO), {"0": "last"})


def _ports(text: str) -> list[Port]:
    shapes = {"a": (1, 8), "b": (2, 1, 64), "c": (1, 3, 4)}
    words = [word.split(":") for word in text.split()]
    return [Port(name, shapes[shape], torch.float32) for name, shape in words]


@pytest.mark.parametrize(
    ("ins", "outs", "pairs"),
    [
        ("input:a state:b", "output:c stateN:b", {"stateN": "state"}),
        ("x:a h0:b c0:b", "y:a hn:b cn:b", {"hn": "h0", "cn": "c0"}),
        ("frame:a cache_in_0:b cache_in_1:b", "mask:a cache_out_0:b cache_out_1:b",
         {"cache_out_0": "cache_in_0", "cache_out_1": "cache_in_1"}),
        ("mix:a conv_cache:b tra_cache:c", "enh:a conv_cache_out:b tra_cache_out:c",
         {"conv_cache_out": "conv_cache", "tra_cache_out": "tra_cache"}),
        ("x:a cached_len:b", "y:a new_cached_len:b", {"new_cached_len": "cached_len"}),
        ("x:a prevState:b", "y:a nextState:b", {"nextState": "prevState"}),
        ("input_1:a input_2:b", "output_1:a output_2:b", {"output_2": "input_2"}),
        ("noisy:a", "clean:a", {}),  # a picture in, a picture out
        ("left:a right:a", "one:a two:a", {"two": "right"}),  # not certain, and so only said
        ("x:a p:b q:b", "y:a r:b s:b", {}),  # which is which?
    ],
)  # fmt: skip
def test_what_is_suggested(ins: str, outs: str, pairs: dict[str, str]):
    assert suggested(_ports(ins), _ports(outs)) == pairs


def test_ports_of_python_have_names():
    program = export_model(Nested().eval(), (torch.zeros(1, 8), (ZERO, ZERO), GAIN))
    ins, outs = ports_of(program)
    assert [p.name for p in ins] == ["x", "state_0", "state_1", "gain"]
    assert [p.name for p in outs] == ["y", "state_0", "state_1"]
