"""MobileNetV2-224 as a user runs it: whole programs on ExecuTorch, and LiteRT, one thread each, in one run.

Ours and LiteRT compute the same int8 graph; ExecuTorch's XNNPACK delegate has its own quantizer: the network
is the same, its numbers are not. Times are CPU seconds of the process, the best of many runs, so that other
work on the machine does not count.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import torch
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import to_edge_transform_and_lower
from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool

from openneutron.models.zoo import build_model, example_inputs
from openneutron.pipeline import compile_model
from openneutron.quantize.loop import calibrate_and_quantize
from openneutron.run.program import load_program

MODEL = "mobilenet_v2"


def main() -> None:
    """Print one line per way to run it."""
    warnings.simplefilter("ignore")
    _unsafe_reset_threadpool(1)
    x = tuple(t.to(memory_format=torch.channels_last) for t in example_inputs(MODEL))
    compiled = compile_model(build_model(MODEL), x, calibration=[x])
    ours, xnnpack = load_program(compiled.pte), load_program(xnnpack_program(x))
    times = {
        "OpenNeutron, .pte on ExecuTorch": milliseconds(lambda: ours.run(x), 30),
        "LiteRT BUILTIN_REF": milliseconds(litert(compiled.partitions[0].litert, reference=True), 2),
        "LiteRT default (XNNPACK)": milliseconds(litert(compiled.partitions[0].litert), 30),
        "ExecuTorch XNNPACK delegate": milliseconds(lambda: xnnpack.run(x), 30),
    }
    base = times["OpenNeutron, .pte on ExecuTorch"]
    print(f"{MODEL}, one thread{'':<14}{'ms':>10}{'time / ours':>13}")
    for name, value in times.items():
        print(f"{name:<38}{value:>10.2f}{value / base:>13.2f}")


def xnnpack_program(inputs: tuple[torch.Tensor, ...]) -> bytes:
    """The same network in int8 for ExecuTorch's XNNPACK delegate."""
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    quantized = calibrate_and_quantize(torch.export.export(build_model(MODEL), inputs), [inputs], quantizer)
    exported = torch.export.export(quantized, inputs)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    program: bytes = edge.to_executorch().buffer
    return program


def litert(model: bytes, reference: bool = False) -> Callable[[], None]:
    """A run of LiteRT's interpreter with its own random input."""
    kind = OpResolverType.BUILTIN_REF if reference else OpResolverType.AUTO
    interpreter = Interpreter(model_content=model, experimental_op_resolver_type=kind, num_threads=1)
    interpreter.allocate_tensors()
    (detail,) = interpreter.get_input_details()
    array = torch.randint(-128, 128, tuple(detail["shape"]), dtype=torch.int8).numpy()

    def run() -> None:
        interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()

    return run


def milliseconds(run: Callable[[], object], runs: int) -> float:
    """The best CPU time of one run."""
    best = float("inf")
    for _ in range(runs):
        begun = time.process_time()
        run()
        best = min(best, time.process_time() - begun)
    return best * 1e3


if __name__ == "__main__":
    main()
