"""Quantization: NeutronQuantizer reads the operator table; post-training and training loops around it."""

from __future__ import annotations

from openneutron.quantize.loop import calibrate_and_quantize, train_and_quantize
from openneutron.quantize.quantizer import NeutronQuantizer

__all__ = ["NeutronQuantizer", "calibrate_and_quantize", "train_and_quantize"]
