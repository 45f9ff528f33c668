"""The error of one layer: figures, the evidence they are made from, and the suggestion drawn from it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from openneutron.quantize.prepared_model.quality import decibel

LOWEST, HIGHEST = -128, 127  # of int8


@dataclass(frozen=True)
class Suggestion:
    """What would lower a layer's error, and why that is known."""

    kind: str  # per-channel, calibration, float, qat or inherited
    text: str
    layers: tuple[str, ...] = ()  # what belongs together, if the suggestion is about more than the layer


@dataclass(frozen=True)
class LayerError:
    """How far a layer's result is from the float one, and the simulator's from the quantized one.

    Ratios are in decibel, larger is better. `own` is what the layer adds when its inputs are exact; it is
    made of `weight` (quantized weights alone) and `rounding` (the exact result, rounded and clipped).
    """

    layer: str
    op: str
    edge: str | None  # the Edge node's name
    sqnr_db: float  # quantized against float
    max_error: float
    cosine: float
    own_sqnr_db: float
    weight_sqnr_db: float | None  # None: it has no weights
    rounding_sqnr_db: float
    clipped: float  # the part of its values that lies outside the range it was calibrated for
    range: tuple[float, float]  # what int8 can hold of it
    reached: tuple[float, float]  # what the samples reach
    wide_sqnr_db: float  # `rounding`, expected of a range as wide as the samples need
    per_channel_sqnr_db: float | None  # `weight`, tried with a scale for every output channel
    channel_spread: float | None  # largest weight of a channel over that of the smallest channel
    simulator_sqnr_db: float | None  # None: the layer runs on the CPU
    simulator_lsb: int | None  # largest difference of simulator and quantized PyTorch, in steps of the scale
    suggestion: Suggestion | None = None

    def as_dict(self) -> dict[str, Any]:
        """For reports; JSON has no infinity, so that an error of zero is null."""
        return {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in asdict(self).items()}


@dataclass
class Evidence:
    """Powers of signal and errors of one layer, added up over samples."""

    layer: str
    op: str
    scale: float
    zero_point: int
    edge: str | None = None
    channel_spread: float | None = None
    moves: bool = False  # it only moves values, which were rounded before
    powers: dict[str, float] = field(default_factory=dict)
    worst: float = 0.0
    simulator_worst: float | None = None
    count: int = 0
    outside: int = 0
    low: float = math.inf
    high: float = -math.inf

    def add(
        self,
        exact: np.ndarray,
        rounded: np.ndarray,
        own: np.ndarray,
        unrounded: np.ndarray,
        simulated: np.ndarray | None,
    ) -> None:
        """One sample: the float result, then with all errors, with its own, before rounding, on the NPU."""
        x, y = _flat(exact), _flat(rounded)
        low, high = self.range
        self._power("signal", x, 0)
        self._power("quantized", y, 0)
        self.powers["product"] = self.powers.get("product", 0.0) + float(x @ y)
        self._power("noise", x, y)
        self._power("own", x, _flat(own))
        self._power("weights", x, _flat(unrounded))
        steps = np.clip(np.rint(x / self.scale) + self.zero_point, LOWEST, HIGHEST)
        self._power("rounding", x, (steps - self.zero_point) * self.scale)
        self.worst = max(self.worst, float(np.abs(x - y).max(initial=0)))
        self.count += x.size
        self.outside += int(((x < low - self.scale / 2) | (x > high + self.scale / 2)).sum())
        self.low, self.high = min(self.low, float(x.min(initial=0))), max(self.high, float(x.max(initial=0)))
        if simulated is not None:
            z = _flat(simulated)
            self._power("simulator", x, z)
            self.simulator_worst = max(self.simulator_worst or 0.0, float(np.abs(y - z).max(initial=0)))

    def add_trial(self, exact: np.ndarray, tried: np.ndarray | None) -> None:
        """The same sample, computed with a weight scale per channel; None for a layer without weights."""
        if tried is not None:
            self._power("per_channel", _flat(exact), _flat(tried))

    @property
    def range(self) -> tuple[float, float]:
        """The values int8 can hold with these parameters."""
        return (LOWEST - self.zero_point) * self.scale, (HIGHEST - self.zero_point) * self.scale

    def error(self) -> LayerError:
        """The figures."""
        signal, noise = self.powers["signal"], self.powers["noise"]
        norm = math.sqrt(signal * self.powers["quantized"])
        wide = (max(self.high, 0.0) - min(self.low, 0.0)) / (HIGHEST - LOWEST)
        has_weights = "per_channel" in self.powers or self.powers["weights"] > 1e-9 * signal
        simulator = self.simulator_worst
        return LayerError(
            layer=self.layer,
            op=self.op,
            edge=self.edge,
            sqnr_db=decibel(signal, noise),
            max_error=self.worst,
            cosine=self.powers["product"] / norm if norm else 1.0,
            own_sqnr_db=math.inf if self.moves else decibel(signal, self.powers["own"]),
            weight_sqnr_db=decibel(signal, self.powers["weights"]) if has_weights else None,
            rounding_sqnr_db=decibel(signal, self.powers["rounding"]),
            clipped=self.outside / self.count if self.count else 0.0,
            range=self.range,
            reached=(self.low, self.high),
            wide_sqnr_db=decibel(signal, self.count * wide**2 / 12),  # the variance of rounding to a step
            per_channel_sqnr_db=(
                decibel(signal, self.powers["per_channel"]) if "per_channel" in self.powers else None
            ),
            channel_spread=self.channel_spread,
            simulator_sqnr_db=None if simulator is None else decibel(signal, self.powers["simulator"]),
            simulator_lsb=None if simulator is None else round(simulator / self.scale),
        )

    def _power(self, name: str, a: np.ndarray, b: np.ndarray | float) -> None:
        difference = a - b
        self.powers[name] = self.powers.get(name, 0.0) + float(difference @ difference)


def _flat(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64).ravel()
