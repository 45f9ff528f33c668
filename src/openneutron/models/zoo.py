"""The registry of zoo models: names, shapes and how to build them, without importing torch."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openneutron.diagnostics import fail, nearest
from openneutron.models.weights import load_weights, weights_path

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ZooEntry:
    """One model: where its class is, how it is made, what it takes."""

    name: str
    description: str
    cls: str  # "module:Class" below openneutron.models
    input_shapes: tuple[tuple[int, ...], ...]
    classes: int | None  # None: not a classifier
    arguments: dict[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    data: str = "digits"  # what its weights are trained on
    weights: str = ""  # the model whose weights these are, if not its own
    indices: tuple[int, ...] = ()  # of inputs that are indices, what they are below
    calibration: str = ""  # "module:function" that gives sequences to calibrate with

    @property
    def weights_name(self) -> str:
        """The name of the file of trained weights."""
        return f"{self.weights or self.name}_{self.data}"

    @property
    def is_trained(self) -> bool:
        """Whether trained weights ship with the package."""
        return weights_path(self.weights_name).exists()

    def build(self, seed: int = 0, *, trained: bool = False, **overrides: Any) -> torch.nn.Module:
        """A new model in eval mode; trained, or with random weights that are the same for the same seed."""
        import torch

        if trained and not self.is_trained:
            fail(
                "ON106",
                f"model {self.name}",
                "no trained weights ship with it",
                f"Make them: python -m openneutron.models.train {self.name}",
            )

        module, _, cls = self.cls.partition(":")
        builder = getattr(importlib.import_module(f"openneutron.models.{module}"), cls)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: torch.nn.Module = builder(**{**self.arguments, **overrides})
        if trained:
            load_weights(model, self.weights_name)
        return model.eval()

    def calibration_inputs(self) -> list[Any] | None:
        """Sequences to calibrate a model with that remembers, if there are any."""
        if not self.calibration:
            return None
        module, _, function = self.calibration.partition(":")
        found: list[Any] = getattr(importlib.import_module(f"openneutron.models.{module}"), function)()
        return found

    def example_inputs(self, seed: int = 0) -> tuple[torch.Tensor, ...]:
        """Random inputs of the model's shapes, the same for the same seed."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        if self.indices:
            limits = zip(self.indices, self.input_shapes, strict=True)
            return tuple(torch.randint(limit, shape, generator=generator) for limit, shape in limits)
        return tuple(torch.randn(shape, generator=generator) for shape in self.input_shapes)


_ENTRIES = (
    ZooEntry(
        "cifarnet",
        "CifarNet: three 5x5 convolutions, NXP's first example",
        "cifarnet:CifarNet",
        ((1, 3, 32, 32),),
        10,
        aliases=("cifar10",),
    ),
    ZooEntry(
        "mobilenet_v2",
        "MobileNetV2 1.0-224, parameter names as in torchvision",
        "mobilenet_v2:MobileNetV2",
        ((1, 3, 224, 224),),
        1000,
        aliases=("mobilenetv2",),
    ),
    ZooEntry(
        "mobilenet_v1_vww",
        "MobileNetV1 0.25-96, visual wake words (MLPerf Tiny)",
        "mobilenet_v1:MobileNetV1",
        ((1, 3, 96, 96),),
        2,
        {"alpha": 0.25, "resolution": 96, "num_classes": 2},
        aliases=("vww", "mlperf_tiny_visual_wake_words"),
    ),
    ZooEntry(
        "mobilenet_v1_025_128",
        "MobileNetV1 0.25-128, the size NXP publishes figures for",
        "mobilenet_v1:MobileNetV1",
        ((1, 3, 128, 128),),
        1001,
        {"alpha": 0.25, "resolution": 128},
    ),
    ZooEntry(
        "mobilenet_v1",
        "MobileNetV1 1.0-224: weights larger than half the SRAM",
        "mobilenet_v1:MobileNetV1",
        ((1, 3, 224, 224),),
        1001,
        aliases=("mobilenetv1",),
    ),
    ZooEntry(
        "resnet8",
        "ResNet-8, image classification (MLPerf Tiny)",
        "resnet8:ResNet8",
        ((1, 3, 32, 32),),
        10,
        aliases=("mlperf_tiny_image_classification",),
    ),
    ZooEntry(
        "dscnn",
        "DS-CNN, keyword spotting (MLPerf Tiny)",
        "dscnn:DSCNN",
        ((1, 1, 49, 10),),
        12,
        aliases=("kws", "mlperf_tiny_keyword_spotting"),
    ),
    ZooEntry(
        "autoencoder",
        "Deep autoencoder, anomaly detection (MLPerf Tiny)",
        "autoencoder:DeepAutoencoder",
        ((1, 640),),
        None,
        aliases=("anomaly", "mlperf_tiny_anomaly_detection"),
    ),
    ZooEntry(
        "tcn",
        "Temporal convolutional network: causal dilated 1-D convolutions",
        "tcn:TCN",
        ((1, 16, 64),),
        10,
    ),
    ZooEntry(
        "gru",
        "GRU classifier over a sequence of 16 steps",
        "gru:GRUClassifier",
        ((1, 16, 16),),
        10,
    ),
    ZooEntry(
        "tiny_vit",
        "Vision Transformer with one block",
        "tiny_vit:TinyViT",
        ((1, 3, 32, 32),),
        10,
        aliases=("vit",),
    ),
    ZooEntry(
        "keywords",
        "Ten spoken commands: depthwise temporal convolutions over a window of 1.28 s",
        "keywords:KeywordTCN",
        ((1, 40, 64),),
        12,
        data="speech",
    ),
    ZooEntry(
        "keywords_stream",
        "The same with the same weights, a frame of 20 ms at a time: it remembers the last ones",
        "keywords:KeywordTCN",
        ((1, 40, 1),),
        12,
        {"stream": True},
        data="speech",
        weights="keywords",
    ),
    ZooEntry(
        "tiny_lm",
        "Language model over bytes with a cache: RMSNorm, rotary positions, grouped queries, gated MLPs",
        "tiny_lm:TinyLM",
        ((1, 1), (1,)),
        None,
        aliases=("lm",),
        data="text",
        indices=(256, 256),
        calibration="text:calibration_texts",
    ),
)

ZOO: dict[str, ZooEntry] = {entry.name: entry for entry in _ENTRIES}
_ALIASES: dict[str, str] = {alias: entry.name for entry in _ENTRIES for alias in entry.aliases}


def find_model(name: str) -> ZooEntry:
    """The zoo entry of that name or alias; an unknown name is an error with a suggestion."""
    entry = ZOO.get(_ALIASES.get(name, name))
    if entry is None:
        fail("ON106", "model", f"there is no zoo model '{name}'", nearest(name, [*ZOO, *_ALIASES]))
    return entry


def is_known(name: str) -> bool:
    """Whether the zoo has a model of that name or alias."""
    return _ALIASES.get(name, name) in ZOO


def build_model(name: str, seed: int = 0, *, trained: bool = False, **overrides: Any) -> torch.nn.Module:
    """Build a zoo model by name; overrides are arguments of its class."""
    return find_model(name).build(seed, trained=trained, **overrides)


def example_inputs(name: str, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Random inputs for a zoo model."""
    return find_model(name).example_inputs(seed)
