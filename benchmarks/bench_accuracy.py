"""Int8 against float on trained networks, on inputs that calibration has not seen.

    python benchmarks/bench_accuracy.py [PART ...] [--only ours,xnnpack,onnxruntime] [--without STEP ...]

Parts `yolo`, `detector`, `recogniser`, `silero` and `efficientnet` are networks of others
(`trained_networks`), quantized as `openneutron compile` does without options; beside them are ExecuTorch's
XNNPACK quantizer and onnxruntime's static quantization (QDQ, minimum and maximum), both per channel and as
they come. "said" is the error at the outputs that the command prints, "found" the same on the test inputs:
both in decibel, of the worst output. CPU seconds are of quantizing alone.

`--without` leaves steps out, one row for each, so that one sees what they are worth:
%(steps)s

`failing`: a small MobileNetV2 trained on the digits, its channels then rescaled at random by up to 100
without changing the float function: what a scale per tensor cannot hold.
`zoo`: small networks in both recipes, the levels beside calibration alone.
`observing`: the time of the observers alone.

Quantized models are run in PyTorch, rounded where the compiled program rounds.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from trained_networks import TASKS, Run, Sample, Task, decibel

from openneutron.passes import ATEN_PASSES
from openneutron.pipeline import quantize_model
from openneutron.quantize.export import export_model
from openneutron.quantize.plan import LEVELS

OURS, PER_TENSOR = "ours", "ours, `--per-tensor`"
PARTS = (*TASKS, "failing", "zoo", "observing")
BALANCED = LEVELS["balanced"]
_PER_CHANNEL = 13  # the first opset that has scales per channel
_STEPWISE = 256  # inputs of a stream that are judged one by one


# --------------------------------------------------------------------------------------------------
# Ways to quantize


def ours(task: Task, **options: Any) -> tuple[Run, str]:
    """As the command does, and the figure it prints."""
    told: list[Any] = []
    quantized = quantize_model(task.module, task.calibration, watch=told.append, **options)
    said = told[0].as_dict()["output_sqnr_db"]
    return quantized, "-" if said is None else f"{said:.1f}"


def xnnpack(task: Task) -> tuple[Run, str]:
    """torchao's PT2E with ExecuTorch's XNNPACK quantizer."""
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    exported = export_model(task.module, task.calibration[0]).module(check_guards=False)
    prepared = prepare_pt2e(exported, quantizer)
    with torch.no_grad():
        for sample in task.calibration:
            prepared(*sample)
    return convert_pt2e(prepared), "-"


def onnxruntime(task: Task) -> tuple[Run, str]:
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
        torch.onnx.export(task.module, task.calibration[0], plain, verbose=False, external_data=False)
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
            self.left = iter([feed(sample) for sample in task.calibration])

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

    return run, "-"


# --------------------------------------------------------------------------------------------------
# Steps that can be left out

_CANONICAL = ("RemoveNeutralConstants", "FoldAffine", "MergeBranches", "FactorOut", "JoinAffine")
# A name, what it is, what is put in its place, and options.
STEPS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "functions": (
        "chains of element-wise operators rounded once",
        {"openneutron.quantize.groups._functions": lambda nodes, grower, taken: []},
        {},
    ),
    "canonical": (
        "affine steps folded into layers, branches merged",
        {
            f"openneutron.{place}.ATEN_PASSES": tuple(p for p in ATEN_PASSES if p.name not in _CANONICAL)
            for place in ("quantize.quantizer",)
        },
        {},
    ),
    "scales": (
        "scales of their own for what is joined at the outputs",
        {"openneutron.quantize.quantizer.different_parts": lambda model, samples, find: set()},
        {},
    ),
    "channels": ("a weight scale per output channel", {}, {"per_channel": False}),
    "ranges": (
        "ranges by what they do at the outputs",
        {},
        {"accuracy": ",".join(m for m in BALANCED if m != "ranges")},
    ),
    "rounding": ("weights rounded together", {}, {"accuracy": ",".join(m for m in BALANCED if m != "round")}),
    "float": ("layers kept in float where nothing else helps", {}, {"keep_float_budget": 0.0}),
}


def without(task: Task, step: str) -> tuple[Run, str]:
    """Ours with a step left out."""
    _, replaced, options = STEPS[step]
    with ExitStack() as stack:
        for name, stand_in in replaced.items():
            stack.enter_context(patch(name, stand_in))
        return ours(task, **options)


# --------------------------------------------------------------------------------------------------
# The table


def rows_of(task: Task, only: Sequence[str], steps: Sequence[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The name of a row, and what quantizes the network for it."""
    if "ours" in only:
        yield OURS, lambda: ours(task)
        if task.name.startswith("EfficientNet") and "channels" not in steps:
            yield PER_TENSOR, lambda: ours(task, per_channel=False)
    for step in steps:
        yield f"{OURS} without {step}", lambda step=step: without(task, step)
    if "xnnpack" in only:
        yield "XNNPACK's quantizer", lambda: xnnpack(task)
    if "onnxruntime" in only:
        yield "onnxruntime", lambda: onnxruntime(task)


