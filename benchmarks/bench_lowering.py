"""From a float module to a .pte: CPU seconds by stage, beside ExecuTorch's XNNPACK lowering, and growth.

Every network is quantized on four samples and the program is verified. `lowering` is everything but
torch.export, torchao and calibration; `XNNPACK` is `to_edge_transform_and_lower(...).to_executorch()` with
XNNPACK's partitioner on the same network, quantized by XNNPACK's quantizer. Each network has a process of its
own, so that its peak memory is its own.

python benchmarks/bench_lowering.py [network ...]      all networks, or these; zoo names too
python benchmarks/bench_lowering.py --growth           100, 1,000 and 10,000 nodes
python benchmarks/bench_lowering.py --stages NETWORK   one network, stage by stage
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from openneutron.environment.stopwatch import ACCURACY, NOT_OURS, record
from openneutron.models.zoo import build_model, example_inputs
from openneutron.pipeline import compile_model

NODES = (100, 1_000, 10_000)


class ViT(nn.Module):
    """A vision transformer as DeiT-tiny: 12 blocks of width 192, patches of 16 x 16."""

    def __init__(self, blocks: int = 12, width: int = 192, heads: int = 3, classes: int = 1000):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, blocks, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token, patches], 1) + self.position
        return self.head(self.blocks(tokens)[:, 0])


class CRNN(nn.Module):
    """Two convolutions and an LSTM of 100 steps."""

    def __init__(self, classes: int = 32):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d((2, 1)),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d((2, 1)),
        )  # fmt: skip
        self.lstm = nn.LSTM(64, 32, batch_first=True)
        self.head = nn.Linear(32, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = self.convs(x).flatten(1, 2).transpose(1, 2)
        return self.head(self.lstm(steps)[0])


class Chain(nn.Module):
    """As many operators as asked for: a small matrix product and a sigmoid in turn."""

    def __init__(self, nodes: int):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sigmoid() if i % 2 else nn.Linear(8, 8) for i in range(nodes)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def zoo(name: str) -> Callable[[], tuple[nn.Module, list[Any]]]:
    """A network of the zoo with its four samples."""
    return lambda: (build_model(name), [example_inputs(name, seed) for seed in range(4)])


def made(build: Callable[[], nn.Module], *shape: int) -> Callable[[], tuple[nn.Module, list[Any]]]:
    """A network of this file with its four samples."""

    def make() -> tuple[nn.Module, list[Any]]:
        torch.manual_seed(0)
        return build().eval(), [(torch.randn(shape),) for _ in range(4)]

    return make


NETWORKS = {
    "MobileNetV2-224": zoo("mobilenet_v2"),
    "GRU classifier": zoo("gru"),
    "ViT 12 x 192": made(ViT, 1, 3, 224, 224),
    "CRNN, LSTM of 100 steps": made(CRNN, 1, 1, 16, 100),
    **{f"{count:,} nodes": made(lambda count=count: Chain(count), 1, 8) for count in NODES},
}


def ours(name: str) -> dict[str, Any]:
    """Seconds by stage of our own way to a .pte."""
    module, samples = NETWORKS.get(name, zoo(name))()
    with record() as seconds:
        compiled = compile_model(module, samples[0], calibration=samples)
    return {"stages": seconds.spent, "partitions": len(compiled.partitions), "npu": len(compiled.npu_nodes),
            "cpu": len(compiled.rejected)}  # fmt: skip


def xnnpack_program(name: str) -> tuple[float, bytes]:
    """Seconds of XNNPACK's lowering, which begins with the quantized and exported model, and its program."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.exir import to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    module, samples = NETWORKS.get(name, zoo(name))()
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(torch.export.export(module, samples[0]).module(check_guards=False), quantizer)
    for sample in samples:
        prepared(*sample)
    program = torch.export.export(convert_pt2e(prepared), samples[0])
    begun = time.process_time()
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
    return time.process_time() - begun, lowered.buffer


def measured(way: str, name: str) -> dict[str, Any] | None:
    """What a process of its own finds; None if it failed."""
    child = subprocess.run([sys.executable, __file__, f"--{way}", name], capture_output=True, text=True)
    if child.returncode:
        print(f"{name}: {way}: {(child.stderr.strip().splitlines() or ['failed'])[-1]}", file=sys.stderr)
        return None
    return json.loads(child.stdout.splitlines()[-1])


def child(way: str, name: str) -> None:
    """Measure one network here; imports and what is done once per process are behind us then."""
    warnings.simplefilter("ignore")
    module, samples = zoo("dscnn")()
    compile_model(module, samples[0], calibration=samples[:1])
    found = ours(name) if way == "ours" else {"lowering": xnnpack_program(name)[0]}
    print(json.dumps({**found, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))


def lowering(stages: dict[str, float]) -> float:
    """Everything but export, torchao and calibration."""
    return sum(spent for name, spent in stages.items() if name not in (*NOT_OURS, ACCURACY))


def show_stages(name: str) -> None:
    """Print one line per stage."""
    found = measured("ours", name)
    if found is None:
        return
    total = sum(found["stages"].values())
    print(f"{name:<34}{'CPU s':>9}{'share':>8}")
    for stage, spent in found["stages"].items():
        print(f"{stage:<34}{spent:>9.2f}{spent / total:>8.0%}")
    print(f"{'all':<34}{total:>9.2f}\n{'lowering':<34}{lowering(found['stages']):>9.2f}")
    print(f"peak memory {found['peak']} MiB, partitions {found['partitions']}, operators on the NPU "
          f"{found['npu']}, on the CPU {found['cpu']}")  # fmt: skip


def show_networks(names: list[str]) -> None:
    """Print one line per network."""
    print(f"{'CPU seconds':<26}{'all':>8}{'lowering':>10}{'XNNPACK':>9}{'MiB':>7}{'NPU':>7}{'CPU':>5}")
    for name in names:
        found, other = measured("ours", name), measured("xnnpack", name)
        if found is not None:
            stages = found["stages"]
            beside = f"{other['lowering']:>9.2f}" if other else f"{'-':>9}"
            print(f"{name:<26}{sum(stages.values()):>8.2f}{lowering(stages):>10.2f}{beside}{found['peak']:>7}"
                  f"{found['npu']:>7}{found['cpu']:>5}", flush=True)  # fmt: skip


def show_growth() -> None:
    """Print how the seconds per node change with the number of nodes."""
    print(f"{'nodes':>8}{'lowering':>10}{'ms per node':>13}")
    for count in NODES:
        found = measured("ours", f"{count:,} nodes")
        if found is not None:
            spent = lowering(found["stages"])
            print(f"{count:>8,}{spent:>10.2f}{1e3 * spent / count:>13.2f}", flush=True)


def main(arguments: list[str]) -> None:
    """Do what the arguments say."""
    match arguments:
        case ["--ours" | "--xnnpack" as way, name]:
            child(way.removeprefix("--"), name)
        case ["-h" | "--help"]:
            print(__doc__)
        case ["--growth"]:
            show_growth()
        case ["--stages", name]:
            show_stages(name)
        case names:
            show_networks(names or list(NETWORKS)[:4])


if __name__ == "__main__":
    main(sys.argv[1:])
