"""What the stock firmware takes: every limit one byte above and at it, operators, converters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from openneutron.board.limits import MODELRUNNER, MODELRUNNER_OPERATORS, find_problems, result_need
from openneutron.cli import main
from openneutron.firmware.operators import wheel_operators
from openneutron.package.pte import MethodInfo, ProgramInfo, TensorSpec, inspect_program
from tests.board.fake import Board
from tests.board.programs import layer_program, model_of, portable
from tests.programs import small_program


def described(inputs=((4,),), outputs=((4,),), planned=0, size=1000, operators=(), dtype="int8"):
    def specs(shapes):
        return tuple(TensorSpec(shape, dtype, tuple(range(len(shape)))) for shape in shapes)

    method = MethodInfo("forward", specs(inputs), specs(outputs), operators, (), planned)
    return ProgramInfo({"forward": method}, size, False), method


def problems(info, method):
    return [p.problem for p in find_problems(info, method, MODELRUNNER)]


RESULT = 260 * 1024 - 9 - 6 - 4  # what the head of a result with one output of rank 1 leaves
LIMITS = {
    "the program has": (384 * 1024, lambda n: described(size=n)),
    "it plans": (1216 * 1024, lambda n: described(planned=n)),
    "an input has": (256 * 1024, lambda n: described(inputs=((n,),))),
    "its result has": (RESULT, lambda n: described(outputs=((n,),))),
}


@pytest.mark.parametrize("what", LIMITS)
def test_every_limit_to_the_byte(what):
    most, make = LIMITS[what]
    assert problems(*make(most - 1)) == problems(*make(most)) == []
    (problem,) = problems(*make(most + 1))
    assert problem.startswith(what)


def test_temporary_memory_to_the_byte(monkeypatch):
    info = inspect_program(small_program())
    (method,) = info.methods.values()
    ours = replace(MODELRUNNER, ours=True, operators=frozenset(method.operators))
    need = sum(d.temporary_bytes for d in method.delegates) or 1
    monkeypatch.setattr("openneutron.board.limits.temporary_need", lambda method: need)
    assert not find_problems(info, method, replace(ours, temporary_bytes=need))
    (found,) = find_problems(info, method, replace(ours, temporary_bytes=need - 1))
    assert found.problem.startswith("its delegates take") and "--optimise size" in found.hint


def test_the_operators_are_executorchs():
    assert len(MODELRUNNER_OPERATORS) == 43
    assert wheel_operators() >= MODELRUNNER_OPERATORS


def test_an_operator_that_is_missing_is_named():
    (found,) = problems(*described(operators=("aten::add.out", "aten::topk.values")))
    assert found == "it has no kernel for aten::topk.values"


def test_one_input_and_known_types():
    assert "it takes one input, not 2" in problems(*described(inputs=((4,), (4,))))[0]
    assert "has the type uint16" in problems(*described(dtype="uint16"))[0]


def test_open_microcode_never_goes_to_the_stock_firmware(tmp_path, capsys):
    """The handshake decides: nothing but two small questions was sent."""
    path = tmp_path / "small.pte"
    path.write_bytes(small_program())
    with Board(model_of(layer_program())) as board:
        assert main(["run", str(path), "--board", board.name, "--timeout", "60"]) == 1
    err = capsys.readouterr().err
    assert "ON725" in err and "the open converter's" in err and "firmware --serve" in err
    assert [command for command, _ in board.received] == [4, 0x10]


class Many(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = [torch.relu(x)]
        for _ in range(11):
            found.append(found[-1] + x)
        return tuple(found)


def test_more_than_an_info_holds(tmp_path, capsys):
    """The board describes nothing if it does not fit 256 bytes; the run goes on."""
    path = tmp_path / "many.pte"
    path.write_bytes(portable(Many(), torch.ones(1, 2, 3, 4)))
    with Board(model_of(path.read_bytes())) as board:
        assert main(["run", str(path), "--board", board.name, "--timeout", "60", "--samples", "1"]) == 0
    assert "288 of 288 values equal" in capsys.readouterr().out


def test_the_size_of_a_result_is_the_boards():
    data = layer_program()
    board = Board(model_of(data))
    assert result_need(inspect_program(data).methods["forward"]) == len(board._result(bytes(24)))
