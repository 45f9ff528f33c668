"""Mixed precision as a last resort: which layers to keep float for what they give back at the outputs.

On a calibrated model every operator, every pair of neighbours and every run of arithmetic between layers with
weights (the squares, sum and root of a magnitude) can be left unrounded. What each is worth at the outputs is
told by gradients; the most promising are tried, and what they give is set against the cycles that the CPU
needs for them. What looks best for its price is compiled for real: it stays float only if the outputs do get
better on samples kept back and the program stays within the budget.

Weights that were changed to make up for what is rounded would be wrong where less is: candidates are tried
with the weights as they were given, and of what is chosen the weights are changed anew.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from openneutron import ops
from openneutron.diagnostics import fail
from openneutron.estimate.cpu_cost import cpu_cycles, operator_of
from openneutron.fx import op_name, values_of
from openneutron.options import CompileOptions
from openneutron.package.program import package_program
from openneutron.quantize.annotation.observer import RangeObserver
from openneutron.quantize.convert import convert_calibrated
from openneutron.quantize.export import Inputs, export_model
from openneutron.quantize.plan import FAST, LEVELS, AccuracyPlan
from openneutron.quantize.prepared_model.copies import copied
from openneutron.quantize.prepared_model.effect import GroupedFunction, functions_of, measure_effects
from openneutron.quantize.prepared_model.model import (
    behind,
    layers_of,
    let_biases_fit,
    observers,
    readers,
    set_value,
    value_of,
)
from openneutron.quantize.prepared_model.part_errors import lacking_db, part_errors
from openneutron.quantize.prepared_model.quality import (
    Quality,
    Run,
    chosen_by_others,
    quality,
    quantized_run,
    with_gain,
)
from openneutron.quantize.prepared_model.walk import affordable
from openneutron.quantize.refine import Refined
from openneutron.recipes.parts import lower_program
from openneutron.recipes.recipe import find_recipe
from openneutron.targets.chip import Target
from openneutron.targets.table import find_target

Unit = frozenset[str]  # nodes by name
GAIN_DB = 0.3  # at the outputs: less is not worth a float layer
WANTED_DB = 20.0  # an output, or a part of one, below it is helped without being asked
SHARE = 0.05  # of the estimated cycles, for that
_VERIFIED = {True: 6, False: 2}  # candidates that are compiled, if a budget was given or not
_TRIED = {True: 96, False: 12}  # candidates that are measured
_MOST = 24  # units of a group
_AGAIN = 6  # candidates measured again once one was chosen


@dataclass(frozen=True)
class KeptFloat:
    """What is kept float, what that gives at the worst of the outputs' parts, and what it costs."""

    layers: tuple[str, ...]
    before_db: float
    after_db: float
    cycles_before: int
    cycles_after: int
    budget: float
    asked: bool  # for a budget; otherwise an output was far from float

    def as_dict(self) -> dict[str, Any]:
        """For summaries; JSON has no infinity, so that an error of zero is null."""
        return {
            "layers": list(self.layers),
            "before_db": None if math.isinf(self.before_db) else self.before_db,
            "after_db": None if math.isinf(self.after_db) else self.after_db,
            "cycles_before": self.cycles_before,
            "cycles_after": self.cycles_after,
            "budget": self.budget,
            "asked": self.asked,
        }


@dataclass(frozen=True)
class _Candidate:
    nodes: Unit
    cycles: int
    gain_db: float


