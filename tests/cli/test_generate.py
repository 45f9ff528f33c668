"""`run --generate`: a language model over bytes goes on with a text, beyond its positions too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from openneutron.models.text import frames
from openneutron.models.tiny_lm import TinyLM
from openneutron.pipeline import compile_model
from openneutron.run.program import load_program

POSITIONS = 12


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    torch.manual_seed(0)
    module = TinyLM(width=16, depth=1, heads=2, groups=1, head=8, hidden=24, context=POSITIONS).eval()
    sequences = [frames(torch.randint(256, (POSITIONS,))) for _ in range(4)]
    program = compile_model(module, sequences[0][0], calibration=sequences, accuracy="fast")
    assert len(program.partitions) == 1 and not program.rejected
    path = tmp_path_factory.mktemp("lm") / "lm.pte"
    program.save(path)
    return path


def test_the_likeliest_byte_follows(language_model, cli):
    data = cli(
        "run", language_model, "--generate", "ab", "-n", "20", "--temperature", "0", "--json", "--trust"
    ).json
    program, text, position = load_program(language_model), bytearray(b"ab"), 0
    waiting = list(text)
    fed = 0
    for _ in range(20):
        if position + len(waiting) > POSITIONS:
            waiting, position = list(text[-POSITIONS // 2 :]), 0
            program.reset()
        for byte in waiting:
            (scores,) = program.run((torch.tensor([[byte]]), torch.tensor([position])))
            position, fed = position + 1, fed + 1
        waiting = [int(np.argmax(scores))]
        text.append(waiting[0])
    assert data["text"] == bytes(text[2:]).decode("utf-8", "replace")
    assert data["tokens_fed"] == fed and data["tokens_per_second"] > 0


def test_text_comes_before_the_figures(language_model, cli):
    found = cli("run", language_model, "--generate", "ab", "-n", "5", "--trust")
    *_, figures = [line for line in found.out.splitlines() if "a second" in line][:1]
    assert found.out.startswith("ab") and figures.startswith("5 bytes written, 6 read: ")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--generate", ""), "there is no text"),
        (("--generate", "a", "-n", "0"), "must be positive"),
        (("--generate", "a", "--temperature", "-1"), "must be from 0"),
        (("--generate", "a", "--input", "x.npy"), "no effect with --generate"),
        (("-n", "3"), "has an effect with --generate only"),
    ],
)
def test_options_that_make_no_sense(language_model, cli, options, problem):
    found = cli("run", language_model, *options)
    assert found.code == 2
    assert "ON104" in found.err and problem in found.err


class OfNothing(torch.nn.Module):
    """Scores that are no numbers."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(POSITIONS, 256)

    def forward(self, byte, position):
        return torch.log(self.embedding(position) - 1000 - byte)


def test_scores_that_are_no_numbers(cli, tmp_path):
    inputs = (torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    compile_model(OfNothing().eval(), inputs, verify=False).save(tmp_path / "nan.pte")
    for temperature in ("0", "0.7"):
        found = cli("run", tmp_path / "nan.pte", "--generate", "a", "--temperature", temperature)
        assert found.code == 1 and "ON514" in found.err and "not numbers" in found.err
    assert "not UTF-8" in cli("run", tmp_path / "nan.pte", "--generate", "\udcff").err
