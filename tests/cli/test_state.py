"""Models that remember on the command line, and inputs that a program takes."""

from __future__ import annotations

import numpy as np
import pytest

STREAM = """
import torch
from torch import nn

class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("ring", torch.full((1, 4, 2), 3.0))
        self.conv, self.head = nn.Conv1d(4, 6, 3), nn.Linear(6, 2)

    def forward(self, x):
        window = torch.cat([self.ring, x], -1)
        self.ring.copy_(window[..., 1:])
        return self.head(torch.relu(self.conv(window)).flatten(1))

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 4)

    def forward(self, words):
        return self.head(self.table(words))

def stream():
    return Stream().eval(), (torch.zeros(1, 4, 1),)

def words():
    return Words().eval(), (torch.tensor([[1, 2, 40]]),)
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(STREAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_sequences_from_an_array_and_a_run_over_time(cli, model):
    frames = np.random.default_rng(0).standard_normal((5, 20, 1, 4, 1)).astype(np.float32)
    np.savez("sequences.npz", frames)
    made = cli("compile", "own.py:stream", "--calibration", "sequences.npz", "-o", "a.pte", "--json").json
    assert made["states"] == [{"name": "ring", "bytes": 12}] and made["state_bytes"] == 16
    assert list(made["accuracy"]["over_time_db"]) == ["1", "10"] and made["accuracy"]["samples"] == 20
    np.save("frames.npy", frames[0])
    cli("run", "a.pte", "--input", "frames.npy", "--output-dir", "out")
    assert np.load("out/output_0.npy").shape == (20, 1, 2)
    assert "state0: ring int8" in cli("disasm", "a.pte").out
    np.save("frame.npy", frames[0, 0])
    cli("run", "a.pte", "--input", "frame.npy", "--output-dir", "first", "--repeat", "3")
    np.testing.assert_array_equal(np.load("first/output_0.npy"), np.load("out/output_0.npy")[0])


def test_a_folder_is_a_sequence_and_samples_may_follow_one_another(cli, model):
    frames = np.random.default_rng(0).standard_normal((4, 12, 1, 4, 1)).astype(np.float32)
    for number, sequence in enumerate(frames):
        (model / "data" / str(number)).mkdir(parents=True)
        for at, frame in enumerate(sequence):
            np.save(model / "data" / str(number) / f"{at:03}.npy", frame)
    made = cli("compile", "own.py:stream", "--calibration", "data", "-o", "a.pte", "--json").json
    assert made["accuracy"]["samples"] == 12
    np.save("long.npy", frames[0])
    made = cli(
        "compile", "own.py:stream", "--calibration", "long.npy", "--sequence", "-o", "a.pte", "--json"
    ).json
    assert made["accuracy"]["samples"] == 3  # the last quarter
    wrong = cli("compile", "own.py:words", "--calibration", "long.npy", "--sequence", "-o", "b.pte")
    assert wrong.code and "remembers nothing" in wrong.err


def test_inputs_that_a_program_takes(cli, model):
    cli("compile", "own.py:words", "-o", "words.pte")
    assert "compiled with" in cli("run", "words.pte").out
    assert cli("run", "words.pte", "--seed", "3").code == 0
    (model / "words.report.json").unlink()
    assert "random" in cli("run", "words.pte").out
    np.save("wrong.npy", np.array([[3, 50, -1]]))
    found = cli("run", "words.pte", "--input", "wrong.npy")
    assert found.code and "input 0: at position [0, 1] is 50" in found.err and "from 0 to 49" in found.err