@dataclass(frozen=True)
class FloatBudget:
    """What may be spent on layers in float: a share of the cycles, or None for what is done unasked."""

    share: float | None
    options: CompileOptions
    recipe: str
    core: str | None

    def __post_init__(self) -> None:
        if self.share is not None and not 0 <= self.share <= 10:
            fail("ON104", "option keep_float_budget", f"must be a share of the cycles (got {self.share})",
                 "For example 5% or 0.05; 0 keeps nothing float.")  # fmt: skip
        if self.share and self.options.converter != "open":
            fail("ON104", "option keep_float_budget",
                 f"the converter {self.options.converter} tells no cycles",
                 "Leave it out, or name the layers with keep_float.")  # fmt: skip

    def spend(
        self,
        prepared: GraphModule,
        refined: Refined,
        progress: Callable[[float], None] = lambda part: None,
    ) -> tuple[GraphModule, Refined]:
        """A calibrated model with what is worth it left in float; what that gives and costs is noted."""
        if not self._is_wanted(refined):
            return prepared, refined
        asked, exact = self.share is not None, refined.exact
        # Of all outputs: unasked, one that lacks it must gain so much, which is little in the mean of them.
        least_db = GAIN_DB if asked else 0.0
        share = SHARE if self.share is None else self.share
        target = find_target(self.options.config, self.options.converter)
        # Unasked, nothing is compiled before there is something to gain.
        first = self._cycles(prepared, refined.held[0]) if asked else None
        about = _about_cycles(prepared, target) if first is None else first
        run = before_run = quantized_run(prepared, refined.held)
        best = before = quality(exact, run)
        shown = refined.quality
        shifts = _shifts(best, shown)
        search = _Search(prepared, refined, target, share * about, asked, before)
        left, chosen, model, now = search.candidates(progress), frozenset[str](), prepared, first
        if not left and not asked:
            return prepared, refined
        for done in range(_VERIFIED[asked]):
            if not left:
                break
            # Unasked it is for an answer that is of use: what gives most first, whatever it costs of the 5 %.
            candidate = max(left, key=lambda c: c.gain_db / (max(1, c.cycles) if asked else 1))
            left.remove(candidate)
            trial = unrounded(prepared, chosen | candidate.nodes, refined)
            trial_run = quantized_run(trial, refined.held)
            found = quality(exact, trial_run)
            lacking = [lacking_db(trial, exact, r, WANTED_DB, shifts) for r in (run, trial_run)]
            helps = asked or lacking[0] - lacking[1] >= GAIN_DB
            if helps and found.is_better_than(best, least_db):
                first = self._cycles(prepared, refined.held[0]) if first is None else first
                cycles = self._cycles(trial, refined.held[0])
                if cycles <= first * (1 + share):
                    if shown is not None:
                        # Of folds, the samples are those that the model is fitted to.
                        shown = (
                            with_gain(shown, best, found)
                            if refined.folded
                            else chosen_by_others(shown, best, found, least_db)
                        )
                    chosen, model, best, now = chosen | candidate.nodes, trial, found, cycles
                    run = trial_run
                    left = search.again(left, chosen)
            progress(0.5 + 0.5 * (done + 1) / _VERIFIED[asked])
        if not chosen and not asked:
            return prepared, refined
        assert first is not None and now is not None
        parts = refined.parts if run is before_run else part_errors(model, exact, run, refined.held, shifts)
        kept = KeptFloat(
            tuple(n.name for n in prepared.graph.nodes if n.name in chosen),
            _worst(refined.parts, before.output_db), _worst(parts, best.output_db), first, now, share, asked,
        )  # fmt: skip
        parts = refined.parts if refined.folded else parts
        return model, replace(refined, quality=shown, parts=parts, kept_float=kept.as_dict())

    def may_be_wanted(self, plan: AccuracyPlan) -> bool:
        """Whether there is anything to spend with a plan: it was asked for, or the plan does so unasked."""
        if self.share is not None:
            return self.share > 0
        return self.options.converter == "open" and plan.name in LEVELS and plan.name != FAST

    def _is_wanted(self, refined: Refined) -> bool:
        """Whether it was asked for, or an output is far from float without."""
        if self.share is None and refined.quality is not None:
            return _worst(refined.parts, refined.quality.output_db) < WANTED_DB
        return bool(self.share)

    def _cycles(self, prepared: GraphModule, example: Inputs) -> int:
        """The cycles of the program that a calibrated model makes."""
        model = copy.deepcopy(prepared)
        let_biases_fit(model)
        program = {"forward": export_model(convert_calibrated(model), example)}
        lowered = lower_program(program, find_recipe(self.recipe), self.options, self.core)
        return package_program(*lowered).cycles()


