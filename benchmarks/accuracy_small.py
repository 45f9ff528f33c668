"""Small networks for `bench_accuracy.py`: one made to fail, the zoo's, and the time of the observers.

`rescaled`: a small MobileNetV2 trained on the digits, its channels then rescaled at random by up to 100
without changing the float function: what a scale per tensor cannot hold.
`zoo`: small networks in both recipes, the levels beside calibration alone.
`observing`: the time of the observers alone.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from openneutron.pipeline import quantize_model


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

    from openneutron.quantize.annotation.observer import RangeObserver

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
