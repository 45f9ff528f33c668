"""Everything beside its alternatives, in one run: time to a .pte, time of an inference, memory.

    python benchmarks/bench_side_by_side.py [--vela PATH/TO/vela] [network ...]      zoo names

lowering   CPU seconds to a .pte without export and calibration: ours, and `to_edge_transform_and_lower` with
           ExecuTorch's XNNPACK partitioner on the same network, quantized by XNNPACK's quantizer.
graph ms   one inference of the same int8 graph on one thread: the simulator, and LiteRT with XNNPACK.
.pte ms    one inference of the whole program on ExecuTorch, one thread: ours, and XNNPACK's delegate, whose
           numbers are those of its own quantizer.
KiB        SRAM with inputs and outputs in size mode: ours, and Vela (Ethos-U55-64), where it is installed.

Times are CPU seconds, taken in turns, the best of many, so that other work on the machine does not count. The
simulator's outputs are compared with LiteRT's reference kernels before anything is timed, where these can
compute them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
import warnings
from pathlib import Path

os.environ["OPENNEUTRON_NO_CACHE"] = "1"  # what is timed is done

import numpy as np
import torch
from bench_host_speed import milliseconds
from bench_lowering import lowering, xnnpack_program, zoo
from bench_scratch import compiled, kib, run_vela, text
from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool

from openneutron.bench.host import default_runner, random_inputs
from openneutron.diagnostics import OpenNeutronError
from openneutron.environment.stopwatch import record
from openneutron.litert.file import read
from openneutron.litert.reference import Reference
from openneutron.pipeline import compile_model
from openneutron.run.native import NativeModel
from openneutron.run.program import load_program

NETWORKS = ("mobilenet_v2", "mobilenet_v1", "dscnn", "resnet8", "cifarnet")
ROUNDS = 25


def measure(name: str, vela: Path | None) -> None:
    """Print the line of a network."""
    module, samples = zoo(name)()
    with record() as seconds:
        program = compile_model(module, samples[0], calibration=samples)
    theirs, other = xnnpack_program(name)
    x = tuple(t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in samples[0])
    ours, xnn = load_program(program.pte), load_program(other)
    (pte, _), (delegate, _) = milliseconds(
        [lambda: ours.run(x), lambda: xnn.run(x)], time.process_time, ROUNDS
    )
    line = f"{name:<16}{lowering(seconds.spent):>8.2f}{theirs:>9.2f}"
    if len(program.partitions) > 1:
        print(
            f"{line}   {len(program.partitions)} partitions: no graph to compare  {pte:>8.3f}{delegate:>9.3f}"
        )
        return
    graph = read(program.partitions[0].litert)
    whole, _ = compiled(graph, "performance")
    small, _ = compiled(graph, "size")
    inputs = random_inputs(graph)
    model = NativeModel(whole.microcode, whole.weights, name, threads=1)
    try:
        for want, got in zip(Reference(graph).run(inputs), model.run(inputs), strict=True):
            assert np.array_equal(want.reshape(got.shape), got), f"{name}: outputs differ"
    except OpenNeutronError as error:  # an untrained softmax over 1,001 classes ends the reference's process
        if error.diagnostic.code != "ON306":
            raise
    litert = default_runner(program.partitions[0].litert, inputs)
    (simulator, _), (default, _) = milliseconds([lambda: model.run(inputs), litert], time.thread_time, ROUNDS)
    found = run_vela(vela, graph) if vela else None
    print(f"{line}{simulator:>10.3f}{default:>9.3f}{default / simulator:>7.2f}x{pte:>9.3f}{delegate:>9.3f}"
          f"{delegate / pte:>7.2f}x{kib(small.reserve_bytes):>9}{text(found):>9}", flush=True)  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found = shutil.which("vela")
    parser.add_argument("--vela", type=Path, default=Path(found) if found else None)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    _unsafe_reset_threadpool(1)
    module, samples = zoo("dscnn")()
    compile_model(module, samples[0], calibration=samples[:1])  # imports, and what is done once
    head = f"{'':<16}{'lowering, CPU s':>17}{'graph, ms':>19}{'':<8}{'.pte, ms':>18}"
    print(f"{head}{'':<8}{'size mode, KiB':>18}")
    print(f"{'network':<16}{'ours':>8}{'XNNPACK':>9}{'ours':>10}{'LiteRT':>9}{'':<8}{'ours':>9}{'XNNPACK':>9}"
          f"{'':<8}{'ours':>9}{'Vela':>9}")  # fmt: skip
    for name in options.networks:
        measure(name, options.vela)


if __name__ == "__main__":
    main()