def _worst(parts: Iterable[Any], output_db: float) -> float:
    return min([output_db, *(part.sqnr_db for part in parts)])


def unrounded(prepared: GraphModule, group: Unit, refined: Refined) -> GraphModule:
    """A copy of a calibrated model with some operators in float.

    What was done to weights and biases made up for what was rounded: it is done anew for what still is.
    """
    model = _with_given_weights(prepared, refined.reference)
    names = set(_unrounded(model, group))
    for node in [n for n in model.graph.nodes if n.op == "call_module" and str(n.target) in names]:
        node.replace_all_uses_with(node.args[0])
        model.graph.erase_node(node)
    model.recompile()
    return model if refined.fitted_anew is None else refined.fitted_anew(model)


def _with_given_weights(prepared: GraphModule, reference: GraphModule | None) -> GraphModule:
    """A copy whose weights and biases are again what they were before methods changed them."""
    model = copied(prepared)
    if reference is None:
        return model
    given = {layer.name: layer for layer in layers_of(reference)}
    for layer in layers_of(model):
        if (old := given.get(layer.name)) is None:
            continue
        set_value(model, layer.weight, value_of(reference, old.weight))
        if layer.bias is not None:  # one of zeros was added where there was none
            zeros = torch.zeros_like(value_of(model, layer.bias))
            set_value(model, layer.bias, zeros if old.bias is None else value_of(reference, old.bias))
    return model


