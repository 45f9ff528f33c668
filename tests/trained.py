"""int8 .tflite networks as others give them: theirs from beside the checkout, else the zoo's alike."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

SHARED = Path(__file__).resolve().parents[2] / "shared"  # beside the checkout, perhaps
_STAND_INS = {"mlperf_tiny_ic_resnet8_int8": "resnet8", "mlperf_tiny_kws_dscnn_int8": "dscnn"}
NAMES = tuple(_STAND_INS)


@cache
def trained_model(name: str) -> Path:
    """The file: trained by others, or the zoo's network of this kind, quantized and written by our own."""
    given = SHARED / "models" / f"{name}.tflite"
    return given if given.exists() else _written(name)


def _written(name: str) -> Path:
    from openneutron.models.zoo import ZOO
    from openneutron.pipeline import convert_model

    entry = ZOO[_STAND_INS[name]]
    samples = [entry.example_inputs(seed) for seed in range(4)]
    model = entry.build(trained=entry.is_trained)
    file = Path(_folder().name) / f"{name}.tflite"
    file.write_bytes(convert_model(model, samples[0], calibration=samples, channels_last_io=True))
    return file


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="openneutron-trained-")
