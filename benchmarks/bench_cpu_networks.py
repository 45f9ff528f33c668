"""Whole networks on an emulated Cortex-M33, with ExecuTorch's CPU kernels and with runtime/cpu_kernels.

    python -m benchmarks.bench_cpu_networks [--detector ch_PP-OCRv4_det_infer.onnx] [NAME ...]

One inference of each runs as firmware under QEMU, which counts instructions: of the CPU's operators, and of
quantizing, dequantizing and what a delegate does around its kernels (the border). The NPU's kernels run in
software there, so their instructions say nothing; the estimate is of the whole, in cycles. Both images must
give the same bits. The detector is in the PyPI package rapidocr_onnxruntime, in `models`.

Needs the cross tools, EXECUTORCH_SOURCE and CMSIS_NN_SOURCE (docs/firmware.md).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from openneutron.diagnostics import OpenNeutronError
from openneutron.firmware.sources import Sources, find_sources
from openneutron.firmware.whole import WholeProgram, build_whole, read_whole_program
from openneutron.firmware.whole_run import Runs, WholeRun, random_runs, run_whole
from openneutron.models import build_model
from openneutron.onnx import load_onnx
from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model


@dataclass(frozen=True)
class Network:
    """A model, an input's shape, and the operators the CPU computes."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    on_cpu: tuple[str, ...] = ()


class Middle(nn.Module):
    """Layers on the NPU, float layers in the middle, and a choice of the largest at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.ConvTranspose2d(16, 8, 2, stride=2), nn.MaxPool2d(2), nn.LayerNorm(16))
        self.last = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The five largest, and which they are."""
        x = torch.relu(self.last(self.middle(torch.atan(self.first(x)))))
        values, places = torch.topk(torch.softmax(self.head(x.mean((2, 3))), -1), 5)
        return values, places


NETWORKS = {
    "CifarNet": Network(lambda: build_model("cifarnet"), (1, 3, 32, 32)),
    "ResNet-8": Network(lambda: build_model("resnet8"), (1, 3, 32, 32)),
    "GRU": Network(lambda: build_model("gru"), (1, 16, 16)),
    "middle": Network(Middle, (1, 3, 32, 32), (
        "aten::atan", "aten::topk", "aten::conv_transpose2d", "aten::max_pool2d", "aten::layer_norm",
        "aten::softmax")),
    "MobileNetV2": Network(lambda: build_model("mobilenet_v2"), (1, 3, 224, 224)),
}  # fmt: skip
DETECTOR = (1, 3, 64, 64)
BORDER = ("quantize_per_tensor", "quantize_per_channel", "_to_dim_order_copy", "_clone_dim_order")


def program_of(network: Network) -> tuple[WholeProgram, dict]:
    """Compiled by the default recipe."""
    torch.manual_seed(0)
    inputs = (torch.randn(network.shape),)
    options = CompileOptions(operators_not_to_delegate=network.on_cpu)
    made = compile_model(network.build().eval(), inputs, calibration=[inputs], verify=False, options=options)
    return read_whole_program(made.pte), made.summary()


def measure(program: WholeProgram, sources: Sources, inputs: Runs, portable: bool) -> tuple[WholeRun, str]:
    """A run, and the image's size."""
    with tempfile.TemporaryDirectory() as folder:
        firmware = build_whole(program, Path(folder), sources, portable=portable)
        size = firmware.size
        return run_whole(
            firmware, inputs, timeout=3600
        ), f"{size.text:,} {sum(part.data for part in size.parts):,}"


def main() -> int:
    """Print a row for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--detector", type=Path, help="PP-OCRv4's text detector")
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(NETWORKS)}, detector; all by default")
    given = parser.parse_args()
    networks = dict(NETWORKS)
    if given.detector is not None:
        networks["detector"] = Network(lambda: load_onnx(given.detector, {"x": DETECTOR}), DETECTOR)
    try:
        sources = find_sources()
    except OpenNeutronError as error:
        print(f"skipped: {error}")
        return 0
    print(f"{'network':<14}{'kernels':<10}{'CPU operators':>16}{'the border':>14}{'inside':>12}"
          f"{'estimated cycles':>18}   text and data")  # fmt: skip
    wrong = 0
    for name in given.names or networks:
        program, summary = program_of(networks[name])
        inputs, outputs = random_runs(program, 1), []
        for portable in (True, False):
            run, size = measure(program, sources, inputs, portable)
            outputs.append(b"".join(a.tobytes() for s in run.outputs.values() for r in s for a in r))
            on_cpu = [s for s in run.steps if not s.kernels]
            steps = sum(s.instructions for s in on_cpu)
            border = sum(s.instructions for s in on_cpu if any(b in s.operator for b in BORDER))
            inside = sum(s.border for s in run.steps)
            cycles = summary["cycles_portable_kernels" if portable else "cycles_estimated"]
            print(f"{name:<14}{'portable' if portable else 'ours':<10}{steps:>16,}{border:>14,}{inside:>12,}"
                  f"{cycles:>18,}   {size}", flush=True)  # fmt: skip
        wrong += outputs[0] != outputs[1]
    print(f"{wrong} networks with other bits")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
