"""What-if: what is predicted for an operator is what supporting it brings."""

import pytest
import torch
from torch import nn

from openneutron import ops
from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model, quantize_model
from openneutron.report.data import report_data
from openneutron.report.what_if import explore, figures
from tests.report.models import Split, example


class Between(nn.Module):
    """Two convolutions and an operator between them, of one or two inputs."""

    def __init__(self, function, two=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.function, self.two = function, two

    def forward(self, x):
        y = self.first(x)
        return self.second(self.function(y, torch.relu(y)) if self.two else self.function(y))


OPERATORS = {
    "aten.tanh.default": Between(torch.tanh),
    "aten.sub.Tensor": Between(torch.sub, two=True),
}


@pytest.mark.parametrize("op", OPERATORS)
def test_supporting_an_operator_brings_what_was_predicted(op, monkeypatch):
    """The operator is taken out of the table; what is predicted then is what it brings to put it back."""
    model = OPERATORS[op].eval()
    with monkeypatch.context() as patch:
        patch.delitem(ops._BY_NAME, op)
        quantized = quantize_model(model, [example()])
        without = compile_model(quantized, example())
        assert [r.op for r in without.rejected] == [op]
        answers = explore(without, quantized, example())
    (predicted,) = [a for a in answers if a.kind == "support"]
    assert predicted.op == op and predicted.now == figures(without)
    supported = compile_model(quantize_model(model, [example()]), example())
    assert not supported.rejected
    assert predicted.then == figures(supported)  # partitions, border steps and cycles, exactly
    assert predicted.then.partitions < predicted.now.partitions
    assert predicted.then.border_steps < predicted.now.border_steps and predicted.saved > 0


def test_lifting_an_exclusion_brings_what_was_predicted():
    model = OPERATORS["aten.tanh.default"].eval()
    quantized = quantize_model(model, [example()])
    excluded = compile_model(
        quantized, example(), options=CompileOptions(operators_not_to_delegate=("aten::tanh",))
    )
    (predicted,) = [a for a in explore(excluded, quantized, example()) if a.kind == "support"]
    assert "excluded" in predicted.title and predicted.then == figures(compile_model(quantized, example()))


@pytest.fixture(scope="module")
def split():
    quantized = quantize_model(Split().eval(), [example()])
    program = compile_model(quantized, example())
    return quantized, program, explore(program, quantized, example())


def test_an_unknown_operator_is_named_with_what_it_costs(split):
    _, program, answers = split
    data = report_data(program, what_if=answers)
    (entry,) = [e for e in data["what_if"] if e["kind"] == "support"]
    assert "atan" in entry["title"] and data["nodes"][entry["node"]]["op"] == "aten.atan.default"
    assert (entry["partitions_now"], entry["partitions_then"]) == (2, 1)
    assert entry["saved_cycles"] == entry["cycles_now"] - entry["cycles_then"] > 0
    assert entry["cycles_now"] == data["summary"]["cycles_estimated"]


def test_the_other_layout_is_really_compiled(split):
    quantized, program, answers = split
    (layout,) = [a for a in answers if a.kind == "layout"]
    other = tuple(t.to(memory_format=torch.channels_last) for t in example())
    assert layout.then == figures(compile_model(quantized, other))
    assert layout.now == figures(program)


def test_delegating_pays_for_convolutions(split):
    _, _, answers = split
    entries = {a.partition: a for a in answers if a.kind == "delegate"}
    assert sorted(entries) == [0, 1]
    for entry in entries.values():
        assert entry.saved < 0 and "pays" in entry.title and entry.then.partitions == 1


def test_a_program_that_is_not_delegated_is_told_what_delegating_brings(split):
    quantized, program, _ = split
    off = compile_model(quantized, example(), delegate=False)

    def compile_off(module, inputs, **changes):
        return compile_model(module, inputs, **{"delegate": False, **changes})

    (entry,) = [a for a in explore(off, quantized, example(), compile_off) if a.kind == "delegate"]
    assert entry.then == figures(program) and entry.saved > 0


def test_an_operator_whose_shape_changes_has_a_stand_in():
    class Tail(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(torch.topk(self.conv(x).flatten(1), 4)[0])

    quantized = quantize_model(Tail().eval(), [example()])
    program = compile_model(quantized, example())
    assert [r.op for r in program.rejected] == ["aten.topk.default"]
    (entry,) = [a for a in explore(program, quantized, example()) if a.kind == "support"]
    assert (entry.now.partitions, entry.then.partitions) == (2, 1) and entry.saved > 0
