"""Random networks from PyTorch: nothing crashes, and the program computes what the quantized module computes.

A few run with the tests. Many are a command, which prints every one that fails with the seed that makes it:

    python -m tests.test_random_networks --count 500 --first 0
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from openneutron import CompileOptions
from openneutron.accuracy.verify import verify_program
from openneutron.diagnostics import OpenNeutronError
from openneutron.fx import op_name
from openneutron.pipeline import compile_model, quantize_model
from openneutron.quantize.export import export_model

INF = float("inf")
TOO_LITTLE_SRAM = ("ON403", "ON404")  # what a network may be refused for, where little is given
Step = Callable[..., Any]
Tensors = list[torch.Tensor]


class Net(nn.Module):
    """Steps on a list of tensors: each reads some of them by number and appends its results."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.steps: list[tuple[str, Step, tuple[int, ...], bool]] = []
        self.results: list[int] = []

    def forward(self, *inputs: torch.Tensor) -> Any:
        values = list(inputs)
        for _, step, reads, frozen in self.steps:
            if frozen:
                with torch.no_grad():
                    values += _several(step(*(values[i] for i in reads)))
            else:
                values += _several(step(*(values[i] for i in reads)))
        return tuple(values[i] for i in self.results)


def _several(result: Any) -> Tensors:
    return list(result) if isinstance(result, tuple | list) else [result]


# ----------------------------------------------------------------------------------------------------
# Steps: functions of the generator, the network and the tensors they could read


def _layer(net: Net, layer: nn.Module) -> nn.Module:
    net.layers.append(layer)
    return layer


def _convolution(r: random.Random, net: Net, x: torch.Tensor) -> Step:
    batched = x.dim() == 4 or (x.dim() == 3 and r.random() < 0.5)
    dims = x.dim() - (2 if batched else 1)
    channels = x.shape[1] if batched else x.shape[0]
    kind = {1: (nn.Conv1d, nn.ConvTranspose1d), 2: (nn.Conv2d, nn.ConvTranspose2d)}[dims][r.random() < 0.2]
    groups = r.choice([1, 1, 1, channels]) if kind in (nn.Conv1d, nn.Conv2d) else 1
    if groups == 1 and channels % 2 == 0 and kind in (nn.Conv1d, nn.Conv2d) and r.random() < 0.2:
        groups = 2
    options: dict[str, Any] = {
        "stride": r.randint(1, 2),
        "padding": r.randint(0, 1),
        "bias": r.random() < 0.8,
    }
    if kind in (nn.Conv1d, nn.Conv2d):
        options["padding_mode"] = r.choice(["zeros"] * 5 + ["circular", "reflect", "replicate"])
        if r.random() < 0.15:
            options |= {"padding": "same", "stride": 1, "padding_mode": "zeros"}
    out = groups * r.randint(1, 3)
    return _layer(net, kind(channels, out, r.randint(1, 3), groups=groups, **options))


