"""The benchmark of trained networks, which are packages that need not be there."""

import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    pytest.importorskip("PIL")
    monkeypatch.syspath_prepend(str(FOLDER))
    import bench_accuracy

    return bench_accuracy


def run(bench, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["bench_accuracy.py", *words])
    bench.main()


def test_a_package_that_is_missing_is_one_line(bench, monkeypatch, capsys):
    monkeypatch.setattr("trained_networks.find_spec", lambda name: None)
    run(bench, monkeypatch, "yolo", "detector", "--rows")
    out, err = capsys.readouterr()
    assert out.count("\n") == 2  # the head of the table
    assert err.splitlines() == [
        "yolo is left out: pip install --no-deps nudenet",
        "detector is left out: pip install --no-deps rapidocr_onnxruntime",
    ]


@pytest.mark.parametrize(
    "words", [["yolov9"], ["--steps", "nothing"], ["--only", "tflite"], ["--counts", "x"]]
)
def test_an_unknown_word_is_refused(bench, monkeypatch, words):
    with pytest.raises((SystemExit, ValueError)):
        run(bench, monkeypatch, *words)


def test_every_step_can_be_left_out(bench, monkeypatch, capsys):
    from trained_networks import TASKS, Task, decibel, each

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.SiLU(), torch.nn.Conv2d(4, 4, 3)).eval()
    samples = [(torch.randn(1, 3, 8, 8),) for _ in range(24)]
    task = Task(
        "small", module, lambda count=8: samples[:count], "SQNR dB", 20.0, each(samples[16:]), decibel, ""
    )
    monkeypatch.setitem(TASKS, "yolo", lambda: task)
    run(bench, monkeypatch, "yolo", "--ablation", "--ladder", "--counts", "8,16")
    table = capsys.readouterr().out
    assert len(table.splitlines()) == 2 + 1 + len(bench.STEPS) + 3
    assert "| small | nothing | SQNR dB |" in table
