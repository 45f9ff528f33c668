"""The parameters of the cycle estimate, each with its unit, its source and a default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any


def _parameter(value: float, unit: str, source: str) -> Any:
    return field(default=value, metadata={"unit": unit, "source": source})


_FITTED = "fitted to the published times of CifarNet, DS-CNN and MobileNetV1 0.25-128"
_ASSUMED = "assumption, not measured: "
# Instructions under QEMU (benchmarks/bench_cpu_cost.py), times 1.2 cycles each, which is assumed.
_COUNTED = "counted instructions x 1.2 cycles: "
_OURS = f"{_COUNTED}runtime/cpu_kernels, "


@dataclass(frozen=True)
class CostModel:
    """The parameters of the cycle estimate of one target, each with its unit and where it comes from.

    `compiler.cost` uses those of the NPU, `estimate.cpu_cost` those that begin with `cpu_`.
    """

    call_cycles: int = _parameter(
        500, "cycles per kernel call", f"{_FITTED}: the CPU starts the NPU and waits"
    )
    step_cycles: int = _parameter(
        250,
        "cycles per step of a cascade",
        f"{_ASSUMED}half a call: what a call decodes and computes, a stage's steps find done",
    )
    drain_cycles: float = _parameter(
        8,
        "cycles per tile of `pipes` outputs",
        f"{_ASSUMED}one accumulator is rescaled and written each cycle",
    )
    sram_bytes_per_cycle: float = _parameter(3, "bytes per cycle", f"{_FITTED}: reading and writing together")
    island_cycles: float = _parameter(
        4, "cycles per instruction and element", f"{_ASSUMED}two loads, a float operation and a store"
    )
    copy_setup_cycles: int = _parameter(500, "cycles per callback", f"{_ASSUMED}starting or awaiting a copy")
    flash_bytes_per_second: int = _parameter(
        1_000_000_000, "bytes per second", "data sheet: xSPI, 16 lanes at 250 MHz DDR"
    )
    cpu_frequency_hz: int = _parameter(324_000_000, "Hz", "the Cortex-M33's clock, as in NXP's logs")
    cpu_dispatch_cycles: int = _parameter(
        1_210,
        "cycles per operator",
        f"{_COUNTED}ExecuTorch finds and calls a kernel, which checks its arguments",
    )
    cpu_fast_quantize_cycles: float = _parameter(12, "cycles per element", f"{_OURS}float to int8")
    cpu_fast_dequantize_cycles: float = _parameter(8.3, "cycles per element", f"{_OURS}int8 to float")
    cpu_fast_element_cycles: float = _parameter(10.7, "cycles per element", f"{_OURS}sums, products, maxima")
    cpu_fast_function_cycles: float = _parameter(65, "cycles per element", f"{_OURS}softmax, exp, tanh")
    cpu_fast_move_cycles: float = _parameter(3.4, "cycles per element", f"{_OURS}transposes, other layouts")
    cpu_fast_mac_cycles: float = _parameter(4.8, "cycles per MAC", f"{_OURS}float products and convolutions")
    cpu_float_mac_cycles: float = _parameter(60, "cycles per MAC", f"{_COUNTED}portable float products")
    cpu_int8_mac_cycles: float = _parameter(
        2.5, "cycles per MAC", f"{_COUNTED}CMSIS-NN with the DSP extension"
    )
    cpu_int8_short_mac_cycles: float = _parameter(
        7.2, "cycles per MAC", f"{_COUNTED}depthwise and transposed convolutions, batches of products"
    )
    cpu_float_element_cycles: float = _parameter(
        50, "cycles per element", f"{_COUNTED}portable kernels of one tensor: abs, neg, sums"
    )
    cpu_broadcast_cycles: float = _parameter(
        750,
        "cycles per element",
        f"{_COUNTED}portable kernels of two tensors, which broadcast and promote types",
    )
    cpu_int8_element_cycles: float = _parameter(25, "cycles per element", f"{_COUNTED}CMSIS-NN and its like")
    cpu_function_cycles: float = _parameter(139, "cycles per element", f"{_COUNTED}log, erf, softmax")
    cpu_move_cycles: float = _parameter(6.6, "cycles per element", f"{_COUNTED}copies with computed indexes")
    cpu_quantize_cycles: float = _parameter(19, "cycles per element", f"{_COUNTED}the Cortex-M kernel")
    cpu_portable_quantize_cycles: float = _parameter(
        215, "cycles per element", f"{_COUNTED}the portable kernel"
    )
    cpu_dequantize_cycles: float = _parameter(32, "cycles per element", f"{_COUNTED}either kernel")
    cpu_transpose_cycles: float = _parameter(
        4, "cycles per byte", f"{_ASSUMED}the delegate's own transpose at a partition's border"
    )

    sources: tuple[tuple[str, str], ...] = ()  # of parameters whose value a chip has from elsewhere

    def table(self) -> Iterator[tuple[str, float, str, str]]:
        """Name, value, unit and source of every parameter."""
        own = dict(self.sources)
        for item in fields(self):
            if item.metadata:
                source = own.get(item.name, item.metadata["source"])
                yield item.name, getattr(self, item.name), item.metadata["unit"], source
