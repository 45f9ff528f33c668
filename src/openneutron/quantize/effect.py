"""What rounding and clipping a tensor does at the model's outputs, to choose its range by.

The error that a range makes is carried to the outputs by the model's derivative: of random sums of the
outputs, each tensor has a gradient, and the gradient times the error, summed over the tensor, is what the sum
is off by. Gradients are added up in bins of the tensor's values, so that one backward pass judges any number
of ranges, correlations between elements included: values that a layer behind ignores (below -3 before a
hard-swish) cost nothing to clip, a long tail that carries the answer costs what it carries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from openneutron import ops
from openneutron.fx import op_name
from openneutron.quantize.measure import scores_of
from openneutron.quantize.observer import RangeObserver, Responses
from openneutron.quantize.prepared import Sample, observers, replaced

_SUMS = 2  # random sums of the outputs for each sample


class _Tap(torch.nn.Module):
    """Stands for an observer and keeps what it sees, to be asked for its gradient."""

    def __init__(self, seen: list[Tensor]):
        super().__init__()
        self.seen = seen

    def forward(self, x: Tensor) -> Tensor:
        """The same values, as a tensor whose gradient is kept."""
        if not x.is_floating_point():
            return x
        x = x.detach().requires_grad_() if not x.requires_grad else x * 1.0
        x.retain_grad()
        self.seen.append(x)
        return x


def measure_effects(prepared: GraphModule, samples: Sequence[Sample]) -> int:
    """Tell every observer of a calibrated model what its tensor does at the outputs; how many are told."""
    watched = {n: o for n, o in observers(prepared).items() if isinstance(o, RangeObserver) and o.seen}
    seen: dict[RangeObserver, list[Tensor]] = {}
    taps: dict[str, torch.nn.Module] = {name: torch.nn.Identity() for name in observers(prepared)}
    for node in prepared.graph.nodes:
        observer = watched.get(str(node.target)) if node.op == "call_module" else None
        if observer is not None and not _is_rounded_already(node.args[0]):
            taps[str(node.target)] = _Tap(seen.setdefault(observer, []))
    found: dict[RangeObserver, list[Tensor]] = {observer: [] for observer in seen}
    generator = torch.Generator().manual_seed(0)
    with replaced(prepared, taps), torch.enable_grad():
        runner = _Scores(prepared)
        with torch.no_grad():
            powers = runner.powers(samples)
        for sample in samples:
            for tensors in seen.values():
                tensors.clear()
            scores = [
                score / power
                for score, power in zip(runner.of(sample), powers, strict=True)
                if score.requires_grad and power > 0
            ]
            for number in range(_SUMS if scores else 0):
                for tensor in (t for tensors in seen.values() for t in tensors):
                    tensor.grad = None
                _random_sum(scores, generator).backward(retain_graph=number + 1 < _SUMS)
                for observer, tensors in seen.items():
                    found[observer].append(_in_bins(observer, tensors))
    for observer, bins in found.items():
        if bins and any(bool(b.any()) for b in bins):
            observer.responses = Responses(*observer.extent, torch.stack(bins, 1))
    return sum(o.responses is not None for o in found)


def _is_rounded_already(node: Node) -> bool:
    """Whether a tensor has the values of another that is observed with it: rounding again changes nothing."""
    spec = ops.find(op_name(node)) if node.op == "call_function" else None
    return spec is not None and spec.keeps_values


def _random_sum(scores: list[Tensor], generator: torch.Generator) -> Tensor:
    """A sum of all scores with random signs."""
    signs = [torch.randint(0, 2, score.shape, generator=generator) * 2.0 - 1.0 for score in scores]
    return torch.stack([(s * score).sum() for s, score in zip(signs, scores, strict=True)]).sum()


def _in_bins(observer: RangeObserver, tensors: list[Tensor]) -> Tensor:
    """The sums of the gradients of all elements whose values fall into a bin."""
    low, width = observer.extent
    total = torch.zeros(Responses.BINS, dtype=torch.float64)
    for tensor in tensors:
        if tensor.grad is None:
            continue
        places = ((tensor.detach() - low) / width).floor_().clamp_(0, Responses.BINS - 1).long().reshape(-1)
        # A root of zero has no derivative; nor has anything that it is computed from there.
        gradient = tensor.grad.reshape(-1).double().nan_to_num(0.0, 0.0, 0.0)
        total += torch.bincount(places, gradient, minlength=Responses.BINS)
    return total


class _Scores(Interpreter):
    """Runs a model and gives its scores: outputs, before the functions that squash them."""

    def __init__(self, module: GraphModule):
        super().__init__(module)
        self._wanted = scores_of(module)
        self._kept: dict[Node, Tensor] = {}

    def run_node(self, n: Node) -> object:
        result = super().run_node(n)
        if n in self._wanted and isinstance(result, Tensor):
            self._kept[n] = result
        return result

    def of(self, sample: Sample) -> list[Tensor]:
        """The scores for a sample."""
        self._kept.clear()
        self.run(*(v.clone() if isinstance(v, Tensor) else v for v in sample))
        return [self._kept[n] for n in self._wanted if n in self._kept]

    def powers(self, samples: Sequence[Sample]) -> list[float]:
        """The root of the mean power of each score over samples: what its error is measured by."""
        rows = [[float(s.double().square().sum()) for s in self.of(sample)] for sample in samples]
        return [math.sqrt(sum(column) / len(rows)) for column in zip(*rows, strict=True)]
