"""Ways to quantize a network for `bench_accuracy.py`: ours, with steps left out, and others'."""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from trained_networks import Run, Sample, Task

from openneutron.passes import ATEN_PASSES
from openneutron.pipeline import quantize_model
from openneutron.quantize.export import export_model
from openneutron.quantize.plan import LEVELS
from openneutron.run.program import load_program

_PER_CHANNEL = 13  # the first opset that has scales per channel


@dataclass(frozen=True)
class Made:
    """A quantized network, what was said of its error, and CPU seconds that other processes took."""

    run: Run
    said: float = math.nan
    seconds: float | None = None


def command(task: Task, *options: str) -> Made:
    """`openneutron compile` as a user types it; the program is run as a board would, bit for bit."""
    folder = Path(tempfile.mkdtemp())
    out, samples = folder / "network.pte", folder / "samples.npz"
    words = [sys.executable, "-m", "openneutron", "compile", task.model, *task.options, *options]
    words += ["-o", str(out), "--json", "--no-cache", "--quiet"]
    if task.file is not None:  # a function brings its samples along
        columns = [torch.cat([x[None] for x in column]).numpy() for column in zip(*task.given(), strict=True)]
        np.savez(samples, *columns)
        words += ["--calibration", str(samples)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = json.loads(done.stdout)["accuracy"]["output_sqnr_db"]
    program = load_program(out)

    def run(*sample: torch.Tensor) -> list[torch.Tensor]:
        return [torch.from_numpy(x) for x in program.run(sample)]

    return Made(run, math.inf if said is None else said, seconds)


def ours(task: Task, samples: Sequence[Sample] | None = None, **options: Any) -> Made:
    """What the command quantizes with, in this process."""
    told: list[Any] = []
    model = quantize_model(
        task.module, task.given() if samples is None else samples, watch=told.append, **options
    )
    said = told[0].as_dict()["output_sqnr_db"]
    return Made(model, math.inf if said is None else said)


def xnnpack(task: Task) -> Made:
    """torchao's PT2E with ExecuTorch's XNNPACK quantizer."""
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    exported = export_model(task.module, task.given()[0]).module(check_guards=False)
    prepared = prepare_pt2e(exported, quantizer)
    with torch.no_grad():
        for sample in task.given():
            prepared(*sample)
    return Made(convert_pt2e(prepared))


def onnxruntime(task: Task) -> Made:
    """onnxruntime's static quantization of the network's file, or of what PyTorch exports."""
    import onnx
    import onnxruntime as ort
    from onnx.version_converter import convert_version
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    folder = Path(tempfile.mkdtemp())
    plain = task.file
    if plain is None:
        plain = folder / "float.onnx"
        torch.onnx.export(task.module, task.given()[0], plain, verbose=False, external_data=False)
    loaded = onnx.load(plain)
    if next(opset.version for opset in loaded.opset_import if not opset.domain) < _PER_CHANNEL:
        plain = folder / "newer.onnx"
        onnx.save(convert_version(loaded, _PER_CHANNEL), plain)
    given = ort.InferenceSession(plain, providers=["CPUExecutionProvider"]).get_inputs()
    names = [i.name for i in given if i.name not in task.fixed]

    def feed(sample: Sequence[torch.Tensor]) -> dict[str, Any]:
        return dict(zip(names, (x.numpy() for x in sample), strict=True)) | task.fixed

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter([feed(sample) for sample in task.given()])

        def get_next(self) -> Any:
            return next(self.left, None)

    ready, made = folder / "ready.onnx", folder / "int8.onnx"
    try:
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
    except Exception:  # of a file that it cannot optimize it is not needed
        ready = plain
    quantize_static(ready, made, Reader(), per_channel=True, activation_type=QuantType.QInt8,
                    weight_type=QuantType.QInt8)  # fmt: skip
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(made, options, providers=["CPUExecutionProvider"])

    def run(*sample: torch.Tensor) -> list[torch.Tensor]:
        return [torch.from_numpy(x) for x in session.run(None, feed(sample))]

    return Made(run)


# --------------------------------------------------------------------------------------------------
# Steps that can be left out

_CANONICAL = ("RemoveNeutralConstants", "FoldAffine", "MergeBranches", "FactorOut", "JoinAffine")
_OLD_FLOOR = 2.0**-12  # of torch's observers


@dataclass(frozen=True)
class Left:
    """A step that is left out: what it is, what is put in its place, and options that switch it off."""

    text: str
    replaced: dict[str, Any]
    options: dict[str, Any]


def _but(method: str) -> dict[str, Any]:
    return {"accuracy": ",".join(name for name in LEVELS["balanced"] if name != method)}


STEPS = {
    "functions": Left(
        "functions of one tensor rounded once",
        {"openneutron.quantize.annotation.fused_groups._functions": lambda nodes, grower, taken: []},
        {},
    ),
    "canonical": Left(
        "affine steps folded into layers, branches merged",
        {
            "openneutron.quantize.quantizer.ATEN_PASSES": tuple(
                p for p in ATEN_PASSES if p.name not in _CANONICAL
            )
        },
        {},
    ),
    "scales": Left(
        "scales of their own for what is joined at the outputs",
        {"openneutron.quantize.quantizer.different_parts": lambda *_: set()},
        {},
    ),
    "channels": Left("a weight scale per output channel", {}, {"per_channel": False}),
    "floor": Left(
        "scales without a floor (2^-12 is put back)",
        {"openneutron.quantize.annotation.number_formats.FLOOR": _OLD_FLOOR},
        {},
    ),
    "equalize": Left("channels scaled to like size", {}, _but("equalize")),
    "ranges": Left("ranges by what they do at the outputs", {}, _but("ranges")),
    "round": Left("weights rounded together", {}, _but("round")),
    "float": Left("layers kept in float where nothing else helps", {}, {"keep_float_budget": 0.0}),
}


def without(task: Task, step: str) -> Made:
    """Ours with a step left out."""
    left = STEPS[step]
    with ExitStack() as stack:
        for name, stand_in in left.replaced.items():
            stack.enter_context(patch(name, stand_in))
        return ours(task, **left.options)


WAYS: dict[str, Callable[[Task], Made]] = {
    "ours": command,
    "XNNPACK's quantizer": xnnpack,
    "onnxruntime": onnxruntime,
}