def _pool(r: random.Random, net: Net, x: torch.Tensor) -> Step:
    dims = r.choice([1, 2]) if x.dim() == 3 else 2 if x.dim() == 4 else 1
    size = r.randint(1, 3)
    kinds: list[Step] = [
        getattr(nn, f"MaxPool{dims}d")(size, r.randint(1, 2), padding=min(r.randint(0, 1), size // 2)),
        getattr(nn, f"AvgPool{dims}d")(size, r.randint(1, 2)),
        getattr(nn, f"AdaptiveAvgPool{dims}d")(1),
    ]
    return r.choice(kinds)


def _linear(r: random.Random, net: Net, x: torch.Tensor) -> Step:
    return _layer(net, nn.Linear(x.shape[-1], r.randint(1, 5), bias=r.random() < 0.8))


def _addmm(r: random.Random, net: Net, x: torch.Tensor) -> Step:
    rows, out = x.shape[0], r.randint(1, 4)
    shape = r.choice([(rows, out), (1,), (rows, 1), (out,), (1, out)])
    weight, bias = torch.randn(x.shape[1], out), torch.randn(shape)
    return lambda x: torch.addmm(bias, x, weight)


def _activation(r: random.Random, net: Net, x: torch.Tensor) -> Step:
    bounds = r.choice(
        [(0, 6), (-1, 1), (0, None), (-0.5, 2), (None, 1), (-INF, 1), (0, INF), (1, -1), (-INF, INF)]
    )
    return r.choice(
        [torch.relu, torch.sigmoid, torch.tanh, F.hardswish, F.gelu, F.leaky_relu, torch.abs, torch.neg,
         F.relu6, F.silu, torch.erf, F.celu, F.softshrink, lambda x: torch.pow(2, x),
         lambda x: x.masked_fill(x > 0.5, -0.5), lambda x: F.threshold(x, 0.1, -1.0),
         lambda x: torch.clamp(x, *bounds), lambda x: x.clone().relu_()]
    )  # fmt: skip


def _nothing(r: random.Random, net: Net, x: torch.Tensor) -> Step:
    order = list(range(x.dim()))
    return r.choice(
        [lambda x: x.permute(order), lambda x: x.view(x.shape), lambda x: x.expand(x.shape),
         lambda x: x[:], lambda x: torch.cat([x]), lambda x: F.pad(x, (0, 0)), lambda x: x * 1,
         lambda x: x + 0,
         lambda x: F.dropout(x, 0.5, False), lambda x: x.clone(), lambda x: x.contiguous(), lambda x: x / 1,
         lambda x: x.flatten(x.dim() - 1), lambda x: x.repeat([1] * x.dim()), lambda x: x.transpose(0, 0),
         lambda x: x.detach(), lambda x: x.reshape(x.shape), lambda x: x.roll(0, 0)]
    )  # fmt: skip


def _move(r: random.Random, net: Net, x: torch.Tensor) -> Step:
    order = r.sample(range(x.dim()), x.dim())
    dim = r.randrange(x.dim())
    mode = r.choice(["constant", "circular", "reflect", "replicate"])
    shape = list(x.shape)
    a, b = sorted(r.sample(range(x.dim()), 2)) if x.dim() > 1 else (0, 0)
    size = shape[dim]
    start, step = r.randrange(size), r.choice([1, 1, 2])
    return r.choice(
        [lambda x: x.permute(order), lambda x: x.flatten(a, b), lambda x: x.flip(dim),
         lambda x: x.narrow(dim, start, size - start), lambda x: x.select(dim, start),
         lambda x: x.index_select(dim, torch.arange(0, size, step)), lambda x: x.chunk(2, dim),
         lambda x: x.unsqueeze(dim), lambda x: x.squeeze(),
         lambda x: x.roll(1, dim), lambda x: x.unsqueeze(0).expand(2, *x.shape), lambda x: x.unbind(dim)[:2],
         lambda x: F.pad(x, (1, 1) if mode == "constant" or x.dim() < 4 else (1, 1, 0, 1), mode=mode),
         lambda x: torch.cat([x.narrow(dim, 0, 1), x], dim), lambda x: torch.stack([x, x], dim),
         lambda x: x[..., ::2], lambda x: x.transpose(a, b), lambda x: x.reshape(-1)]
    )  # fmt: skip


def _reduce(r: random.Random, net: Net, x: torch.Tensor) -> Step:
    dim, keep = r.randrange(x.dim()), r.random() < 0.5
    return r.choice(
        [lambda x: x.mean(dim, keep), lambda x: x.amax(dim, keep), lambda x: x.sum(dim, keep),
         lambda x: x.mean(), lambda x: x.softmax(dim), lambda x: F.log_softmax(x, dim),
         lambda x: F.layer_norm(x, x.shape[-1:])]
    )  # fmt: skip


def _constant(r: random.Random, net: Net, x: torch.Tensor) -> Step:
    value, last = round(r.uniform(-2, 2), 2), x.shape[-1]
    buffer = torch.randn(x.shape[-1:])

    def mask(x: torch.Tensor) -> torch.Tensor:
        made = x.new_zeros(x.shape[-1])
        made[: (last + 1) // 2] = 1
        made[last // 2 :] += value
        return x * made

    return r.choice(
        [mask, lambda x: x + value, lambda x: x * value, lambda x: value - x, lambda x: x + buffer,
         lambda x: x + torch.arange(last, dtype=x.dtype), lambda x: x * torch.full((last,), value),
         lambda x: x * torch.arange(1, last + 1), lambda x: torch.maximum(x, buffer), lambda x: x / 4]
    )  # fmt: skip


def _unsupported(r: random.Random, net: Net, x: torch.Tensor) -> Step:
    return r.choice(
        [
            torch.atan,
            lambda x: torch.cumsum(x, -1),
            torch.sign,
            torch.sin,
            lambda x: torch.where(x > 0, x, x * x),
        ]
    )


def _binary(r: random.Random, net: Net, x: torch.Tensor) -> Step:
    dim = r.randrange(x.dim())
    return r.choice(
        [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, lambda x, y: torch.cat([x, y], dim),
         lambda x, y: torch.cat([x, y, x], dim), lambda x, y: torch.cat([torch.sigmoid(x), y], dim)]
    )  # fmt: skip


def _product(r: random.Random, net: Net, x: torch.Tensor) -> Step:
    return lambda x: torch.matmul(x, x.transpose(-1, -2))


_MAKERS: tuple[tuple[Callable[..., Step], int, Callable[[torch.Tensor], bool]], ...] = (
    (_convolution, 5, lambda x: x.dim() in (2, 3, 4)),
    (_pool, 2, lambda x: x.dim() in (3, 4)),
    (_linear, 3, lambda x: x.dim() > 0),
    (_addmm, 1, lambda x: x.dim() == 2),
    (_activation, 4, lambda x: True),
    (_nothing, 3, lambda x: x.dim() > 0),
    (_move, 4, lambda x: x.dim() > 0),
    (_reduce, 2, lambda x: x.dim() > 0),
    (_constant, 2, lambda x: x.dim() > 0),
    (_unsupported, 1, lambda x: x.dim() > 0),
    (_binary, 3, lambda x: x.dim() > 0),
    (_product, 1, lambda x: x.dim() in (2, 3)),
)
_SHAPES = (
    (1, 3, 6, 5),
    (1, 2, 4, 4),
    (2, 3, 4, 4),
    (3, 6, 6),
    (1, 4, 8),
    (4, 7),
    (3, 4),
    (2, 3, 4),
    (6,),
    (1, 2, 3, 4, 2),
)


def make_network(seed: int) -> tuple[Net, list[tuple[int, ...]]]:
    """A network of up to eight steps, tried on an example as it grows, and the shapes of its inputs."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    shapes = [r.choice(_SHAPES) for _ in range(r.choice([1, 1, 1, 2]))]
    net = Net().eval()
    values: Tensors = [torch.randn(s) for s in shapes]
    for _ in range(20):
        if len(net.steps) == 1 + seed % 8:
            break
        _grow(r, net, values)
    made = list(range(len(shapes), len(values)))
    net.results = [made[-1]] if made else []
    net.results += [i for i in made[:-1] if r.random() < 0.2]
    if not net.results or r.random() < 0.1:
        net.results.append(0)  # an input, given back
    if r.random() < 0.15:
        net.results.append(net.results[0])
    return net, shapes


def _grow(r: random.Random, net: Net, values: Tensors) -> None:
    index = r.choice([len(values) - 1, r.randrange(len(values))])
    x, layers = values[index], len(net.layers)
    fitting = [(maker, weight) for maker, weight, fits in _MAKERS if fits(x)]
    maker = r.choices([m for m, _ in fitting], [w for _, w in fitting])[0]
    reads = (index,)
    if maker is _binary:
        reads = (index, r.choice([i for i, v in enumerate(values) if v.shape == x.shape]))
    try:
        step = maker(r, net, x)
        with torch.no_grad():
            results = _several(step(*(values[i] for i in reads)))
    except (RuntimeError, ValueError, IndexError):
        del net.layers[layers:]  # does not fit this shape
        return
    if any(
        not 0 < t.numel() <= 2000 or t.dim() > 5 or not t.isfinite().all() or t.dtype != torch.float32
        for t in results
    ):
        del net.layers[layers:]
        return
    net.steps.append((maker.__name__, step, reads, r.random() < 0.1))
    values += results


# ----------------------------------------------------------------------------------------------------
# Inputs in any memory, options, and the check


def odd_input(r: random.Random, shape: tuple[int, ...]) -> torch.Tensor:
    """Random values in memory as users have it: transposed, cut out of more, expanded, from NumPy."""
    x = torch.randn(shape)
    kind = r.randrange(6)
    if kind == 0 and len(shape) > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == 1:
        return torch.stack([x, x], -1)[..., 0]
    if kind == 2:
        return torch.randn(*shape[:-1], 1).expand(shape)
    if kind == 3 and shape[0] == 1:
        return torch.from_numpy(x.numpy()[0][None])
    if kind == 4:
        return torch.from_numpy(x.numpy()[::-1].copy()).flip(0)
    return x


def excluded(seed: int, net: Net, sample: tuple[torch.Tensor, ...]) -> tuple[str, ...]:
    """In some networks one or two operators that they have, to be kept from the NPU."""
    r = random.Random(seed + 2)
    if r.random() < 0.6:
        return ()
    graph = export_model(net, sample).graph
    graph.eliminate_dead_code()
    # What reads nothing is a constant.
    calls = (n for n in graph.nodes if op_name(n).startswith("aten.") and n.all_input_nodes)
    names = sorted({op_name(n).split(".")[1] for n in calls})
    return tuple(f"aten::{name}" for name in r.sample(names, min(len(names), r.randint(1, 2))))


def check_network(seed: int) -> str:
    """Compile and run one; what it came to, or an exception."""
    net, shapes = make_network(seed)
    r = random.Random(seed + 1)
    recipe = r.choice(["neutron", "neutron", "imxrt700"])
    last = r.random() < 0.3
    samples = [tuple(odd_input(r, s) for s in shapes) for _ in range(3)]
    if last:
        samples = [
            tuple(x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in s) for s in samples
        ]
    sram = r.choice([None, None, None, 2048, 8192])
    options = CompileOptions(
        optimise=r.choice(["performance", "size"]),
        fetch_constants_to_sram=r.random() < 0.3,
        use_neutron_for_format_conversion=r.random() < 0.7,
        sram_bytes=sram,
        operators_not_to_delegate=excluded(seed, net, samples[0]),
    )
    kept = [x.clone() for x in samples[0]]
    quantized = quantize_model(
        net,
        samples,
        recipe=recipe,
        options=options,
        per_channel=r.random() < 0.7 if recipe == "neutron" else None,
    )
    int8_io = r.random() < 0.2
    try:
        program = compile_model(
            quantized, samples[0], recipe=recipe, options=options, int8_io=int8_io, verify=False
        )
    except OpenNeutronError as error:
        if sram is not None and error.diagnostic.code in TOO_LITTLE_SRAM:
            return f"refused: {error.diagnostic.code}"
        raise
    assert all(torch.equal(a, b) for a, b in zip(kept, samples[0], strict=True)), "an input was changed"
    exported = {"forward": export_model(quantized, samples[0])}
    found = verify_program(program.pte, program, exported, {"forward": [[s] for s in samples[:2]]})
    if found.skipped:
        return f"not run: {found.skipped}"
    return "delegated" if not program.rejected else "partly delegated" if program.partitions else "on the CPU"


@pytest.mark.parametrize("seed", range(12))
def test_random_network(seed: int) -> None:
    check_network(seed)


@pytest.mark.slow  # many networks, each quantized, compiled and run
@pytest.mark.parametrize("seed", range(1000, 1030))
def test_more_random_networks(seed: int) -> None:
    check_network(seed)


def main() -> int:
    """Run many networks, and print what fails."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    outcomes: collections.Counter[str] = collections.Counter()
    begin, failed = time.monotonic(), []
    for seed in range(args.first, args.first + args.count):
        try:
            outcomes[check_network(seed).split(":")[0]] += 1
        except Exception as error:
            failed.append(seed)
            outcomes["FAILED"] += 1
            names = [step[0] for step in make_network(seed)[0].steps]
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]} {names}", flush=True)
            if not isinstance(error, OpenNeutronError):
                traceback.print_exc()
    print(
        f"{args.count} networks in {time.monotonic() - begin:.0f} s: {dict(outcomes)}; failed seeds: {failed}"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
