"""The error of each output, and of each part of one, on samples that nothing was fitted to.

A figure of a whole output hides what is small in it: boxes in pixels are right, and all scores beside them
are zero. Parts are the tensors that an output is put together from and, within one, channels of like size. A
part that int8 leaves constant, or nearer to noise than to itself, is lost, whatever the whole says; the layer
where that happens is found by rounding the model up to a layer and no further.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from openneutron.quantize.prepared_model.model import Sample, behind
from openneutron.quantize.prepared_model.quality import (
    Run,
    measured_outputs,
    parts_of,
    powers,
    quantized_run,
    together_db,
)

LOST_DB = 10.0  # below, a part is lost
_ALIKE = 4.0  # channels whose largest values differ by no more are one group
_MOST_GROUPS = 4


@dataclass(frozen=True)
class PartError:
    """How far a part of an output is from float's."""

    output: int
    part: str  # the node that makes it
    channels: tuple[int, ...]  # of the part's axis 1; none: all of it
    sqnr_db: float
    constant: bool  # in int8, though not in float
    layer: str = ""  # where it was lost

    @property
    def is_lost(self) -> bool:
        """Whether nothing of use is left of it."""
        return self.constant or self.sqnr_db < LOST_DB

    @property
    def name(self) -> str:
        """For people."""
        found = f"output {self.output} ({self.part})"
        return f"{found}, channels {_ranges(self.channels)}" if self.channels else found

    def as_dict(self) -> dict[str, Any]:
        """For summaries and reports; JSON has no infinity, so that an error of zero is null."""
        return {
            "name": self.name,
            "output": self.output,
            "part": self.part,
            "channels": list(self.channels),
            "sqnr_db": self.sqnr_db if math.isfinite(self.sqnr_db) else None,
            "lost": self.is_lost,
            "constant": self.constant,
            "layer": self.layer,
        }


def part_errors(
    model: GraphModule, exact: Run, found: Run, samples: Sequence[Sample], shifts: Sequence[float] = ()
) -> list[PartError]:
    """The error of every part of every output, of runs over these samples; where what is lost was lost.

    By `shifts` of each output that errors are measured on all samples there are differ from these.
    """
    runs: dict[int, Run] = {}  # of the model rounded so far, which all that is lost is looked for in
    shift_of = dict(zip(measured_outputs(model), shifts, strict=False))
    return [
        _placed(model, row, place, exact, samples, runs, shift_of) if row.is_lost else row
        for row, place in _measured(model, exact, found, shift_of)
    ]


def lacking_db(
    model: GraphModule, exact: Run, found: Run, wanted_db: float, shifts: Sequence[float] = ()
) -> float:
    """By how much the parts of outputs that are below a figure are below it, all together."""
    shift_of = dict(zip(measured_outputs(model), shifts, strict=False))
    figures = [min(max(row.sqnr_db, 0.0), wanted_db) for row, _ in _measured(model, exact, found, shift_of)]
    return sum(wanted_db - figure for figure in figures)


def _measured(
    model: GraphModule, exact: Run, found: Run, shift_of: Mapping[int, float]
) -> list[tuple[PartError, int]]:
    """The error of every part, and its place among the scores."""
    rows: list[tuple[PartError, int]] = []
    for place, (output, node) in enumerate(parts_of(model)):
        pairs = [
            (a[place], b[place]) for a, b in zip(exact.scores, found.scores, strict=True) if place < len(a)
        ]
        if not pairs or not pairs[0][0].numel():
            continue
        for channels in _groups([a for a, _ in pairs]):
            part = behind(node).name
            rows.append((_error(output, part, channels, pairs, shift_of.get(output, 0.0)), place))
    return rows


def _error(
    output: int,
    part: str,
    channels: tuple[int, ...],
    pairs: list[tuple[Tensor, Tensor]],
    shift: float,
) -> PartError:
    chosen = [(_only(a, channels), _only(b, channels)) for a, b in pairs]
    sqnr = together_db([powers(a, b) for a, b in chosen]) + shift
    return PartError(
        output, part, channels, sqnr, _is_constant([b for _, b in chosen], [a for a, _ in chosen])
    )


def _only(value: Tensor, channels: tuple[int, ...]) -> Tensor:
    return value[:, list(channels)] if channels else value


def _is_constant(found: list[Tensor], exact: list[Tensor]) -> bool:
    """Whether int8 gives one value where float gives several that are not all but one."""
    low, high = min(float(a.min()) for a in exact), max(float(a.max()) for a in exact)
    if high - low <= 1e-3 * max(abs(low), abs(high)):
        return False
    first = float(found[0].reshape(-1)[0])
    return all(bool((b == first).all()) for b in found)


def _groups(values: list[Tensor]) -> list[tuple[int, ...]]:
    """The channels of a part by their size; one empty group if all are alike, or if it has none."""
    if values[0].ndim < 3 or not 2 <= values[0].shape[1] <= 1024:
        return [()]
    sizes = torch.stack([v.abs().transpose(0, 1).flatten(1).amax(1) for v in values]).amax(0)
    largest = float(sizes.max())
    if largest == 0:
        return [()]
    found: dict[int, list[int]] = {}
    for channel, size in enumerate(sizes.tolist()):
        steps = math.floor(math.log(largest / size, _ALIKE)) if size > 0 else _MOST_GROUPS
        found.setdefault(min(steps, _MOST_GROUPS - 1), []).append(channel)
    return [tuple(group) for _, group in sorted(found.items())] if len(found) > 1 else [()]


def _placed(
    model: GraphModule,
    row: PartError,
    place: int,
    exact: Run,
    samples: Sequence[Sample],
    runs: dict[int, Run],
    shift_of: Mapping[int, float],
) -> PartError:
    """The part with the layer where it is lost: it still is there if everything before alone is rounded."""
    steps: dict[str, Node] = {}  # names of observers in order, and what they look at, or read constants with
    for node in model.graph.nodes:
        if node.op == "call_module":
            source = behind(node)
            steps.setdefault(str(node.target), next(iter(node.users)) if source.op == "get_attr" else source)
    names = list(steps)
    low, high = 0, len(names)  # rounding the first `low` does not lose it, rounding `high` does
    few = list(samples[:2])
    known = Run(exact.outputs[:2], exact.scores[:2])
    while high - low > 1:
        middle = (low + high) // 2
        if middle not in runs:
            runs[middle] = quantized_run(model, few, names[middle:])
        pairs = [(a[place], b[place]) for a, b in zip(known.scores, runs[middle].scores, strict=True)]
        shift = shift_of.get(row.output, 0.0)
        if _error(row.output, row.part, row.channels, pairs, shift).is_lost:
            high = middle
        else:
            low = middle
    return replace(row, layer=steps[names[high - 1]].name) if names else row


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as a person writes them: 0 to 3, 7."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    texts = [str(a) if a == b else f"{a} to {b}" for a, b in found]
    return ", ".join(texts[:4]) + (f" and {len(numbers) - 4} more" if len(texts) > 4 else "")
