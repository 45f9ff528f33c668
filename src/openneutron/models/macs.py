"""Counting multiply-accumulates, the unit all figures about the NPU are in."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count_macs(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> int:
    """MACs of convolutions and matrix products in one run; taps on padding count, as they do in hardware."""
    # The fused attention kernels of the CPU are unknown to torch's counter, their matrix products are not.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops() // 2
