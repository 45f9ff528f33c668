"""The walks of docs/architecture.md: a model passes each file that they name, and as many as they say."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from onnx import TensorProto, helper

from openneutron import CompileOptions
from openneutron.inputs.source import load_source
from openneutron.pipeline import compile_model

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "openneutron"
TEXT = (ROOT / "docs" / "architecture.md").read_text()
NEAR = 10  # files: what a process remembers, it does not do again


class _Sequence(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = torch.nn.LSTM(8, 16, batch_first=True), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def _compile(module: torch.nn.Module, *shape: int, optimise: str = "performance") -> None:
    samples = [(torch.randn(shape),) for _ in range(4)]
    options = CompileOptions(optimise=optimise)
    compile_model(module.eval(), samples[0], calibration=samples, options=options)


def _compile_convolution(folder: Path) -> None:
    _compile(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()), 1, 3, 16, 16)


def _compile_lstm(folder: Path) -> None:
    _compile(_Sequence(), 1, 12, 8, optimise="size")


def _compile_onnx(folder: Path) -> None:
    weights = helper.make_tensor("w", TensorProto.FLOAT, [8, 3, 3, 3], torch.randn(216).tolist())
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16]),
             helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 14, 14])]  # fmt: skip
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    graph = helper.make_graph(nodes, "graph", ports[:1], ports[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    source = load_source(str(path))
    _compile(source.module, 1, 3, 16, 16)


def files_entered(walk: Callable[[], Any]) -> set[str]:
    """The files of the package in which a function is called."""
    entered: set[str] = set()

    def look(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # no module that is imported
            entered.add(frame.f_code.co_filename)

    sys.setprofile(look)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return {str(Path(f).relative_to(PACKAGE)) for f in entered if f.startswith(f"{PACKAGE}/")}


@pytest.mark.slow  # three models are compiled under a profiler
@pytest.mark.parametrize(
    ("title", "walk", "place"),
    [
        ("Conv2d + ReLU", _compile_convolution, 0),
        ("LSTM", _compile_lstm, 1),
        ("An .onnx", _compile_onnx, 2),
    ],
)
def test_walk(title: str, walk: Callable[[Path], None], place: int, tmp_path: Path) -> None:
    (paragraph,) = re.findall(rf"^\*\*{re.escape(title)}\.\*\*(.*?)^$", TEXT, re.M | re.S)
    (counts,) = re.findall(r"functions of (\d+) files .*?, (\d+)\s.*?, (\d+)\s", TEXT, re.S)
    torch.manual_seed(0)
    entered = files_entered(lambda: walk(tmp_path))
    named = re.findall(r"`(?:compiler/)?((?:\w+/)*\w+\.py|(?:\w+/)+)`", paragraph)
    assert named
    for name in named:
        assert any(name in f"/{file}" for file in entered), f"{name} is not on the way"
    assert abs(len(entered) - int(counts[place])) <= NEAR, len(entered)
