"""Quantization-aware training with a loop of your own, for the NPU and the CPU of an i.MX RT700.

    python examples/qat_own_loop.py [--epochs N] [-o OUT.pte]

Trains a small network on scikit-learn's digits in float, prepares a copy for int8, trains that for a little
longer, and compiles it. The network has a convolution without a bias before a batch norm, and a function that
the NPU does not have: the CPU computes it in int8.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from openneutron import compile_model, convert_qat, prepare_qat, quantize_model
from openneutron.models.data import Split, load_digits
from openneutron.run.program import load_program

RECIPE = "npu+cpu"
BATCH = 16


class Digits(nn.Module):
    """A classifier of pictures of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 12, 3, stride=2), nn.ReLU())
        self.head = nn.Linear(12 * 9, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the ten digits."""
        return self.head(self.second(torch.log1p(self.first(x))).flatten(1))


def train(model: nn.Module, data: Split, epochs: int, rate: float) -> None:
    """An ordinary training loop."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        order = torch.randperm(len(data.labels), generator=generator)
        for batch in order.split(BATCH):
            if len(batch) < BATCH:
                continue  # the prepared model has the batch size it was exported with
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data.inputs[batch]), data.labels[batch]).backward()
            optimizer.step()


def accuracy(pte: bytes, data: Split) -> float:
    """Of the program, on this machine."""
    program = load_program(pte)
    right = sum(
        int(program.run((x[None],))[0].argmax() == y) for x, y in zip(data.inputs, data.labels, strict=True)
    )
    return right / len(data.labels)


def main() -> None:
    """Train, prepare, train, convert, compile, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("-o", "--output", default="digits_qat.pte")
    args = parser.parse_args()

    torch.manual_seed(0)
    data = load_digits((1, 1, 8, 8), 10)
    model = Digits()
    train(model, data.train, args.epochs, 3e-3)
    example = (data.train.inputs[:1],)
    samples = [(x[None],) for x in data.train.inputs[:32]]

    calibrated = quantize_model(model.eval(), samples, recipe=RECIPE)
    ptq = accuracy(compile_model(calibrated, example, recipe=RECIPE).pte, data.test)

    prepared = prepare_qat(model, (data.train.inputs[:BATCH],), recipe=RECIPE)
    train(prepared, data.train, max(1, args.epochs // 4), 2e-4)
    program = compile_model(convert_qat(prepared), example, recipe=RECIPE)
    program.save(args.output)
    print(f"calibrated {ptq:.4f}  trained {accuracy(program.pte, data.test):.4f}  {args.output}")


if __name__ == "__main__":
    main()