class _Search:
    """Candidates of a calibrated model, by what they give at the outputs when nothing of them is rounded."""

    def __init__(
        self,
        prepared: GraphModule,
        refined: Refined,
        target: Target,
        cycles: float,
        asked: bool,
        before: Quality,
    ):
        self.prepared = _with_given_weights(prepared, refined.reference)
        count = min(affordable(prepared, 16 << 20, 2, 8), before.samples)
        # Unasked, it is for an output that is far from float: the samples that make it so tell why.
        chosen = _worst_first(before)[:count]
        if asked:
            chosen = [i * before.samples // count for i in range(count)]
        self.samples = [refined.held[i] for i in chosen]
        exact = refined.exact
        self.exact = Run([exact.outputs[i] for i in chosen], [exact.scores[i] for i in chosen])
        self.target = target
        self.cycles = cycles
        self.tried = _TRIED[asked]
        self.asked = asked
        self.nodes = {n.name: n for n in prepared.graph.nodes}
        now = quality(self.exact, quantized_run(self.prepared, self.samples))
        told = (refined.quality or before).per_output_db
        self.shifts = [_difference(a, b) for a, b in zip(told, now.per_output_db, strict=True)]
        self.now_db = self._measure(frozenset())

    def candidates(self, progress: Callable[[float], None]) -> list[_Candidate]:
        """The most promising that are worth it and not too dear."""
        if not self.asked and -self.now_db < GAIN_DB:
            return []
        units = _units(self.prepared)
        groups = dict.fromkeys([*units, *_pairs(self.prepared, units), *_runs(self.prepared, units)])
        prices = {group: _cycles([self.nodes[n] for n in group], self.target) for group in groups}
        able = [group for group in groups if prices[group] <= self.cycles]
        gains = self._told() if len(able) > self.tried else {}
        noise = {group: self._noise(group, gains) for group in able}
        ways = (noise.__getitem__, lambda group: noise[group] / max(1, prices[group]))
        orders = [sorted(able, key=way, reverse=True)[: self.tried] for way in ways]
        tried = list(dict.fromkeys(group for pair in zip(*orders, strict=True) for group in pair))[
            : self.tried
        ]
        found = []
        for done, group in enumerate(tried, 1):
            if (candidate := self._candidate(group)) is not None:
                found.append(candidate)
            progress(0.5 * done / len(tried))
        return found if self.asked else [*self._together(found), *found]

    def _together(self, found: Sequence[_Candidate]) -> list[_Candidate]:
        """All that the budget holds at once, what gives most first."""
        group: Unit = frozenset()
        for candidate in sorted(found, key=lambda c: -c.gain_db):
            more = group | candidate.nodes
            if _cycles([self.nodes[n] for n in more], self.target) <= self.cycles:
                group = more
        made = self._candidate(group) if group and all(group != c.nodes for c in found) else None
        return [] if made is None else [made]

    def _noise(self, group: Unit, told: Mapping[str, float]) -> float:
        """The error that goes with the rounding of a group; tensors that share an observer have one."""
        names = _unrounded(self.prepared, group)
        return sum({id(self.prepared.get_submodule(n)): told.get(n, 0.0) for n in names}.values())

    def _told(self) -> dict[str, float]:
        """Of every observer, by its name, the error at the outputs that its rounding makes by gradients."""
        model = copied(self.prepared)
        measure_effects(model, self.samples)
        found: dict[int, float] = {}
        for observer in observers(model).values():
            if isinstance(observer, RangeObserver) and observer.responses is not None:
                scale, zero = observer.calculate_qparams()
                ends = observer.quant_min, observer.quant_max
                found[id(observer)] = float(observer.responses.errors(scale.double(), zero.double(), *ends))
        return {name: found.get(id(observer), 0.0) for name, observer in observers(model).items()}

    def again(self, candidates: Iterable[_Candidate], chosen: Unit) -> list[_Candidate]:
        """What the best of the others still give beside what was chosen."""
        self.now_db = self._measure(chosen)
        ordered = sorted(candidates, key=lambda c: -c.gain_db / max(1, c.cycles))
        found = [self._candidate(c.nodes | chosen, c) for c in ordered[:_AGAIN] if not c.nodes <= chosen]
        return [c for c in found if c is not None]

    def _candidate(self, group: Unit, of: _Candidate | None = None) -> _Candidate | None:
        cycles = _cycles([self.nodes[n] for n in group], self.target) if of is None else of.cycles
        if cycles > self.cycles:
            return None
        gain = self._measure(group) - self.now_db
        return _Candidate(group if of is None else of.nodes, cycles, gain) if gain >= GAIN_DB else None

    def _measure(self, group: Unit) -> float:
        names = _unrounded(self.prepared, group)
        run = quantized_run(self.prepared, self.samples, names)
        # Unasked, it is for what is far from float.
        if self.asked:
            return quality(self.exact, run).sqnr_db
        return -lacking_db(self.prepared, self.exact, run, WANTED_DB, self.shifts)


def _unrounded(prepared: GraphModule, group: Collection[str]) -> list[str]:
    """The observers whose rounding goes when these nodes are float."""
    found = []
    for node in prepared.graph.nodes:
        if node.op != "call_module":
            continue
        source = behind(node)
        free = source.op in ("get_attr", "placeholder") or source.name in group
        users = readers(node)
        if free and users and all(u.name in group or u.op == "output" for u in users):
            if source.op == "placeholder" and all(u.op == "output" for u in users):
                continue
            found.append(str(node.target))
    return found


def _units(prepared: GraphModule) -> list[Unit]:
    """Operators with nothing rounded between them: an activation in its layer, a group of wide values.

    Where groups of channels have a function each, the slices belong to what makes the tensor, and all the
    functions together: one alone changes nothing.
    """
    parent: dict[Node, Node] = {}

    def root(node: Node) -> Node:
        while parent[node] is not node:
            node = parent[node]
        return node

    for node in prepared.graph.nodes:
        if node.op != "call_function" or behind(node).op == "get_attr":
            continue
        parent[node] = node
        for source in node.all_input_nodes:
            if source in parent:
                parent[root(node)] = root(source)
    for function in functions_of(prepared).values():
        for _, part in function.parts if isinstance(function, GroupedFunction) else ():
            piece = behind(part.start)
            for a, b in ((part.end, function.end), (piece, behind(piece.args[0]))):
                if a in parent and b in parent:
                    parent[root(a)] = root(b)
    units: dict[Node, set[str]] = {}
    for node in parent:
        units.setdefault(root(node), set()).add(node.name)
    watched = {behind(n).name for n in prepared.graph.nodes if n.op == "call_module"}
    return [frozenset(unit) for unit in units.values() if unit & watched]


def _after(prepared: GraphModule, units: Sequence[Unit]) -> dict[Unit, set[Unit]]:
    """For each unit those that read it."""
    owner = {name: unit for unit in units for name in unit}
    found: dict[Unit, set[Unit]] = {unit: set() for unit in units}
    for node in prepared.graph.nodes:
        if node.name in owner:
            unit = owner[node.name]
            others = {owner[u.name] for u in readers(node) if u.name in owner}
            found[unit] |= others - {unit}
    return found


def _pairs(prepared: GraphModule, units: Sequence[Unit]) -> list[Unit]:
    return [unit | other for unit, others in _after(prepared, units).items() for other in others]


def _runs(prepared: GraphModule, units: Sequence[Unit]) -> list[Unit]:
    """Connected units without weights, and each of these from its beginning to any of its members."""
    weighted = {layer.node.name for layer in layers_of(prepared)}
    after = _after(prepared, units)
    plain = [unit for unit in units if not unit & weighted]
    found: list[set[Unit]] = []
    for start in plain:
        group, reached = {start}, [start]
        while reached and len(group) <= _MOST:
            reached = [o for u in reached for o in after[u] if o in plain and o not in group]
            group = group.union(reached)
            found.append(group)
        behind_too = set(group)  # the other operands of the same arithmetic
        for unit in reversed(plain):
            if after[unit] & behind_too and len(behind_too) < _MOST:
                behind_too.add(unit)
        found.append(behind_too)
    return [frozenset().union(*group) for group in found if len(group) <= _MOST]


def _shifts(now: Quality, shown: Quality | None) -> list[float]:
    """By how much each output is worse on all samples there are than on those at hand."""
    if shown is None:
        return []
    pairs = zip(shown.per_output_db, now.per_output_db, strict=True)
    return [min(_difference(told, found), 0.0) for told, found in pairs]


def _difference(told: float, found: float) -> float:
    return told - found if math.isfinite(told - found) else 0.0


def _worst_first(found: Quality) -> list[int]:
    """The samples in the order of their errors, each output's by its power."""
    powers = [sum(signal for signal, _ in column) or 1.0 for column in zip(*found.outputs, strict=True)]
    errors = [sum(n / p for (_, n), p in zip(row, powers, strict=True)) for row in found.outputs]
    return sorted(range(found.samples), key=lambda i: -errors[i])


def _about_cycles(prepared: GraphModule, target: Target) -> int:
    """No less than the NPU needs for a model, to leave out what is far too dear for a share of it."""
    nodes = [n for n in prepared.graph.nodes if n.op == "call_function"]
    macs = sum(operator_of(node).macs for node in nodes)
    return 4 * (macs // (target.units * target.pipes * target.macs_per_pipe) + sum(map(values_of, nodes)))


def _cycles(nodes: Sequence[Node], target: Target) -> int:
    """What the CPU needs for operators in float, with the steps from and to int8 around them."""
    inside = set(nodes)
    specs = [ops.find(op_name(node)) for node in nodes]
    at_end = any(reader.op == "output" for node in nodes for reader in readers(node))
    if not at_end and all(spec is not None and spec.real is not None for spec in specs):
        # Between int8 tensors the NPU computes it in float: how well is known once it is compiled.
        return sum(map(values_of, nodes))
    total = sum(cpu_cycles(operator_of(node), target) for node in nodes)
    borders = {behind(s) for n in nodes for s in n.all_input_nodes if behind(s) not in inside}
    borders = {n for n in borders if n.op != "get_attr"}
    borders |= {n for n in nodes if any(u not in inside for u in readers(n))}
    steps = sum(map(values_of, borders))
    per_value = target.cost.cpu_fast_quantize_cycles * target.frequency_hz / target.cost.cpu_frequency_hz
    return total + round(per_value * steps)
