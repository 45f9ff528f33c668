"""SRAM for activations of known networks, in performance and in size mode, beside Vela's and NXP's figures.

    python benchmarks/bench_scratch.py [--vela PATH/TO/vela]

All figures are with inputs and outputs, as Vela counts: "perform." in buffers of their own beside the
scratch memory, "kept" `--optimise size --keep-inputs`, "size" `--optimise size`, where they lie in one arena
with the rest. "bound" is the most bytes live at once in the order chosen: no placement is smaller. With
`--vela` (ethos-u-vela in an environment of its own) Arm's compiler runs on the same files; otherwise its
recorded figures are printed: Vela 5.2, Ethos-U55-64, `--optimise Size`. NXP's figures are published ones, of
scratch alone. Every program in size mode is run and compared with the one computed whole. The last column is
the bar (Vela's figure where there is no other) and whether it is met; the exit status is 1 if one is not.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from networks import NETWORKS, in_planes, mobilenet_v2

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.emit.result import CompiledGraph
from openneutron.litert.file import write
from openneutron.litert.ir import Graph
from openneutron.options import CompileOptions
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target

NXP = {"CifarNet": 40.0, "MobileNetV1-0.25-128": 96.0, "DS-CNN (MLPerf Tiny)": 15.625}
VELA = {
    "CifarNet": 15.0,
    "MobileNetV1-0.25-128": 80.0,
    "MobileNetV1-0.25-96": 48.0,
    "autoencoder 640": 0.75,
    "wake word 30x40": 7.5,
    "wake word, valid": 5.8,
    "1-D, 128/64/64/32": 4.27,
    "ECG, 360 samples": 23.5,
    "average of 64x64x64": 280.0,
    "head on 32x32x32": 36.0,
    "U-Net 64x64": 244.0,
    "VoVNet 64x64": 112.0,
    "MobileNetV2-224": 353.5,
    "DS-CNN (MLPerf Tiny)": 15.6,
    "ResNet-8 (MLPerf Tiny)": 35.0,
}
BARS = {  # with inputs and outputs
    "CifarNet": 11.0,
    "MobileNetV1-0.25-128": 56.0,
    "MobileNetV2-224": 170.0,
    "MobileNetV2-224, planes": 170.0,
    "DS-CNN (MLPerf Tiny)": 10.0,
    "ResNet-8 (MLPerf Tiny)": 22.0,
}
CYCLES_BAR = 1.05


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vela", type=Path, help="Arm's compiler, to be run on the same files")
    options = parser.parse_args()
    print(
        "KiB of SRAM for activations; Vela " + ("run here" if options.vela else "as recorded (version 5.2)")
    )
    print(f"{'network':<24}{'perform.':>9}{'kept':>8}{'size':>8}{'bound':>8}", end="")
    print(f"{'cycles':>9}{'Vela':>8}{'NXP':>8}{'equal':>7}{'seconds':>9}  bar")
    missed = 0
    for name, make in {**NETWORKS, "MobileNetV2-224, planes": lambda: in_planes(mobilenet_v2())}.items():
        try:
            graph = make()
        except FileNotFoundError as error:
            print(f"{name:<24}skipped: {error.filename} is absent")
            continue
        whole, _ = compiled(graph, "performance")
        small, seconds = compiled(graph, "size")
        kept, _ = compiled(graph, "size", keep_inputs=True)
        vela = run_vela(options.vela, graph) if options.vela else VELA.get(name)
        ratio, same = small.cycles / whole.cycles, equal(graph, whole, kept, small)
        bar = BARS.get(name, vela)
        met = (bar is None or small.reserve_bytes <= bar * 1024) and ratio <= CYCLES_BAR and same
        missed += not met
        print(
            f"{name:<24}{kib(whole.reserve_bytes):>9}{kib(kept.reserve_bytes):>8}{kib(small.reserve_bytes):>8}"
            f"{kib(small.scratch_bound):>8}{ratio - 1:>+9.2%}{text(vela):>8}{text(NXP.get(name)):>8}"
            f"{'yes' if same else 'NO':>7}{seconds:>9.2f}  {text(bar)} and +5 %: {'met' if met else 'MISSED'}"
        )
    return 1 if missed else 0


def compiled(graph: Graph, optimise: str, keep_inputs: bool = False) -> tuple[CompiledGraph, float]:
    """The program and the seconds of CPU time it took."""
    began = time.process_time()
    options = CompileOptions(optimise=optimise, keep_inputs=keep_inputs)
    program = compile_graph(graph, find_target("imxrt700"), options)
    return program, time.process_time() - began


def equal(graph: Graph, *programs: CompiledGraph) -> bool:
    """Whether programs give the same bits for one random input."""
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-128, 128, t.shape).astype(t.dtype) for t in graph.inputs]
    first, *others = (NativeModel(p.microcode, p.weights).run(inputs) for p in programs)
    return all(np.array_equal(a, b) for found in others for a, b in zip(first, found, strict=True))


def run_vela(vela: Path, graph: Graph) -> float | None:
    """Vela's SRAM figure in size mode, in KiB."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.tflite")
        model.write_bytes(write(graph))
        command = [
            vela,
            "--accelerator-config",
            "ethos-u55-64",
            "--optimise",
            "Size",
            "--output-dir",
            folder,
            model,
        ]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        for summary in Path(folder).glob("*summary*.csv"):
            with summary.open() as file:
                return float(next(csv.DictReader(file))["sram_memory_used"])
        print(done.stdout[-300:] + done.stderr[-300:], file=sys.stderr)
    return None


def kib(nbytes: int) -> str:
    """KiB, two digits."""
    return f"{nbytes / 1024:.2f}"


def text(value: float | None) -> str:
    """A figure or a dash."""
    return "-" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
