"""Calibration samples on their way into a model: checked, and some of them kept."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from openneutron.diagnostics import fail

KEPT = 64  # samples of a stream that are kept for the methods
EXAMPLES = 4  # samples that a quantizer looks at before it is decided what is quantized
KEPT_BYTES = 256 << 20
_COLOURS = (1, 3, 4)  # channels of an image
_LEAST_SIDE = 16
_COMPARED = 8  # samples; fewer say nothing of neighbours
_ALIKE = 0.75  # of the difference of others
_POINTS = 17


@dataclass
class Kept:
    """Some samples of a stream, all of a short one: the others are dropped when they have been seen."""

    samples: list[tuple[Any, ...]] = field(default_factory=list)
    seen: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    @staticmethod
    def first_of(stream: Iterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """As many samples from the beginning of a stream as are kept at once."""
        found: list[tuple[Any, ...]] = []
        for sample in stream:
            found.append(sample)
            if len(found) >= _most(sample):
                break
        return found

    def watch(self, stream: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Hand on the samples of a stream."""
        for sample in stream:
            self.add(sample)
            yield sample

    def add(self, sample: tuple[Any, ...]) -> None:
        """One more sample."""
        check_sample(sample, self.seen)
        self.seen += 1
        most = _most(sample)
        if len(self.samples) < most:
            self.samples.append(sample)
        elif (place := self._random.randrange(self.seen)) < most:  # each is kept with the same chance
            self.samples[place] = sample


def _most(sample: tuple[Any, ...]) -> int:
    size = sum(v.numel() * v.element_size() for v in sample if isinstance(v, Tensor))
    return max(1, min(KEPT, KEPT_BYTES // max(1, size)))


@contextmanager
def said_of(where: str) -> Iterator[None]:
    """Let what a model says of an index out of range be an error of the sample."""
    try:
        yield
    except (IndexError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "index" not in str(error):
            raise
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        fail("ON211", where, f"the model cannot be run on it: {first}",
             "Give samples that it takes: indices in range, for one.")  # fmt: skip


def check_sample(sample: tuple[Any, ...], index: int) -> None:
    """Refuse values that are no numbers: every range they touch would be lost."""
    for position, value in enumerate(sample):
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all()):
            bad = ~value.isfinite()
            kind = "NaN" if bool(value.isnan().any()) else "infinite"
            where = f"calibration sample {index}, input {position}"
            fail("ON211", where, f"{int(bad.sum())} of {bad.numel()} values are {kind}",
                 "Remove the sample, or mend what makes it.")  # fmt: skip


def neighbours_are_alike(samples: Sequence[tuple[Any, ...]]) -> bool:
    """Whether samples that follow each other differ less than others do, by the values that they hold."""
    found = [
        torch.cat([_quantiles(value) for value in sample if isinstance(value, Tensor) and value.numel()])
        for sample in samples
        if any(isinstance(value, Tensor) and value.numel() for value in sample)
    ]
    if len(found) < _COMPARED or len({len(row) for row in found}) > 1:
        return False
    rows = torch.stack(found)
    rows = rows / rows.std(0).clamp(min=1e-12)
    steps = (1, *(len(rows) * n // 4 for n in (1, 2, 3)))
    near, *far = (float((rows - rows.roll(step, 0)).square().mean()) for step in steps)
    return near < _ALIKE * sum(far) / len(far)


def _quantiles(value: Tensor) -> Tensor:
    """What a tensor holds, whatever its place."""
    values = value.detach().reshape(-1).double().sort().values
    return values[torch.linspace(0, len(values) - 1, _POINTS).long()]


def spread_over(samples: Sequence[tuple[Any, ...]], count: int) -> list[tuple[Any, ...]]:
    """So many of the samples, from all over the data, which may be sorted by class."""
    count = min(count, len(samples))
    return [samples[i * len(samples) // count] for i in range(count)]


def from_everywhere(frames: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Frames of sequences in an order in which neighbours do not follow each other, as many as are kept."""
    if len(frames) < 2:
        return list(frames)
    step = next(s for s in (7, 11, 13, 17, 19, 23, 29, 31) if len(frames) % s)
    return [frames[i * step % len(frames)] for i in range(max(len(frames), KEPT))]


def mirrored(samples: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Of samples that hold images, the same from right to left: more to fit to."""
    return [
        tuple(value.flip(3) if _is_picture(value) else value for value in sample)
        for sample in samples
        if any(map(_is_picture, sample))
    ]


def _is_picture(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.ndim != 4 or not value.is_floating_point():
        return False
    return value.shape[1] in _COLOURS and min(value.shape[2:]) >= _LEAST_SIDE
