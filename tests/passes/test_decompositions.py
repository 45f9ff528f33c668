"""What PyTorch has an operator for and the table has none: written in the table's terms, whole on the NPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from openneutron import compile_model
from openneutron.diagnostics import OpenNeutronError
from openneutron.run.program import load_program
from tests.lowering import Wrapped


def _written(y: torch.Tensor, place: Any, value: Any) -> torch.Tensor:
    y[place] = value
    return y


def _shifted(x: torch.Tensor) -> torch.Tensor:
    """Some channels of the next frame and of the one before: temporal shift modules."""
    y = torch.zeros_like(x)
    y[:-1, :1], y[1:, 1:2], y[:, 2:] = x[1:, :1], x[:-1, 1:2], x[:, 2:]
    return y


ROWS, PICTURE = (2, 8), (1, 4, 5, 5)
TURN = torch.tensor([[[0.8, 0.3, 0.1], [-0.3, 0.7, 0.2]]])
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "exp2": (torch.exp2, (ROWS,)),
    "masked_fill": (lambda x: x.masked_fill(x > 0.5, -1.0), (ROWS,)),
    "where, a number": (lambda x: torch.where(x > 0, x, 0.25) + torch.where(x > 0, 0.25, x), (ROWS,)),
    "a number where there are no dimensions": (lambda x: torch.where(x.mean() > 0, x.mean(), 0.3), (ROWS,)),
    "truth as a number": (lambda x: (x > 0.3).float() * x, (ROWS,)),
    "clamp by a tensor": (lambda x, y: torch.clamp(x, y, y + 1), (ROWS, ROWS)),
    "flip": (lambda x: torch.relu(x).flip((1, 2)), (PICTURE,)),
    "var_mean": (lambda x: torch.cat(torch.var_mean(x, 1)), (ROWS,)),
    "std_mean": (lambda x: torch.cat(torch.std_mean(x, 1)), (ROWS,)),
    "cosine_similarity": (F.cosine_similarity, (ROWS, ROWS)),
    "channel_shuffle": (nn.ChannelShuffle(2), (PICTURE,)),
    "unfold": (nn.Unfold(3, padding=1, stride=2), (PICTURE,)),
    "bilinear": (nn.Bilinear(3, 4, 5), ((2, 3), (2, 4))),
    "softshrink": (nn.Softshrink(), (ROWS,)),
    "hardshrink": (nn.Hardshrink(), (ROWS,)),
    "tril": (lambda x: torch.tril(x) + torch.triu(x, 1) * 2, ((4, 4),)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (ROWS, ROWS)),
    "dot": (torch.dot, ((8,), (8,))),
    "values and indices": (lambda x: torch.max(x, 1), (ROWS,)),
    "a column written": (lambda x: _written(x * 2, (slice(None), 0), 1.0), (ROWS,)),
    "a part written": (lambda x: _written(x.relu(), (slice(None), [0, 2]), x[:, 1:3] * 2), (PICTURE,)),
    "values where a mask says": (lambda x: _written(x * 2, x < 0, 0.25), (ROWS,)),
    "frames shifted": (_shifted, ((4, 4, 3, 3),)),
    "gather": (lambda x: x.gather(1, torch.tensor([[0, 2, 1], [3, 3, 7]])), (ROWS,)),
    "cumsum": (lambda x: x.cumsum(1), (PICTURE,)),
    "index_add": (lambda x: torch.zeros(2, 3).index_add(1, torch.arange(8) % 3, x), (ROWS,)),
    "logsumexp": (lambda x: x.logsumexp(1), (ROWS,)),
    "remainder": (lambda x: torch.remainder(x, 0.7) + torch.fmod(x, 0.3), (ROWS,)),
    "copysign": (lambda x, y: torch.copysign(x, y) + torch.hypot(x, y), (ROWS, ROWS)),
    "fold": (nn.Fold((5, 5), 3, padding=1), ((1, 18, 25),)),
    "bicubic": (nn.Upsample(scale_factor=2, mode="bicubic"), (PICTURE,)),
    "antialias": (lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True), (PICTURE,)),
    "trilinear": (nn.Upsample((3, 4, 7), mode="trilinear"), ((1, 2, 2, 3, 5),)),
    "nearest, exact": (nn.Upsample((7, 9), mode="nearest-exact"), (PICTURE,)),
    "read at constant places": (
        lambda x: F.grid_sample(
            x, F.affine_grid(TURN, (1, 3, 6, 4), align_corners=False), align_corners=False
        ),
        ((1, 3, 5, 7),),
    ),
    "read at the nearest of constant places": (
        lambda x: F.grid_sample(
            torch.relu(x),
            F.affine_grid(TURN, (1, 3, 6, 4), align_corners=True),
            mode="nearest",
            padding_mode="border",
            align_corners=True,
        ),
        ((1, 3, 5, 7),),
    ),
    "cummax": (lambda x: x.cummax(1)[0], (ROWS,)),
    "a causal mask": (
        lambda x: (x @ x.mT).masked_fill(torch.ones(5, 5).tril() == 0, -torch.inf).softmax(-1),
        (PICTURE[1:],),
    ),
    "a mask that is added": (
        lambda x: (x @ x.mT + torch.full((5, 5), -1e9).triu(1)).softmax(-1),
        (PICTURE[1:],),
    ),
}


# A value beside a step falls on its other side.
JUMPS = {"remainder", "where, a number", "truth as a number", "masked_fill", "hardshrink",
         "values where a mask says"}  # fmt: skip


def _leaves(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


QUICK = {
    "masked_fill",
    "a number where there are no dimensions",
    "truth as a number",
    "flip",
    "a causal mask",
    "values and indices",
    "frames shifted",
    "antialias",
}


@pytest.mark.parametrize(
    # Slow: a compile an operator.
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_is_computed_by_the_npu(name: str) -> None:
    torch.manual_seed(0)
    function, shapes = CASES[name]
    model = function if isinstance(function, nn.Module) else Wrapped(function)
    samples = [tuple(torch.randn(shape) for shape in shapes) for _ in range(3)]
    program = compile_model(model.eval(), samples[0], calibration=samples, accuracy="fast")  # verified there
    assert [(entry.op, str(entry.reject)) for entry in program.rejected] == []
    assert len(program.partitions) == 1
    # What is verified is the quantized model; that the rewriting kept its meaning is seen beside PyTorch.
    for found, wanted in zip(
        load_program(program.pte).run(samples[0]), _leaves(model(*samples[0])), strict=True
    ):
        assert tuple(found.shape) == tuple(wanted.shape)
        if wanted.is_floating_point() and name not in JUMPS:
            assert float((torch.from_numpy(found) - wanted).abs().max()) <= 0.06 * float(wanted.abs().max())


def test_a_mask_keeps_the_precision_of_the_scores() -> None:
    """Minus infinity has no int8 form, and -1e9 would take all steps of one for itself."""
    model = Wrapped(CASES["a mask that is added"][0]).eval()
    samples = [(torch.randn(PICTURE[1:]),) for _ in range(4)]
    program = compile_model(model, samples[0], calibration=samples)
    (result,) = load_program(program.pte).run(samples[0])
    assert float((torch.from_numpy(result) - model(*samples[0])).abs().max()) < 0.1


def test_bags_of_an_embedding() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(20, 8), nn.Linear(8, 4)).eval()
    samples = [(torch.randint(0, 20, (2, 5)),) for _ in range(4)]
    program = compile_model(model, samples[0], calibration=samples, accuracy="fast")
    assert program.rejected == ()
    (result,) = load_program(program.pte).run(samples[0])
    assert float((torch.from_numpy(result) - model(*samples[0])).abs().max()) < 0.1


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_an_embedding_reads_indices_as_they_come(index: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 4)).eval()
    samples = [(torch.randint(0, 20, (2, 5), dtype=index),) for _ in range(4)]
    program = compile_model(model, samples[0], calibration=samples)
    assert program.rejected == ()
    (result,) = load_program(program.pte).run(samples[0])
    assert float((torch.from_numpy(result) - model(*samples[0])).abs().max()) < 0.1


def test_an_operator_outside_core_that_another_contains() -> None:
    """Unquantized it stays on the CPU: what it is made of is not in Core ATen, which is no reason to fail."""
    inputs = (torch.randn(2, 3), torch.randn(2, 4))
    with pytest.raises(OpenNeutronError, match=r"ON513.*_trilinear"):  # nobody has a kernel for it
        compile_model(nn.Bilinear(3, 4, 5).eval(), inputs)
    program = compile_model(nn.Bilinear(3, 4, 5).eval(), inputs, verify=False)
    assert "aten._trilinear.default" in [entry.op for entry in program.rejected]