def table(names: Sequence[str], only: Sequence[str], steps: Sequence[str]) -> None:
    """Print a row for every network and way to quantize it."""
    print("| network | quantized by | figure | | wanted | said dB | found dB | CPU s |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for name in names:
        with redirect_stdout(sys.stderr):
            task = TASKS[name]()
        inputs: list[Sample] = []
        exact = task.run(recorded(task.module, inputs))
        for row, make in rows_of(task, only, steps):
            start = time.process_time()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model, said = make()
            except Exception as error:  # of the others: it cannot quantize the network
                if row.startswith(OURS):
                    raise
                print(f"| {task.name} | {row} | fails: {type(error).__name__} | | | | | |", flush=True)
                continue
            seconds = time.process_time() - start
            seen: list[Sample] = []
            found = task.run(recorded(model, seen))
            wanted = {OURS: f"{task.bar:g}", PER_TENSOR: "17"}.get(row, "")
            print(
                f"| {task.name} | {row} | {task.figure} | {task.score(exact, found):.3f} | {wanted} | "
                f"{said} | {unseen(model, inputs, exact, seen, found):.1f} | {seconds:.0f} |",
                flush=True,
            )
            if task.also is not None:
                figure, score = task.also
                print(f"| | {row} | {figure} | {score(exact, found):.3f} | | | | |", flush=True)


def recorded(model: Run, inputs: list[Sample]) -> Run:
    """The model, which notes what it is given."""

    def run(*sample: torch.Tensor) -> Any:
        inputs.append(sample)
        return model(*sample)

    return run


def unseen(
    model: Run, inputs: list[Sample], exact: list[list[torch.Tensor]], seen: list[Sample],
    found: list[list[torch.Tensor]],
) -> float:  # fmt: skip
    """The error of the worst output; of a stream on what the float model reads, so that nothing adds up."""
    same = all(torch.equal(a, b) for one, other in zip(inputs, seen, strict=True)
               for a, b in zip(one, other, strict=True))  # fmt: skip
    if not same:
        chosen = range(0, len(inputs), max(1, len(inputs) // _STEPWISE))
        with torch.no_grad():
            found = [list(model(*inputs[i])) for i in chosen]
        exact = [exact[i] for i in chosen]
    count = len(found[0]) if not same else len(exact[0])
    return min(decibel([[e[i]] for e in exact], [[f[i]] for f in found]) for i in range(count))


def failing(epochs: int) -> tuple[torch.nn.Module, list[Any], torch.Tensor, torch.Tensor]:
    """A small MobileNetV2 that has learned the digits, with channels of very different size."""
    from openneutron.models.data import load_digits
    from openneutron.models.mobilenet_v2 import MobileNetV2
    from openneutron.models.train import accuracy, train

    data = load_digits((1, 3, 64, 64), 10)
    torch.manual_seed(0)
    module = MobileNetV2(num_classes=10, width=0.35)
    train(module, data.train, epochs, rate=4e-3)
    print(f"MobileNetV2: {accuracy(module, data.test):.1%} of the digits in float")
    rescale(module.eval(), torch.cat([data.train.inputs, data.test.inputs]))
    samples = [(data.train.inputs[i : i + 1],) for i in range(32)]
    return module, samples, data.test.inputs, data.test.labels


def rescale(module: torch.nn.Module, seen: torch.Tensor, most: float = 100.0, seed: int = 0) -> None:
    """Scale channels between a batch norm and the convolution that alone reads it, by up to `most`.

    A channel that ReLU6 cuts on what is `seen` keeps its scale: the float function stays as it is.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs, tops = [], {}
    for block in module.modules():
        layers = [m for m in block.children() if isinstance(m, torch.nn.Conv2d | torch.nn.BatchNorm2d)]
        inner = [m for m in block.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.BatchNorm2d)]
        if not layers and len(inner) == 6:  # expansion, depthwise, projection, each with its batch norm
            pairs += [(inner[1], inner[2]), (inner[3], inner[4])]
    hooks = [
        norm.register_forward_hook(lambda m, args, y: tops.__setitem__(m, y.amax((0, 2, 3))))
        for norm, _ in pairs
    ]
    with torch.no_grad():
        before = module(seen)
        for hook in hooks:
            hook.remove()
        for norm, conv in pairs:
            scale = most ** torch.rand(norm.num_features, generator=generator)
            scale = torch.where(tops[norm] < 6, scale, 1.0)
            norm.weight /= scale
            norm.bias /= scale
            conv.weight *= scale.reshape((-1, 1, 1, 1) if conv.groups > 1 else (1, -1, 1, 1))
        after = module(seen)
    scaled = sum(int((top < 6).sum()) for top in tops.values())
    print(f"{scaled:,} of {sum(map(len, tops.values())):,} channels rescaled by up to {most:g}; "
          f"the float outputs differ by {_decibel(before, after):.0f} dB")  # fmt: skip


def rescaled(plans: list[str], epochs: int) -> None:
    """The share of digits that are right, with each plan, per tensor and per channel."""
    module, samples, test, labels = failing(epochs)
    print("| weights | plan | right |\n|---|---|---:|")
    for per_channel in (False, True):
        for plan in plans:
            quantized = quantize_model(module, samples, accuracy=plan, per_channel=per_channel)
            with torch.no_grad():
                found = torch.cat([quantized(part) for part in test.split(1)])
            weights = "per channel" if per_channel else "per tensor"
            print(f"| {weights} | {plan} | {_share(found, labels)} |", flush=True)


def _share(scores: torch.Tensor, labels: torch.Tensor) -> str:
    return f"{float((scores.argmax(1) == labels).double().mean()):.1%}"


def zoo(plans: list[str]) -> None:
    """Small networks of the zoo, trained: never worse than calibration alone, in both recipes."""
    from openneutron.models.zoo import find_model

    print("| network | recipe | method | agreement | SQNR dB |\n|---|---|---|---:|---:|")
    for name in ("cifarnet", "dscnn", "resnet8", "gru", "tcn", "tiny_vit"):
        entry = find_model(name)
        module, data = taught(entry), inputs_of(entry)
        samples, test = data[:32], data[32:]
        with torch.no_grad():
            exact = [_first(module(*x)) for x in test]
        for recipe in ("neutron", "imxrt700"):
            for plan in plans:
                quantized = quantize_model(module, samples, accuracy=plan, recipe=recipe)
                with torch.no_grad():
                    found = [_first(quantized(*x)) for x in test]
                a, b = torch.stack(exact), torch.stack(found)
                same = _share(b.flatten(0, -2), a.flatten(0, -2).argmax(1)) if a.shape[-1] > 1 else "-"
                print(f"| {name} | {recipe} | {plan} | {same} | {_decibel(a, b):.1f} |", flush=True)


def taught(entry: Any) -> torch.nn.Module:
    """The network with the weights that ship with it, or after some epochs of the digits."""
    from openneutron.models.data import load_digits
    from openneutron.models.train import train

    if entry.is_trained:
        return entry.build(trained=True)
    try:
        module: torch.nn.Module = entry.build(softmax=False)
    except TypeError:  # it gives scores anyway
        module = entry.build()
    if _reads_digits(entry):
        train(module, load_digits(entry.input_shapes[0], entry.classes).train, 4)
    return module.eval()


def _reads_digits(entry: Any) -> bool:
    return len(entry.input_shapes) == 1 and entry.classes is not None


def inputs_of(entry: Any, count: int = 232) -> list[tuple[torch.Tensor, ...]]:
    """The digits in the network's shape; for what takes no picture, drawn at random."""
    from openneutron.models.data import load_digits

    shapes = entry.input_shapes
    if _reads_digits(entry):
        data = load_digits(shapes[0], entry.classes)
        pictures = torch.cat([data.train.inputs[:32], data.test.inputs])[:count]
        return [(picture,) for picture in pictures.split(1)]
    g = torch.Generator().manual_seed(0)
    return [tuple(torch.randn(shape, generator=g) for shape in shapes) for _ in range(count)]


def _first(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[0]


def _decibel(exact: torch.Tensor, found: torch.Tensor) -> float:
    noise, signal = (exact - found).double().square().sum(), exact.double().square().sum()
    return 10 * math.log10(signal / noise) if noise else math.inf


def observing() -> None:
    """The time to observe tensors and to find their ranges, beside torchao's histogram observer."""
    from torchao.quantization.pt2e.observer import HistogramObserver

    from openneutron.quantize.observer import RangeObserver

    settings = {"dtype": torch.int8, "quant_min": -128, "quant_max": 127, "qscheme": torch.per_tensor_affine}
    g = torch.Generator().manual_seed(0)
    print("| values | torchao's histogram, CPU ms | ours | |\n|---:|---:|---:|---:|")
    for size in (10_000, 100_000, 1_000_000):
        seconds = []
        for kind in (HistogramObserver, RangeObserver):
            start = time.process_time()
            observer = kind(**settings)
            for _ in range(16):
                observer(torch.randn(size, generator=g))
            observer.calculate_qparams()
            seconds.append(time.process_time() - start)
        drawn = time.process_time()
        for _ in range(16):
            torch.randn(size, generator=g)
        drawn = time.process_time() - drawn
        a, b = ((s - drawn) * 1e3 for s in seconds)
        print(f"| 16 x {size:,} | {a:.0f} | {b:.0f} | {a / b:.1f} x |", flush=True)


def main() -> None:
    """Print the tables."""
    steps = "\n".join(f"  {name}: {text}" for name, (text, _, _) in STEPS.items())
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__ % {"steps": steps}, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=tuple(TASKS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--only", default="ours,xnnpack,onnxruntime", help="ways to quantize (default: all)")
    parser.add_argument(
        "--without", nargs="+", default=(), choices=STEPS, metavar="STEP", help=", ".join(STEPS)
    )
    parser.add_argument("--plans", default="fast,balanced,best", help="of failing and zoo")
    parser.add_argument("--epochs", type=int, default=20, help="of failing")
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    plans = args.plans.split(",")
    if unknown := [part for part in args.parts if part not in PARTS]:
        parser.error(f"there is no part '{unknown[0]}': {', '.join(PARTS)}")
    if names := [part for part in args.parts if part in TASKS]:
        table(names, args.only.split(","), args.without)
    if "failing" in args.parts:
        rescaled(plans, args.epochs)
    if "zoo" in args.parts:
        zoo([plan for plan in plans if plan in LEVELS])
    if "observing" in args.parts:
        observing()


if __name__ == "__main__":
    main()
