"""What rounding and clipping a tensor does at the model's outputs, to choose its range by.

The error that a range makes is carried to the outputs by the model's derivative: of random sums of the
outputs, each tensor has a gradient, and the gradient times the error, summed over the tensor, is what the sum
is off by. Gradients are added up in bins of the tensor's values, so that one backward pass judges any number
of ranges, correlations between elements included: a long tail that carries the answer costs what it carries.

A derivative says nothing about large errors: below -3 a hard-swish is flat, and a value of -50 that is
clipped to -2 leaves the flat part. So where a tensor is read by a function of it, errors are those of the
function's result, computed for every bin, and the gradients are those of that result.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg

from openneutron import ops
from openneutron.fx import is_float, op_name, same_shape, tensor_of
from openneutron.quantize.annotation.observer import RangeObserver, Responses
from openneutron.quantize.prepared_model.model import Sample, behind, observers, replaced, value_of
from openneutron.quantize.prepared_model.quality import scores_of
from openneutron.quantize.samples import spread_over

_SUMS = 2  # random sums of the outputs for each sample
_POWERS = 8  # samples that say how large outputs are beside each other
_LONGEST = 32  # operators of a function


class _Tap(torch.nn.Module):
    """Stands for an observer and keeps what it sees, to be asked for its gradient."""

    def __init__(self, seen: list[Tensor]):
        super().__init__()
        self.seen = seen

    def forward(self, x: Tensor) -> Tensor:
        """The same values, as a tensor whose gradient is kept."""
        if not x.is_floating_point() or not torch.is_grad_enabled():
            return x
        x = x.detach().requires_grad_() if not x.requires_grad else x * 1.0
        x.retain_grad()
        self.seen.append(x)
        return x


def measure_effects(prepared: GraphModule, samples: Sequence[Sample]) -> int:
    """Tell every observer of a calibrated model what its tensor does at the outputs; how many are told.

    None where PyTorch cannot differentiate the model.
    """
    watched = {n: o for n, o in observers(prepared).items() if isinstance(o, RangeObserver) and o.seen}
    seen: dict[RangeObserver, list[Tensor]] = {}
    taps: dict[str, torch.nn.Module] = {name: torch.nn.Identity() for name in observers(prepared)}
    for node in prepared.graph.nodes:
        observer = watched.get(str(node.target)) if node.op == "call_module" else None
        if observer is None or _is_rounded_already(node.args[0]):
            continue
        taps[str(node.target)] = _Tap(seen.setdefault(observer, []))
    functions = functions_of(prepared)
    found: dict[RangeObserver, list[tuple[Tensor, Tensor]]] = {observer: [] for observer in seen}
    generator = torch.Generator().manual_seed(0)
    with replaced(prepared, taps), torch.enable_grad():
        runner = _Scores(prepared, {function.end for function in functions.values()})
        with torch.no_grad():
            powers = runner.powers(spread_over(samples, _POWERS))
            powers = powers if all(powers) else runner.powers(samples)  # an output that is mostly silent
        for sample in samples:
            for tensors in seen.values():
                tensors.clear()
            places: dict[int, Tensor] = {}  # of tensors' values, which all sums share
            try:
                scores = [
                    score / power
                    for score, power in zip(runner.of(sample), powers, strict=True)
                    if score.requires_grad and power > 0
                ]
                for number in range(_SUMS if scores else 0):
                    for tensor in (t for tensors in (*seen.values(), runner.ends.values()) for t in tensors):
                        tensor.grad = None
                    _random_sum(scores, generator).backward(retain_graph=number + 1 < _SUMS)
                    for observer, tensors in seen.items():
                        ends = [runner.ends[functions[observer].end]] if observer in functions else tensors
                        found[observer].append(_in_bins(observer, tensors, ends, places))
            except RuntimeError:  # without gradients it runs: an operator has no derivative, or a broken one
                return 0
    for observer, bins in found.items():
        if any(bool(sums.any()) for sums, _ in bins):
            of = functions.get(observer)
            observer.responses = Responses(*observer.extent, *_joined(bins), of)
    return sum(o.responses is not None for o in found)


@dataclass(frozen=True, eq=False)
class Function:
    """What element-wise operators with numbers make of one tensor."""

    start: Node  # the observer that it is read through
    nodes: tuple[Node, ...]  # in order
    numbers: dict[Node, Tensor]

    def __deepcopy__(self, memo: Any) -> Function:
        return self  # nothing in it changes, and its nodes are those of one graph

    @property
    def end(self) -> Node:
        """The operator whose result leaves the function."""
        return self.nodes[-1]

    def __call__(self, values: Tensor) -> Tensor:
        """Its results for any values."""
        known: dict[Node, Any] = {**self.numbers, self.start: values}
        for node in self.nodes:
            args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = node.target(*args, **kwargs)  # type: ignore[operator]  # a call_function
        return known[self.end]


@dataclass(frozen=True, eq=False)
class GroupedFunction:
    """Functions of groups of channels, whose results `end` joins; each with its share of the channels."""

    end: Node
    parts: tuple[tuple[float, Function], ...]

    def __deepcopy__(self, memo: Any) -> GroupedFunction:
        return self


def functions_of(prepared: GraphModule) -> dict[RangeObserver, Function | GroupedFunction]:
    """Of every observer whose tensor is read by a function, and by nothing else, that function."""
    nodes: dict[RangeObserver, list[Node]] = {}
    for node in prepared.graph.nodes:
        observer = prepared.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(observer, RangeObserver):
            nodes.setdefault(observer, []).append(node)
    found: dict[RangeObserver, Function | GroupedFunction | None] = {
        observer: _grouped(prepared, starts) if len(starts) > 1 else function_after(prepared, starts[0])
        for observer, starts in nodes.items()
    }
    return {observer: function for observer, function in found.items() if function is not None}


def tell_functions(prepared: GraphModule) -> None:
    """Tell observers which function reads their tensor: its results are what must be right."""
    for observer, function in functions_of(prepared).items():
        observer.function = function


def _grouped(prepared: GraphModule, starts: list[Node]) -> GroupedFunction | None:
    """The functions that read slices of a tensor, and whose results are joined again."""
    whole, *slices = starts
    if {node.args[0] for node in slices} != set(whole.users) or any(
        op_name(node) != "aten.slice.Tensor" for node in whole.users
    ):
        return None
    functions = [function_after(prepared, start) for start in slices]
    ends = {reader for f in functions if f is not None for user in f.end.users for reader in user.users}
    if None in functions or len(ends) != 1 or op_name(end := ends.pop()) != "aten.cat.default":
        return None
    sizes = [float(tensor_of(behind(start)).numel()) for start in slices]  # type: ignore[union-attr]
    pairs = zip(sizes, functions, strict=True)
    return GroupedFunction(end, tuple((size / sum(sizes), f) for size, f in pairs if f is not None))


def function_after(prepared: GraphModule, start: Node) -> Function | None:
    """The function that alone reads a tensor through an observer; None if something else reads it too."""
    found: dict[Node, None] = {}
    numbers: dict[Node, Tensor] = {}
    left = set(start.users)
    while left:
        ready = [n for n in left if all(s is start or s in found or is_number(s) for s in n.all_input_nodes)]
        if not ready or not _is_element_wise(ready[0], start) or len(found) == _LONGEST:
            return None
        node = ready[0]
        left.remove(node)
        found[node] = None
        numbers |= {n: value_of(prepared, behind(n)) for n in node.all_input_nodes if is_number(n)}
        inside = [user for user in node.users if user.op == "call_function"]
        if (inside and len(inside) != len(node.users)) or (not inside and left):
            return None
        left |= set(inside)
    return Function(start, tuple(found), numbers) if found else None


def is_number(node: Node) -> bool:
    """Whether a node is a constant of one element, observed or not."""
    source = behind(node)
    value = tensor_of(source)
    return source.op == "get_attr" and value is not None and value.numel() == 1


def _is_element_wise(node: Node, start: Node) -> bool:
    """Whether every element of a result depends on the same element of a tensor and on nothing else."""
    spec = ops.find(op_name(node)) if node.op == "call_function" and is_float(node) else None
    if spec is None or spec.real is None or spec.real.reduces or spec.moves_values:
        return False
    result, source = tensor_of(node), tensor_of(behind(start))
    return result is not None and source is not None and same_shape(result, source)


def _is_rounded_already(node: Node) -> bool:
    """Whether a tensor has the values of another that is observed with it: rounding again changes nothing."""
    spec = ops.find(op_name(node)) if node.op == "call_function" else None
    return spec is not None and spec.keeps_values


def _random_sum(scores: list[Tensor], generator: torch.Generator) -> Tensor:
    """A sum of all scores with random signs."""
    signs = [torch.randint(0, 2, score.shape, generator=generator) * 2.0 - 1.0 for score in scores]
    return torch.stack([(s * score).sum() for s, score in zip(signs, scores, strict=True)]).sum()


def _in_bins(
    observer: RangeObserver, tensors: list[Tensor], ends: list[Tensor], known: dict[int, Tensor]
) -> tuple[Tensor, Tensor]:
    """The sums of the gradients and of their squares, by the bins that the tensors' values fall into."""
    low, width = observer.extent
    sums, squares = (torch.zeros(Responses.BINS, dtype=torch.float64) for _ in range(2))
    for tensor, end in zip(tensors, ends, strict=True):
        if end.grad is None:
            continue
        if (places := known.get(id(tensor))) is None:
            inside = ((tensor.detach() - low) / width).clamp_(0, Responses.BINS - 1)  # truncated: a floor
            places = known[id(tensor)] = inside.to(torch.int32).reshape(-1)
        # A root of zero has no derivative; nor has anything that it is computed from there.
        gradient = end.grad.reshape(-1).double().nan_to_num(0.0, 0.0, 0.0)
        sums += torch.bincount(places, gradient, minlength=Responses.BINS)
        squares += torch.bincount(places, gradient.square(), minlength=Responses.BINS)
    return sums, squares


def _joined(bins: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([sums for sums, _ in bins], 1), torch.stack([squares for _, squares in bins]).mean(0)


class _Scores(Interpreter):
    """Runs a model and gives its scores: its outputs, and what the functions that squash them read."""

    def __init__(self, module: GraphModule, ends: Collection[Node] = ()):
        super().__init__(module)
        self._wanted = scores_of(module)
        self._ends = ends
        self._kept: dict[Node, Tensor] = {}
        self.ends: dict[Node, Tensor] = {}  # results of functions, to be asked for their gradients

    def run_node(self, n: Node) -> object:
        result = super().run_node(n)
        if n in self._ends and isinstance(result, Tensor) and result.requires_grad:
            result.retain_grad()
            self.ends[n] = result
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
