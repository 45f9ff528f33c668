"""Equalization as a method: several ways of scaling channels are tried, and the best is taken if it helps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from openneutron.fx import watch
from openneutron.quantize.annotation.observer import RangeObserver
from openneutron.quantize.channel_scaling.absorb import absorb
from openneutron.quantize.channel_scaling.channel_groups import group_channels, seen_in_places
from openneutron.quantize.channel_scaling.channels import channels_of
from openneutron.quantize.channel_scaling.cross_layer import Equalized, equalize, trade_clamps
from openneutron.quantize.prepared_model.copies import copied
from openneutron.quantize.prepared_model.effect import tell_functions
from openneutron.quantize.prepared_model.model import Sample, in_float, layers_of, observers, replaced
from openneutron.quantize.prepared_model.quality import Quality
from openneutron.quantize.prepared_model.walk import affordable
from openneutron.quantize.samples import said_of, spread_over

Judge = Callable[[GraphModule], Quality]
_SCALED_DB = 3.0  # by which scaling must be better: less is chance, or lost again when weights are rounded
_ABSORB, _SCALE, _SCALE_BY_WEIGHTS, _TRADE = range(4)  # ways of equalizing
_NOTHING = Equalized(0, 0, 1.0)
_GROUPED_DB = 1.0  # by which tables for groups of channels must be better
_SHARES = (0.5, 0.75)  # of the ratio of channels' sizes, made up for where a layer mixes them
_TRADE_DB = 1.0  # by which the outputs must be better for a change of the float function


def equalized(
    prepared: GraphModule,
    samples: Sequence[Sample],
    judge: Judge,
    thorough: bool,
    groups: bool = True,
    is_wanted: bool = False,
) -> tuple[GraphModule | None, Equalized, str]:
    """The model scaled in the way that the judge likes best, observed on samples; how, and a text.

    None if it likes none better than the model as it is, which is calibrated. Without `groups` no operator is
    added, and the factors are of the model as it was given. If it `is_wanted`, samples kept back have shown
    that it helps, and only the way is still to be chosen.
    """
    # What a clamp cuts on one sample in a hundred must not be taken for what it never cuts.
    seen = samples if thorough else spread_over(samples, affordable(prepared, 256 << 20, 16, len(samples)))
    few = spread_over(samples, affordable(prepared, 32 << 20, 3, 8))
    start, text = _grouped(prepared, samples, judge) if groups else (prepared, [])
    chosen, what, how = start, _NOTHING, ""
    channels = channels_of(start)
    known = reached(start, seen if channels.clamps else few)
    ways = [_ABSORB, _SCALE, _SCALE_BY_WEIGHTS] + [_TRADE] * (thorough and bool(channels.clamps))
    best: Quality | None = None
    for way in ways if channels.outputs else ():
        trial = copied(start)
        extremes = known.of(trial)
        count = trade_clamps(trial, extremes.tops) if way == _TRADE else 0
        if way == _TRADE and not count:
            continue
        done = _NOTHING
        if way != _ABSORB:
            done = equalize(trial, extremes.tops if way != _SCALE_BY_WEIGHTS else None)
        moved = absorb(trial, *extremes.scaled(trial, done))
        if not done.channels and not moved:
            continue
        if best is None:
            # All ways are compared as they are on a few samples; only the best is observed on all of them.
            first = copied(start)
            observe(first, few)
            best = judge(first)
        observe(trial, few)
        score = judge(trial)
        if score.is_better_than(best, _TRADE_DB if way == _TRADE else 0.0 if is_wanted else _SCALED_DB):
            chosen, what, best = trial, done, score
            how = f"; {count} clamps (ReLU6) traded for ReLU, better at the outputs" if count else ""
            how += f"; {moved} high biases absorbed" if moved else ""
    if chosen is prepared:
        return None, _NOTHING, "no scaling of channels helps"
    if chosen is not start:
        observe(chosen, samples)
        scaled = f"{what.channels:,} channels of {what.layers} layers scaled by up to {what.largest:.3g}"
        text.append(scaled + how)
    return chosen, what, "; ".join(text)


def _grouped(prepared: GraphModule, samples: Sequence[Sample], judge: Judge) -> tuple[GraphModule, list[str]]:
    """The model with channels scaled by groups as the judge likes best, or as it is; what was done."""
    best, score, text = prepared, None, []
    known = seen_in_places(prepared, samples)
    for share in _SHARES:
        trial = copied(prepared)
        if not (scaled := group_channels(trial, known, share)):
            continue
        tell_functions(trial)
        observe(trial, samples, only=frozenset().union(*scaled))
        score = judge(prepared) if score is None else score
        if not (found := judge(trial)).is_better_than(score, _GROUPED_DB):
            break
        best, score, text = trial, found, [f"channels of {len(scaled)} tensors scaled by groups"]
    return best, text


def observe(
    prepared: GraphModule, samples: Iterable[Sample], only: Collection[RangeObserver] | None = None
) -> None:
    """Let the observers see samples, and nothing but them.

    Of those that choose ranges `only` some, where the others have seen the same before.
    """
    idle: dict[str, torch.nn.Module] = {}
    for name, observer in observers(prepared).items():
        if isinstance(observer, RangeObserver):
            if only is None or observer in only:
                observer.reset()
            else:
                idle[name] = torch.nn.Identity()
        elif hasattr(observer, "reset_min_max_vals"):
            observer.reset_min_max_vals()
    with torch.no_grad(), replaced(prepared, idle):
        for number, sample in enumerate(samples):
            with said_of(f"calibration sample {number}"):
                prepared(*sample)


@dataclass(frozen=True)
class Reached:
    """Of every channel of layers' results and of what clamps read: the largest size, and the least value."""

    tops: dict[Node, Tensor] = field(default_factory=dict)
    lows: dict[Node, Tensor] = field(default_factory=dict)

    def of(self, copied: GraphModule) -> Reached:
        """The same by the nodes of a copy."""
        names = {node.name: node for node in copied.graph.nodes}
        tops, lows = ({names[n.name]: v for n, v in side.items()} for side in (self.tops, self.lows))
        return Reached(tops, lows)

    def scaled(self, prepared: GraphModule, done: Equalized) -> tuple[dict[Node, Tensor], dict[Node, Tensor]]:
        """The least values and the largest sizes of layers' ends once their channels are scaled."""
        found: tuple[dict[Node, Tensor], dict[Node, Tensor]] = {}, {}
        for layer in layers_of(prepared):
            made, _ = done.factors.get(str(layer.weight.target), (None, None))
            factor = torch.tensor(1.0) if made is None else torch.from_numpy(made.copy())
            for side, values in zip(found, (self.lows, self.tops), strict=True):
                if layer.end in values:
                    side[layer.end] = values[layer.end] / factor
        return found


def reached(prepared: GraphModule, samples: Sequence[Sample]) -> Reached:
    """Of every layer's end, the largest size of each channel's values; of every clamp, of what it reads."""
    channels = channels_of(prepared)
    clamps = set(channels.clamps)
    ends = {layer.end for layer in channels.outputs} - clamps  # whose channels are dimension 1
    found = Reached()

    readers: dict[Node, list[Node]] = {end: [end] for end in ends}
    for clamp in clamps:
        readers.setdefault(clamp.all_input_nodes[0], []).append(clamp)

    def look(node: Node, value: Tensor) -> None:
        if value.ndim < 2:
            return
        low, high = value.movedim(1, 0).flatten(1).aminmax(dim=1)
        for of in readers[node]:
            top = high if of in clamps else torch.maximum(high, -low)
            found.tops[of] = torch.maximum(found.tops[of], top) if of in found.tops else top
            found.lows[of] = torch.minimum(found.lows[of], low) if of in found.lows else low

    with in_float(prepared):
        watch(prepared, samples, set(readers), look)
    return found
