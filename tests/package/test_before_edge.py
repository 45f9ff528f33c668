"""Partitioning before Edge gives the microcode that ExecuTorch's own way gives, byte for byte.

A few networks run with the tests. Many are a command, which prints every one that differs:

    python -m tests.package.test_before_edge --count 500 --first 0
    python -m tests.package.test_before_edge --table
    python -m tests.package.test_before_edge --zoo
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch import nn

from openneutron import CompileOptions, CustomDelegationOptions
from openneutron.models.zoo import ZOO, build_model, example_inputs
from openneutron.ops import TABLE
from openneutron.ops.reduce import VECTOR_NORM
from openneutron.ops.spec import Case, OpSpec
from openneutron.package.backend import NeutronPartitioner
from openneutron.package.before_edge import take_partitions
from openneutron.package.program import delegates
from openneutron.passes.edge import run_edge_passes
from openneutron.pipeline import compile_model, quantize_model
from openneutron.quantize.export import export_model
from openneutron.recipes.parts import outside_core
from openneutron.report.nodes import program_nodes
from openneutron.tensors import plain_inputs
from tests.lowering import Bundle, make_inputs, quantize
from tests.test_random_networks import make_network, odd_input

REMEMBERS = ("keywords_stream", "tiny_lm")  # only partitions that are taken before Edge own their state
LARGE = ("mobilenet_v1", "mobilenet_v2", "mobilenet_v1_025_128", "gru")
SMALL = [name for name in ZOO if name not in (*LARGE, *REMEMBERS)]


def both_ways(
    quantized: torch.fx.GraphModule, inputs: Sequence[Any], options: CompileOptions | None = None
) -> tuple[list[bytes], list[bytes]]:
    """The payloads of all partitions: as `compile_model` takes them, and by `to_edge_transform_and_lower`."""
    specs = (options or CompileOptions()).to_compile_specs()
    delegation = CustomDelegationOptions(allow_no_op_partitions=True)

    def partitioner() -> NeutronPartitioner:
        return NeutronPartitioner(specs, custom_delegation_options=delegation)

    example = plain_inputs(tuple(inputs))  # as `compile_model` takes them
    exported = torch.export.export(quantized, example)
    before = take_partitions(export_model(quantized, example), partitioner(), may_change=True)
    config = EdgeCompileConfig(_core_aten_ops_exception_list=outside_core({"forward": exported}))
    edge = to_edge_transform_and_lower(
        exported, transform_passes=[run_edge_passes], partitioner=[partitioner()], compile_config=config
    )
    modules = before.graph_module, edge.exported_program().graph_module
    found = [[d.processed_bytes for d in delegates(module)] for module in modules]
    return found[0], found[1]


def _bundle(cases: Sequence[Case], channels_last: bool) -> tuple[list[bytes], list[bytes]]:
    batches = [make_inputs(cases, seed, channels_last) for seed in range(2)]
    return both_ways(quantize(Bundle(cases), batches), batches[0])


def _random(seed: int) -> tuple[list[bytes], list[bytes]]:
    """A random network with something for the CPU in its middle; every third takes channels-last inputs."""
    net, shapes = make_network(seed)
    r = random.Random(seed)
    if len(net.steps) > 1:
        at = r.randrange(len(net.steps) - 1)
        name, step, *rest = net.steps[at]
        net.steps[at] = (name, partial(_on_the_cpu, step), *rest)
    samples = [tuple(odd_input(r, shape) for shape in shapes) for _ in range(2)]
    if seed % 3 == 0:
        samples = [tuple(_channels_last(x) for x in sample) for sample in samples]
    return both_ways(quantize_model(net, samples, accuracy="fast"), samples[0])


def _on_the_cpu(step: Callable[..., Any], *values: torch.Tensor) -> Any:
    """What the NPU makes of values, through a function that it does not have."""
    made = step(*values)
    return tuple(map(torch.atan, made)) if isinstance(made, tuple | list) else torch.atan(made)


def _zoo(name: str) -> tuple[list[bytes], list[bytes]]:
    inputs = [example_inputs(name, seed) for seed in range(2)]
    return both_ways(quantize_model(build_model(name), inputs, accuracy="fast"), inputs[0])


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.to(memory_format=torch.channels_last) if x.dim() == 4 else x


def _labels(specs: Sequence[OpSpec]) -> Iterator[Any]:
    for spec in specs:
        last = [c for c in spec.cases if c.channels_last]
        for variant, cases in (("plain", list(spec.cases)), ("channels_last", last)):
            if cases:
                yield pytest.param(cases, variant == "channels_last", id=f"{spec.name}-{variant}")


@pytest.mark.parametrize("name", ["dscnn", "tiny_vit"])
def test_zoo(name: str) -> None:
    new, old = _zoo(name)
    assert new == old and len(new) == 1


@pytest.mark.slow  # each network is lowered twice
@pytest.mark.parametrize("name", [name for name in SMALL if name not in ("dscnn", "tiny_vit")])
def test_more_of_the_zoo(name: str) -> None:
    test_zoo(name)


# Norms are in no table of torch's: exir has a decomposition of its own for them.
_SAMPLED = tuple(_labels(list(dict.fromkeys([*TABLE[::12], VECTOR_NORM]))))


@pytest.mark.parametrize(("cases", "channels_last"), _SAMPLED[::2])
def test_operators(cases: Sequence[Case], channels_last: bool) -> None:
    new, old = _bundle(cases, channels_last)
    assert new == old


@pytest.mark.slow  # each operator is lowered twice
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("first", range(0, len(TABLE), 8))
def test_every_operator(first: int, channels_last: bool) -> None:
    """A case of each, of eight operators side by side; in `tests/ops` all cases go the quick way."""
    cases = [[c for c in spec.cases if c.channels_last or not channels_last] for spec in TABLE[first:][:8]]
    if chosen := [of_one[0 if channels_last else -1] for of_one in cases if of_one]:
        new, old = _bundle(chosen, channels_last)
        assert new == old


@pytest.mark.parametrize("seed", range(6))
def test_random_networks(seed: int) -> None:
    new, old = _random(seed)
    assert new == old


class Split(nn.Module):
    """Two partitions: what is between them stays on the CPU, and one branch goes past it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        return torch.sigmoid(self.second(torch.atan(x)) + x)


