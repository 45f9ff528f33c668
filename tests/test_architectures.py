"""Networks in the manner of timm's and torchvision's: one partition each, and nothing computed on the CPU."""

from __future__ import annotations

import pytest

from openneutron import compile_model
from tests.architectures import NETWORKS, make

QUICK = {"convnext_v2", "efficientvit", "voice"}


@pytest.mark.parametrize(
    # Slow: large networks.
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS],
)
def test_network_is_one_partition(name: str) -> None:
    model, samples = make(name)
    program = compile_model(model, samples[0], calibration=samples)  # verified against the quantized model
    # A detector's boxes and scores keep scales of their own: what joins them is behind the dequantize step.
    joined = {"aten.cat.default"} if name == "yolo" else set()
    assert [(r.node.name, r.reject.reason) for r in program.rejected if r.op not in joined] == []
    assert len(program.partitions) == 1
