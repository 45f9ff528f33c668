"""Caches with a position: on the NPU however they are written, exact, and checked when they run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from openneutron.compiler.microcode import format as mc
from openneutron.diagnostics import OpenNeutronError
from openneutron.inputs.samples import random_samples
from openneutron.pipeline import compile_model
from openneutron.run.program import load_program
from tests.programs import assert_same, reference_of

ROWS = 8
Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


def _by_slice(cache: torch.Tensor, row: torch.Tensor, at: torch.Tensor) -> None:
    place = at.item()
    torch._check(place >= 0)
    torch._check(place + 1 <= ROWS)
    cache[:, :, place : place + 1] = row


def _by_narrow(cache: torch.Tensor, row: torch.Tensor, at: torch.Tensor) -> None:
    place = at.item()
    torch._check_is_size(place)
    torch._check(place + 1 <= ROWS)
    cache.narrow(2, place, 1).copy_(row)


def _by_scatter(cache: torch.Tensor, row: torch.Tensor, at: torch.Tensor) -> None:
    cache.scatter_(2, at.view(1, 1, 1, 1).expand(1, 2, 1, 4), row)


WRITES: dict[str, Write] = {
    "index_copy": lambda cache, row, at: cache.index_copy_(2, at, row),
    "index_put": lambda cache, row, at: cache.__setitem__((slice(None), slice(None), at), row),
    "scatter": _by_scatter,
    "slice": _by_slice,
    "narrow": _by_narrow,
}


def _allowed(at: torch.Tensor) -> torch.Tensor:
    return torch.arange(ROWS) <= at


MASKS: dict[str, Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "where": lambda net, scores, at: torch.where(_allowed(at), scores, -torch.inf),
    "masked_fill": lambda net, scores, at: scores.masked_fill(~_allowed(at), -1e9),
    "row": lambda net, scores, at: scores + net.mask[at],
    "table": lambda net, scores, at: (
        scores + torch.where(_allowed(at), torch.zeros(()), torch.full((ROWS,), -torch.inf))
    ),
    "window": lambda net, scores, at: scores.masked_fill(~_allowed(at) | (torch.arange(ROWS) < at - 2), -1e9),
}


class Cached(nn.Module):
    """Keys, which are values too, in a cache that is written at a position; attention over those up to it."""

    def __init__(self, write: str, mask: str):
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 2, ROWS, 4))
        order = torch.arange(ROWS)
        self.register_buffer("mask", torch.where(order <= order[:, None], 0.0, -1e9))
        self.register_buffer("angles", torch.rand(ROWS, 4))
        self.layer, self.write, self.by = nn.Linear(4, 4), WRITES[write], MASKS[mask]

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.write(self.cache, self.layer(x) * self.angles[at], at)
        scores = self.by(self, x @ self.cache.transpose(-1, -2), at)
        return torch.softmax(scores, -1) @ self.cache


def steps(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A token at each position of the cache."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(1, 2, 1, 4, generator=generator), torch.tensor([t])) for t in range(ROWS)]


@pytest.mark.parametrize(
    ("write", "mask"),
    [*((write, "where") for write in WRITES), *(("index_copy", m) for m in list(MASKS)[1:])],
)
def test_a_cache_is_the_npus(write: str, mask: str):
    torch.manual_seed(0)
    program = compile_model(Cached(write, mask).eval(), steps(0)[0], calibration=[steps(s) for s in range(4)])
    assert len(program.partitions) == 1 and not program.rejected
    assert program.states == [("cache", 2 * ROWS * 4)]
    calls = mc.decode(program.info.payloads()[0].microcode).calls
    (store,) = (call for call in calls if isinstance(call, mc.Store))
    assert store.output.region == mc.Region.STATE  # one row is written, where the cache is
    writes = [call for call in calls if getattr(call, "output", None) and call is not store]
    assert not any(isinstance(c.output, mc.Ref) and c.output.region == mc.Region.STATE for c in writes)
    loaded, reference = load_program(program.pte), reference_of(program)
    for step in (*steps(5), *steps(6)):
        assert_same(loaded.run(step), reference.outputs(step))
    for wrong in (ROWS, -1, 1 << 40):
        with pytest.raises(OpenNeutronError, match=rf"input 1: at position \[0\] is {wrong}, .* from 0 to 7"):
            loaded.run((steps(0)[0][0], torch.tensor([wrong])))


def _rolling(cache: torch.Tensor, rows: torch.Tensor, at: torch.Tensor) -> None:
    cache.index_copy_(2, at % ROWS, rows)


def _before(cache: torch.Tensor, rows: torch.Tensor, at: torch.Tensor) -> None:
    cache[:, :, at - 1] = rows  # at 0 it is the last


def _chunk(cache: torch.Tensor, rows: torch.Tensor, at: torch.Tensor) -> None:
    cache.index_copy_(2, at + torch.arange(3), rows)


def _rows_by_narrow(cache: torch.Tensor, rows: torch.Tensor, at: torch.Tensor) -> None:
    place = at.item()
    torch._check_is_size(place)
    torch._check(place + 3 <= ROWS)
    cache.narrow(2, place, 3).copy_(rows)


class Placed(nn.Module):
    """Rows written at places that are computed, or that begin at a position; the angles have 20 positions."""

    def __init__(self, write: Write):
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 2, ROWS, 4))
        self.register_buffer("angles", torch.rand(20, 4))
        self.layer, self.write = nn.Linear(4, 4), write

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.write(self.cache, self.layer(x) * self.angles[at], at)
        return torch.softmax(x @ self.cache.transpose(-1, -2), -1) @ self.cache


@pytest.mark.parametrize(
    ("write", "rows", "last"),
    [(_rolling, 1, 19), (_before, 1, ROWS), (_chunk, 3, ROWS - 3), (_rows_by_narrow, 3, ROWS - 3)],
)
def test_places_that_are_computed_are_the_npus(write: Write, rows: int, last: int):
    generator = torch.Generator().manual_seed(0)

    def steps() -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.randn(1, 2, rows, 4, generator=generator), torch.tensor([p])) for p in range(last + 1)]

    torch.manual_seed(0)
    program = compile_model(
        Placed(write).eval(), steps()[0], calibration=[steps() for _ in range(4)], accuracy="fast"
    )
    assert len(program.partitions) == 1 and not program.rejected
    calls = mc.decode(program.info.payloads()[0].microcode).calls
    assert [call.count for call in calls if isinstance(call, mc.Store)] == [rows]
    loaded, reference = load_program(program.pte), reference_of(program)
    for step in (*steps(), *reversed(steps())):
        assert_same(loaded.run(step), reference.outputs(step))
    for wrong in (last + 1, -1):
        with pytest.raises(
            OpenNeutronError, match=rf"input 1: at position \[0\] is {wrong}, .* from 0 to {last}"
        ):
            loaded.run((steps()[0][0], torch.tensor([wrong])))


def test_a_sample_that_is_out_of_range_is_named():
    samples = [steps(0), [(steps(0)[0][0], torch.tensor([ROWS]))]]
    with pytest.raises(OpenNeutronError, match=rf"ON211: calibration, frame 0 of .*index {ROWS} is out"):
        compile_model(Cached("index_copy", "where").eval(), steps(0)[0], calibration=samples)
    last = steps(0)[-1]  # the last position, as an example to make others of
    made = random_samples(last, 100)
    assert {int(at) for _, at in made} == set(range(ROWS))


def test_several_rows_at_once():
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.full((5, ROWS), 0.5))
            self.layer = nn.Linear(ROWS, ROWS)

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            self.cache.index_copy_(0, at, self.layer(x))
            return self.cache * (torch.arange(5) <= at[:, None]).float().sum(0)[:, None]

    generator = torch.Generator().manual_seed(0)
    steps = [
        (torch.randn(3, ROWS, generator=generator), torch.randperm(5, generator=generator)[:3])
        for _ in range(20)
    ]
    program = compile_model(Rows().eval(), steps[0], calibration=[steps])
    calls = mc.decode(program.info.payloads()[0].microcode).calls
    assert [call.count for call in calls if isinstance(call, mc.Store)] == [3]
    loaded, reference = load_program(program.pte), reference_of(program)
    for step in steps:
        assert_same(loaded.run(step), reference.outputs(step))


def test_queries_in_groups_repeat_no_key():
    class Grouped(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    torch.manual_seed(0)
    samples = [(torch.randn(1, 6, 5, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)) for _ in range(8)]
    program = compile_model(Grouped().eval(), samples[0], calibration=samples)
    calls = mc.decode(program.info.payloads()[0].microcode).calls
    assert [call.m for call in calls if isinstance(call, mc.BatchMatmul)] == [15, 15]
    got, want = load_program(program.pte).run(samples[1])[0], Grouped()(*samples[1]).numpy()
    assert 20 * np.log10(np.linalg.norm(want) / np.linalg.norm(got - want)) > 25
