"""Random networks of supported operators: lowering never fails, each operator is within 1 LSB of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from openneutron import CustomDelegationOptions
from openneutron.litert.reference import Reference, run_reference
from openneutron.lower.convert import lower_cluster, lower_program
from openneutron.package.program import inside
from openneutron.partition.clusters import Cluster, find_clusters
from tests.lowering import Wrapped, compute_nodes, quantize, take


class RandomNet(nn.Module):
    """Steps on a list of feature maps; each step appends one, computed from one or two of the earlier."""

    def __init__(self, steps: list[tuple[str, int, int]], channels: int):
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList()
        shapes = [(channels, 8, 8)]
        for kind, a, b in steps:
            layer, shape = _layer(kind, shapes[a % len(shapes)], shapes[b % len(shapes)])
            self.layers.append(layer)
            shapes.append(shape)
        self.shapes = shapes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = [x]
        for (kind, a, b), layer in zip(self.steps, self.layers, strict=True):
            first, second = values[a % len(values)], values[b % len(values)]
            values.append(layer(first, second) if kind in _BINARY else layer(first))
        return values[-1]


_BINARY = ("add", "mul", "cat", "maximum")
_KINDS = (
    "conv",
    "conv_relu",
    "strided",
    "depthwise",
    "pool",
    "avg",
    "relu",
    "sigmoid",
    "hardswish",
    "gelu",
    "pad",
    "slice",
    "up",
    "mean",
    "softmax",
    "flip_hw",
    "permute",
    "reshape",
    "norm",
    *_BINARY,
)
Shape = tuple[int, int, int]


def _layer(kind: str, shape: Shape, other: Shape) -> tuple[nn.Module, Shape]:
    c, h, w = shape
    if kind in _BINARY and (shape != other or (kind == "cat" and c > 24)):
        # Not of one shape: bring the second to one value per channel of the first, or leave it out.
        function = (lambda x, y: x + y.mean()) if kind == "add" else (lambda x, y: x)
        return Wrapped(function), shape
    simple: dict[str, tuple[nn.Module, Shape]] = {
        "conv": (nn.Conv2d(c, 5, 3, padding=1), (5, h, w)),
        "conv_relu": (
            nn.Sequential(nn.Conv2d(c, 6, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU6()),
            (6, h, w),
        ),
        "strided": (nn.Conv2d(c, 4, 3, stride=2, padding=1), (4, (h + 1) // 2, (w + 1) // 2)),
        "depthwise": (nn.Conv2d(c, c, 3, padding=1, groups=c), shape),
        "relu": (nn.ReLU(), shape),
        "sigmoid": (nn.Sigmoid(), shape),
        "hardswish": (nn.Hardswish(), shape),
        "gelu": (nn.GELU(), shape),
        "softmax": (nn.Softmax(1), shape),
        "norm": (nn.BatchNorm2d(c), shape),
        "pad": (nn.ConstantPad2d((1, 0, 2, 1), 0.0), (c, h + 3, w + 1)),
        "flip_hw": (Wrapped(lambda x: x.permute(0, 1, 3, 2)), (c, w, h)),
        "permute": (Wrapped(lambda x: x.permute(0, 2, 3, 1)), (h, w, c)),
        "reshape": (Wrapped(lambda x: x.reshape(x.shape[0], x.shape[3], x.shape[1], x.shape[2])), (w, c, h)),
        "add": (Wrapped(lambda x, y: x + y), shape),
        "mul": (Wrapped(lambda x, y: x * y), shape),
        "maximum": (Wrapped(torch.maximum), shape),
        "cat": (Wrapped(lambda x, y: torch.cat([x, y], 1)), (2 * c, h, w)),
        "mean": (Wrapped(lambda x: x.mean((2, 3), keepdim=True) * x), shape),
    }
    if kind in ("pool", "avg") and min(h, w) >= 2:
        pool: nn.Module = nn.MaxPool2d(2) if kind == "pool" else nn.AvgPool2d(2)
        return pool, (c, h // 2, w // 2)
    if kind == "slice" and w >= 3:
        return Wrapped(lambda x: x[:, :, :, 1:]), (c, h, w - 1)
    if kind == "up" and h * w <= 64:
        return nn.Upsample(scale_factor=2), (c, 2 * h, 2 * w)
    return simple.get(kind, (Wrapped(lambda x: x * 0.5), shape))


_STEPS = st.lists(
    st.tuples(st.sampled_from(_KINDS), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=8
)


_NETWORK = {
    "steps": _STEPS,
    "channels": st.integers(1, 6),
    "channels_last": st.booleans(),
    "npu_transposes": st.booleans(),
    "seed": st.integers(0, 99),
}


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(**_NETWORK)
def test_random_network(**network: Any) -> None:
    _check(**network)


@pytest.mark.slow  # many networks, each compiled and run
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(**_NETWORK)
def test_many_random_networks(**network: Any) -> None:
    _check(**network)


def _check(steps: Any, channels: int, channels_last: bool, npu_transposes: bool, seed: int) -> None:
    torch.manual_seed(seed)
    net = RandomNet(steps, channels)
    x = torch.randn(1, channels, 8, 8)
    inputs = (x.to(memory_format=torch.channels_last) if channels_last else x,)
    quantized = quantize(net, [inputs])
    options = CustomDelegationOptions(allow_no_op_partitions=True)  # a network may be one reshape
    delegated = take(quantized, inputs, custom_delegation_options=options)
    assert compute_nodes(delegated.program) == [], [str(r.reject) for r in delegated.partitioner.rejected]
    for module in delegated.modules:
        program = inside(module)
        lowered = lower_program(program, npu_transposes=npu_transposes)
        recorded = _record(program, seed)
        _check_operators(program, recorded)
        naive = run_reference(
            lowered.naive, [_physical(recorded, t.name, t.shape) for t in lowered.naive.inputs]
        )
        flags = zip(lowered.graph.inputs, lowered.input_channels_last, strict=True)
        arrays = [_moved(_physical(recorded, t.name, None), flag).reshape(t.shape) for t, flag in flags]
        results = Reference(lowered.graph).run(arrays)
        for got, want, flag in zip(results, naive, lowered.output_channels_last, strict=True):
            restored = np.moveaxis(got, -1, 1) if flag else got
            assert np.array_equal(restored, want), "layout inference or a rule changed a bit"


def _record(program: Any, seed: int) -> dict[str, torch.Tensor]:
    """Every value of the quantized PyTorch program, on random int8 inputs."""
    generator = torch.Generator().manual_seed(seed)
    arguments = []
    for spec, node in zip(
        program.graph_signature.input_specs, program.graph.find_nodes(op="placeholder"), strict=True
    ):
        found = (
            program.state_dict.get(spec.target, program.constants.get(spec.target)) if spec.target else None
        )
        if found is None:
            like = node.meta["val"]
            values = torch.randint(-128, 128, like.shape, generator=generator, dtype=torch.int8)
            found = torch.empty_strided(like.shape, like.stride(), dtype=torch.int8).copy_(values)
        arguments.append(found)
    recorded: dict[str, torch.Tensor] = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            recorded[n.name] = super().run_node(n)
            return recorded[n.name]

    Recorder(program.graph_module).run(*arguments)
    return recorded


def _physical(recorded: dict[str, torch.Tensor], name: str, shape: Any) -> np.ndarray:
    x = recorded[name]
    memory = x.permute(x.dim_order()).contiguous().numpy()
    return memory if shape is None else memory.reshape(shape)


def _moved(memory: np.ndarray, flag: bool) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(memory, 1, -1)) if flag else memory


def _check_operators(program: Any, recorded: dict[str, torch.Tensor]) -> None:
    """Each cluster alone, on PyTorch's own inputs."""
    clusters, rejected = find_clusters(program)
    assert rejected == []
    for cluster in clusters:
        parts = [part for part in cluster.parts if part.outputs]
        for part, result in zip(parts, _run_alone(cluster, recorded), strict=True):
            got = result.astype(np.int32)
            want = recorded[part.outputs[0].name].contiguous().numpy().astype(np.int32)
            assert np.abs(got - want).max(initial=0) <= 1, (
                f"{part.call.op} is {np.abs(got - want).max()} LSB off"
            )


def _run_alone(cluster: Cluster, recorded: dict[str, torch.Tensor]) -> list[np.ndarray]:
    graph = lower_cluster(cluster)
    return run_reference(graph, [recorded[t.name].contiguous().numpy() for t in graph.inputs])