@pytest.mark.parametrize("optimise", ["performance", "size"])
def test_two_partitions(optimise: str) -> None:
    inputs = (_channels_last(torch.randn(1, 3, 8, 8)),)
    quantized = quantize_model(Split().eval(), [inputs], accuracy="fast")
    new, old = both_ways(quantized, inputs, CompileOptions(optimise=optimise, keep_inputs=False))
    assert new == old and len(new) == 2


def _names(program: Any) -> list[str]:
    """The nodes; quantize and dequantize steps are counted in another order."""
    return [re.sub(r"(quantize_per_tensor_default)_\d+$", r"\1", n.name) for n in program_nodes(program)]


def test_names_and_reasons_are_those_of_the_edge_program() -> None:
    inputs = (torch.randn(1, 3, 8, 8),)
    quantized = quantize_model(Split().eval(), [inputs], accuracy="fast")
    new, old = (
        compile_model(quantized, inputs, etrecord=etrecord, verify=False) for etrecord in (False, True)
    )
    assert new.npu_nodes == old.npu_nodes
    assert [e.as_dict() for e in new.rejected] == [e.as_dict() for e in old.rejected]
    assert _names(new) == _names(old)
    assert new.summary() == {**old.summary(), "program_bytes": len(new.pte)}


def main() -> int:
    """Compare many."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="the cases of the operator table instead")
    parser.add_argument("--zoo", action="store_true", help="the networks of the zoo instead")
    parser.add_argument("--every", type=int, default=1)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    jobs: list[Any] = [
        (f"seed {seed}", _random, (seed,))
        for seed in range(arguments.first, arguments.first + arguments.count)
    ]
    if arguments.table:
        jobs = [(p.id, _bundle, p.values) for p in _labels(TABLE)]
    if arguments.zoo:
        jobs = [(name, _zoo, (name,)) for name in ZOO if name not in REMEMBERS]
    jobs = jobs[:: arguments.every]
    different, several = [], 0
    for number, (label, run, values) in enumerate(jobs):
        if number and number % 50 == 0:
            print(f"{number} done, {len(different)} differ", file=sys.stderr, flush=True)
        try:
            new, old = run(*values)
            several += len(old) > 1
            if new != old:
                different.append(label)
                print(f"{label}: {len(new)} and {len(old)} partitions", flush=True)
        except Exception:
            print(f"{label}: failed\n{traceback.format_exc(limit=-4)}", flush=True)
            different.append(label)
    print(f"{len(jobs)} networks, {several} of several partitions, {len(different)} differ")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
