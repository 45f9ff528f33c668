"""RangeObserver: a histogram of what a tensor holds, and the range that int8 makes the least error with.

torchao's histogram observer moves one end by one bin at a time in a Python loop, every time its parameters
are asked for, and counts every value. Here bins are merged in pairs when values leave the range, so that no
count is ever split; of a large tensor the ends are seen of all values, the rest of some spread over it; and
all ranges of a grid are tried at once on the real rounding, zero point included; the result is kept.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchao.quantization.pt2e.observer import UniformQuantizationObserverBase

BINS = 2048
_LARGEST = 1e36  # of a value: the ends of the bins are float32, too
MINMAX, PERCENTILE, MSE, EFFECT = "minmax", "percentile", "mse", "effect"
CHOICES = (MINMAX, PERCENTILE, MSE, EFFECT)
COUNTED = 1 << 15  # values of one tensor that are put into bins; its ends are always seen
_GRID = 48  # ranges tried at once for one end
_TAIL = 1e-4  # what a percentile leaves out at either end
_LEAST = 1e-300  # of an error, to take its logarithm
_SHARES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.17, 0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_OWN = 0.3  # how much a tensor's own error counts beside that at the outputs: the power of one in the product
_MANY = 48  # samples; with fewer, others reach beyond what these have reached
_REACH = 4.0  # times as many samples as there are, for which a range has room: further nothing is known
_WHOLE = 0.9  # of what was seen: a range that holds no less was not cut on purpose
_NARROWEST = 0.01  # of the values' extent: fewer bins than steps would say nothing


@dataclass(frozen=True, eq=False)
class Responses:
    """How the model's outputs respond to errors of a tensor: gradients, summed up by bins of its values."""

    BINS: ClassVar[int] = 4096
    low: float
    width: float
    sums: Tensor  # a column for each trial
    squares: Tensor  # the mean over the trials
    function: Any = None  # of the values, if the gradients are of its result; see `_errors`

    def errors(self, scale: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
        """The squared error at the outputs, for every pair of parameters.

        Errors that go together (a clipped tail) are seen in the sums; of those that do not (rounding) a few
        trials say little, and the sum of their squares says all.
        """
        used = self.squares.nonzero().flatten()
        sums, squares = self.sums[used], self.squares[used]
        centers = self.low + (used.to(torch.float64) + 0.5) * self.width
        rounded = _rounded(centers, scale, zero, low, high)
        return sum(
            (
                share * ((error @ sums).square().mean(1) + error.square() @ squares)
                for share, error in _errors(self.function, centers, rounded)
            ),
            torch.zeros(len(rounded), dtype=torch.float64),
        )

    def __deepcopy__(self, memo: Any) -> Responses:
        return self  # nothing in it changes


class RangeObserver(UniformQuantizationObserverBase):
    """Observes a tensor; `choice` says which range of it is quantized."""

    def __init__(self, choice: str = MSE, **kwargs: Any):
        super().__init__(**kwargs)
        self.choice = choice
        self.min_val, self.max_val = math.inf, -math.inf
        self._low, self._width = 0.0, 0.0  # of the histogram: its start, and the width of a bin
        self._counts = torch.zeros(BINS, dtype=torch.float64)
        self._found: dict[str, tuple[float, float]] = {}
        self.responses: Responses | None = None
        self.has_margin = True  # where samples are few
        self._ends: list[tuple[float, float]] = []  # of the first samples
        self.function: Any = None  # the only one that reads the tensor, see `_errors`

    def forward(self, x_orig: Tensor) -> Tensor:
        """Count the values of a tensor; it is handed on as it is."""
        x = x_orig.detach()
        if x.numel() == 0:
            return x_orig
        low, high = (float(end) for end in torch.aminmax(x))
        if not (math.isfinite(low) and math.isfinite(high)):
            x = x[x.isfinite()]
            if x.numel() == 0:
                return x_orig
            low, high = (float(end) for end in torch.aminmax(x))
        if max(-low, high) > _LARGEST:
            x = x.clamp(-_LARGEST, _LARGEST)
            low, high = max(low, -_LARGEST), min(high, _LARGEST)
        self._found.clear()
        self.responses = None
        self.min_val, self.max_val = min(self.min_val, low), max(self.max_val, high)
        if len(self._ends) < _MANY:
            self._ends.append((low, high))
        self._cover(low, high)
        self._count(x.reshape(-1))
        return x_orig

    def reset(self) -> None:
        """Forget what was seen."""
        self.min_val, self.max_val, self._width = math.inf, -math.inf, 0.0
        self._counts.zero_()
        self._ends.clear()
        self._found.clear()
        self.responses = None

    def _cover(self, low: float, high: float) -> None:
        """Merge bins in pairs until the histogram holds these values."""
        low, high = min(low, 0.0), max(high, 0.0)
        if self._width == 0.0:
            if high > low:
                self._width = (high - low) * 1.001 / (BINS - 2)
                # Zero, the most frequent value of all, is on the edge of a bin.
                self._low = math.floor(low / self._width) * self._width
            return
        while low < self._low or high >= self._low + BINS * self._width:
            half = BINS // 2
            merged = self._counts.reshape(half, 2).sum(1)
            self._counts.zero_()
            if low < self._low:  # room below
                self._low -= BINS * self._width
                self._counts[half:] = merged
            else:
                self._counts[:half] = merged
            self._width *= 2

    def _count(self, x: Tensor) -> None:
        if self._width == 0.0:  # nothing but zeros so far
            return
        step = _step(x.numel())
        found = torch.histc(x[::step].float(), BINS, self._low, self._low + BINS * self._width)
        self._counts.add_(found, alpha=step)

    @property
    def seen(self) -> bool:
        """Whether there was anything to observe."""
        return self.min_val <= self.max_val

    @property
    def extent(self) -> tuple[float, float]:
        """Where the values begin, and how wide a bin of responses to them is."""
        low, high = min(self.min_val, 0.0), max(self.max_val, 0.0)
        return low, (high - low) / Responses.BINS or 1.0

    def range(self, choice: str | None = None) -> tuple[float, float]:
        """The range of values that is quantized, by this observer's choice or another."""
        choice = choice or self.choice
        if choice not in self._found:
            self._found[choice] = self._with_margin(*self._choose(choice))
        return self._found[choice]

    def let_have_margin(self, wanted: bool) -> None:
        """Whether the range of few samples has room for others."""
        if wanted != self.has_margin:
            self.has_margin = wanted
            self._found.clear()

    def _with_margin(self, low: float, high: float) -> tuple[float, float]:
        """A range of few samples, as wide as more of them are likely to need it.

        The largest values of samples spread about their own mean; if they are distributed as extreme values
        are, the largest of all grows with the logarithm of the number of samples. An end that samples have
        in common is a limit, and one far within what was seen was chosen to cut.
        """
        count = len(self._ends)
        if not (self.has_margin and 1 < count < _MANY) or high <= low:
            return low, high
        found = []
        lows, highs = zip(*self._ends, strict=True)
        for end, seen, ends in ((low, self.min_val, lows), (high, self.max_val, highs)):
            is_whole = end * seen > 0 and end / seen >= _WHOLE
            if is_whole and ends.count(seen) == 1:
                scale = statistics.stdev(ends) * math.sqrt(6) / math.pi  # of Gumbel's distribution
                more = min(scale * math.log(min(_MANY / count, _REACH)), abs(end) / 2)
                end += math.copysign(more, end)
            found.append(end)
        return found[0], found[1]

    def _choose(self, choice: str) -> tuple[float, float]:
        low, high = min(self.min_val, 0.0), max(self.max_val, 0.0)
        if choice == MINMAX or self._width == 0.0 or high <= low:
            return low, high
        if choice == EFFECT and self.responses is not None:
            return self._by_effect(self.responses, low, high)
        centers, counts = self._histogram()
        if choice == PERCENTILE:
            return self._percentile(centers, counts, low, high)
        return self._search(centers, counts, low, high)

    def _histogram(self) -> tuple[Tensor, Tensor]:
        """The middle of every bin that holds values, and how many."""
        used = self._counts.nonzero().flatten()
        return self._low + (used.to(torch.float64) + 0.5) * self._width, self._counts[used]

    def _percentile(self, centers: Tensor, counts: Tensor, low: float, high: float) -> tuple[float, float]:
        below = counts.cumsum(0) / counts.sum()
        first = centers[int((below < _TAIL).sum())]
        last = centers[min(int((below < 1 - _TAIL).sum()), len(centers) - 1)]
        half = self._width / 2
        return min(max(low, float(first) - half), 0.0), max(min(high, float(last) + half), 0.0)

    def _by_effect(self, responses: Responses, low: float, high: float) -> tuple[float, float]:
        """The range with the least error at the outputs: all pairs of ends on a grid, then finer ones.

        What is known at the outputs is of the samples at hand, as if all other tensors were exact. So the
        error of the tensor itself counts too: both are multiplied, which needs no common measure.
        """
        histogram = self._histogram()
        shares = torch.tensor(_SHARES, dtype=torch.float64)
        ends = [shares * end if end else shares[:1] for end in (low, high)]
        best = torch.tensor([[low, high]], dtype=torch.float64)
        for finer in (None, 0.1, 0.05, 0.025):
            if finer is not None:
                near = 1 + finer * torch.arange(-2.0, 3.0, dtype=torch.float64)
                ends = [(end * near).clamp(low, high) for end in best[0]]
            pairs = torch.cat([torch.cartesian_prod(*ends), best])
            pairs = pairs[pairs[:, 1] - pairs[:, 0] > _NARROWEST * (high - low)]
            errors = responses.errors(*self._units(pairs), self.quant_min, self.quant_max)
            own = self._squares(*histogram, pairs)
            both = errors.clamp(min=_LEAST).log() + _OWN * own.clamp(min=_LEAST).log()
            best = pairs[both.argmin()][None]
        return float(best[0, 0]), float(best[0, 1])

    def _search(self, centers: Tensor, counts: Tensor, low: float, high: float) -> tuple[float, float]:
        """Move one end after the other, on ever finer grids, to where the error is least."""
        best = torch.tensor([[low, high]], dtype=torch.float64)
        least = float(self._squares(centers, counts, best)[0])
        reach = 1.0
        for _ in range(4):
            for end in (1, 0):
                at = float(best[0, end])
                if at == 0.0:
                    continue
                full = (low, high)[end]
                near, far = max(at / full - reach, 0.02), min(at / full + reach, 1.0)
                grid = best.repeat(_GRID, 1)
                grid[:, end] = full * torch.linspace(near, far, _GRID, dtype=torch.float64)
                errors = self._squares(centers, counts, grid)
                found = int(errors.argmin())
                if float(errors[found]) < least:
                    best, least = grid[found : found + 1], float(errors[found])
            reach /= 6
        return float(best[0, 0]), float(best[0, 1])

    def _squares(self, centers: Tensor, counts: Tensor, ranges: Tensor) -> Tensor:
        """The error that each range makes: of the values or, if a function reads them, of its results."""
        rounded = _rounded(centers, *self._units(ranges), self.quant_min, self.quant_max)
        errors = _errors(self.function, centers, rounded)
        return torch.stack([share * (error.square() @ counts) for share, error in errors]).sum(0)

    def _units(self, ranges: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and zero point of every range, as torchao makes them."""
        steps = float(self.quant_max - self.quant_min)
        if self.qscheme == torch.per_tensor_symmetric:
            scale = (ranges.abs().amax(1) / (steps / 2)).clamp(min=float(self.eps))
            return scale, torch.zeros_like(scale)
        scale = ((ranges[:, 1] - ranges[:, 0]) / steps).clamp(min=float(self.eps))
        zero = (self.quant_min - (ranges[:, 0] / scale).round()).clamp(self.quant_min, self.quant_max)
        return scale, zero

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point."""
        low, high = self.range() if self.seen else (0.0, 0.0)
        if high <= low:  # nothing, or nothing but zeros: any scale will do
            low, high = 0.0, 1.0
        scale, zero = self._units(torch.tensor([[low, high]], dtype=torch.float64))
        return scale.to(torch.float32), zero.to(torch.int64)

    def extra_repr(self) -> str:
        """For printing."""
        return f"range={self.min_val:.4g} .. {self.max_val:.4g}, choice={self.choice}"


def _step(count: int) -> int:
    """The distance of values that are counted; in step with no dimension, or channels would be left out."""
    step = -(-count // COUNTED)
    while math.gcd(step, count) > 1:
        step += 1
    return step


def _errors(function: Any, centers: Tensor, rounded: Tensor) -> list[tuple[float, Tensor]]:
    """What is wrong for every pair of parameters: with the values, or with the function's results.

    Where parts of a tensor have functions of their own, of each part, with its share of the tensor.
    """
    found = []
    for share, part in getattr(function, "parts", ((1.0, function),)):
        exact, wrong = (v if part is None else part(v.float()).double() for v in (centers, rounded))
        found.append((share, wrong.sub_(exact).nan_to_num_(0.0, 0.0, 0.0)))
    return found


def _rounded(centers: Tensor, scale: Tensor, zero: Tensor, low: int, high: int) -> Tensor:
    """What every value becomes, for every pair of parameters."""
    scale, zero = scale[:, None], zero[:, None]
    return (centers[None] / scale).round_().add_(zero).clamp_(low, high).sub_(zero).mul_(scale)
