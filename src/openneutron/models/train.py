"""Training zoo models on the data that needs no download, and the weights that ship with the package.

    python -m openneutron.models.train cifarnet dscnn keywords tiny_lm

writes `weights/<model>_<data>.npz` anew; the same seeds and versions give the same accuracy. The data are
scikit-learn's digits, for `keywords` words that espeak-ng says, of which a few are stored as samples, and for
`tiny_lm` licences and Python's manual.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from openneutron.models.data import Split, load_digits, store_samples
from openneutron.models.text import load_texts, windows
from openneutron.models.tiny_lm import TinyLM
from openneutron.models.weights import weights_path
from openneutron.models.zoo import find_model

EPOCHS, BATCH, RATE = 16, 32, 2e-3
SHIFT = 1 / 16  # of the image's width and height: what a digit may be moved by
TEXT_STEPS, TEXT_BATCH, TEXT_RATE = 2400, 8, 4e-3
Progress = Callable[[float], None]  # told the part that is done, from 0 to 1


def train(
    module: torch.nn.Module,
    split: Split,
    epochs: int = EPOCHS,
    seed: int = 0,
    progress: Progress | None = None,
    rate: float = RATE,
) -> None:
    """Train a classifier that returns logits, in place; it is left in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * (-(-len(split) // BATCH))
    optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps)
    module.train()
    done = 0
    for _ in range(epochs):
        for chosen in _batches(len(split), BATCH, generator):
            loss = F.cross_entropy(module(shifted(split.inputs[chosen], generator)), split.labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            done += 1
            if progress is not None:
                progress(done / steps)
    module.eval()


def train_on_text(
    model: TinyLM, texts: list[bytes], steps: int, progress: Progress | None = None, seed: int = 0
) -> None:
    """Train a language model on windows of texts that begin anywhere, in place; it is left in eval mode.

    What it hands from block to block is rounded to 8 bits meanwhile, so that it learns to live with that.
    """
    generator = torch.Generator().manual_seed(seed)
    text = windows(texts, 1).view(-1)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=TEXT_RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, TEXT_RATE, total_steps=steps, pct_start=0.1)
    model.train()
    for step in range(steps):
        starts = torch.randint(0, len(text) - model.context, (TEXT_BATCH,), generator=generator)
        batch = text[starts[:, None] + torch.arange(model.context + 1)]
        loss = F.cross_entropy(model.over(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress((step + 1) / steps)
    model.eval()


def text_loss(model: TinyLM, texts: list[bytes]) -> float:
    """The mean cross entropy of a byte, in nats, over whole windows of texts."""
    losses = []
    with torch.no_grad():
        for window in windows(texts, model.context).split(TEXT_BATCH):
            scores = model.over(window[:, :-1])
            losses.append(F.cross_entropy(scores.flatten(0, 1), window[:, 1:].flatten(), reduction="none"))
    return float(torch.cat(losses).mean())


def fine_tune(
    module: torch.nn.Module, split: Split, samples: int, seed: int = 0, progress: Progress | None = None
) -> None:
    """Quantization-aware fine-tuning, in place, of a model whose result is logits or probabilities.

    An exported model has the batch size it was exported with, here one: gradients of several samples are
    added up.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)
    order = torch.randperm(len(split), generator=generator)[:samples].tolist()
    for done, index in enumerate(order, 1):
        scores = module(split.inputs[index : index + 1])
        label = split.labels[index : index + 1]
        (_loss(scores, label) / BATCH).backward()
        if done % BATCH == 0 or done == len(order):
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if progress is not None:
            progress(done / len(order))


def _loss(scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    total = scores.detach().sum(dim=1)
    if bool(
        (scores.detach() >= 0).all() and ((total - 1).abs() < 0.1).all()
    ):  # after a softmax, quantized or not
        return F.nll_loss(scores.clamp_min(1 / 512).log(), label)
    return F.cross_entropy(scores, label)


def accuracy(predict: Callable[[torch.Tensor], torch.Tensor], split: Split, batch: int = 60) -> float:
    """The part of the samples whose largest score is at the label."""
    right = 0
    with torch.no_grad():
        for start in range(0, len(split), batch):
            scores = predict(split.inputs[start : start + batch])
            right += int((scores.argmax(1) == split.labels[start : start + batch]).sum())
    return right / len(split)


def shifted(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Every image moved a little, with -1 (paper) where it came from."""
    if images.ndim != 4:
        return images
    height, width = images.shape[2:]
    dy, dx = max(1, int(height * SHIFT)), max(1, int(width * SHIFT))
    padded = F.pad(images, (dx, dx, dy, dy), value=-1)
    ys = torch.randint(0, 2 * dy + 1, (len(images),), generator=generator).tolist()
    xs = torch.randint(0, 2 * dx + 1, (len(images),), generator=generator).tolist()
    moved = [p[:, y : y + height, x : x + width] for p, y, x in zip(padded, ys, xs, strict=True)]
    return torch.stack(moved)


def _batches(count: int, size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    order = torch.randperm(count, generator=generator)
    yield from order.split(size)


def train_zoo_model(name: str, epochs: int = EPOCHS) -> str:
    """Train one zoo model and store its weights; says how good it is on what it was not trained with."""
    entry = find_model(name)
    path = weights_path(entry.weights_name)
    if entry.data == "text":
        texts, held_out = load_texts()
        model = entry.build()
        assert isinstance(model, TinyLM)
        train_on_text(model, texts, TEXT_STEPS * epochs // EPOCHS, _printer(name))
        _store(model.half(), path)  # what is measured is what ships
        return f"{text_loss(model.float(), held_out):.3f} nats a byte of texts held out"
    if entry.data == "speech":
        from openneutron.models.speech import load_speech

        data = load_speech()
        store_samples(data, f"{entry.data}_samples")
    else:
        data = load_digits(entry.input_shapes[0], entry.classes)
    model = entry.build(**({} if entry.data == "speech" else {"softmax": False}))
    torch.manual_seed(0)  # for layers that draw random numbers
    train(model, data.train, epochs, progress=_printer(name))
    _store(model, path)
    return f"{accuracy(model, data.test):.1%} of the test split"


def _store(model: torch.nn.Module, path: Path) -> None:
    arrays = {key: value.numpy() for key, value in model.state_dict().items()}
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _printer(name: str) -> Progress:
    shown = 0

    def show(part: float) -> None:
        nonlocal shown
        if part * 4 >= shown + 1:
            shown = int(part * 4)
            print(f"{name}: {part:.0%} trained", file=sys.stderr)

    return show


def main() -> None:
    """Train the models named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m openneutron.models.train", description=__doc__.splitlines()[0]
    )
    parser.add_argument("models", nargs="+", help="zoo names, e.g. cifarnet dscnn")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    args = parser.parse_args()
    for name in args.models:
        result = train_zoo_model(name, args.epochs)
        size = weights_path(find_model(name).weights_name).stat().st_size
        print(f"{name}: {result}, {size:,} bytes")


if __name__ == "__main__":
    main()
