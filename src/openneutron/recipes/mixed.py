"""Mixed precision as a last resort: which layers to keep float for what they give back at the outputs.

Every operator, every pair of neighbours and every run of arithmetic between layers with weights (the squares,
sum and root of a magnitude) is tried in float on a calibrated model, and what it gives is set against the
cycles that the CPU needs for it. What looks best for its price is then quantized and compiled for real: it
stays float only if the outputs do get better and the program stays within the budget.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from openneutron import ops
from openneutron.backends import find_recipe
from openneutron.diagnostics import fail
from openneutron.estimate.cpu_cost import cpu_cycles, operator_of
from openneutron.fx import op_name, tensor_of
from openneutron.options import CompileOptions
from openneutron.package.program import package_program
from openneutron.passes import BEFORE_PREPARE, PTQ, run_passes
from openneutron.quantize.convert import convert_calibrated
from openneutron.quantize.export import Inputs, export_model
from openneutron.quantize.measure import Quality, Run, float_run, quality, quantized_run
from openneutron.quantize.plan import AccuracyPlan
from openneutron.quantize.prepared import behind, layers_of, readers
from openneutron.quantize.refine import calibrate
from openneutron.quantize.samples import EXAMPLES, spread_over
from openneutron.quantize.walk import affordable
from openneutron.recipes.parts import lower_program, make_quantizer
from openneutron.target import Target, find_target

Unit = frozenset[str]  # nodes by name
GAIN_DB = 0.3  # at the outputs: less is not worth a float layer
_VERIFIED = 6  # candidates that are quantized and compiled
_MOST = 24  # operators of a group
_AGAIN = 6  # candidates measured again once one was chosen


@dataclass(frozen=True)
class KeptFloat:
    """What is kept float, what that gives at the outputs on calibration data, and what it costs."""

    layers: tuple[str, ...]
    before_db: float
    after_db: float
    cycles_before: int
    cycles_after: int
    budget: float

    def as_dict(self) -> dict[str, Any]:
        """For summaries; JSON has no infinity, so that an error of zero is null."""
        return {
            "layers": list(self.layers),
            "before_db": None if math.isinf(self.before_db) else self.before_db,
            "after_db": None if math.isinf(self.after_db) else self.after_db,
            "cycles_before": self.cycles_before,
            "cycles_after": self.cycles_after,
            "budget": self.budget,
        }


@dataclass(frozen=True)
class _Trial:
    """A model quantized with some layers in float."""

    prepared: GraphModule
    quality: Quality
    cycles: int


@dataclass(frozen=True)
class _Candidate:
    nodes: Unit
    cycles: int
    gain_db: float


@dataclass(frozen=True)
class _Maker:
    """Quantizes and compiles one model with any layers in float."""

    module: Any
    samples: Sequence[Inputs]
    options: CompileOptions
    recipe: str
    core: str
    per_channel: bool | None
    plan: AccuracyPlan

    def make(self, keep: Collection[str]) -> _Trial:
        quantizer = make_quantizer(
            self.recipe,
            self.options,
            False,
            self.per_channel,
            sorted(keep),
            spread_over(self.samples, EXAMPLES),
        )
        exported = export_model(self.module, self.samples[0]).module(check_guards=False)
        prepared = prepare_pt2e(run_passes(exported, BEFORE_PREPARE, PTQ), quantizer)
        model, refined = calibrate(prepared, self.samples, self.plan)
        assert refined.original is not None
        some = spread_over(self.samples, affordable(model, 64 << 20, 4, 16))
        exact = float_run(refined.original, some)
        found = quality(exact, quantized_run(model, some))
        kept = copy.deepcopy(model)
        program = {"forward": export_model(convert_calibrated(model), self.samples[0])}
        backends = find_recipe(self.recipe)
        compiled = package_program(*lower_program(program, backends, self.options, self.core))
        return _Trial(kept, found, compiled.cycles())


def choose_float(
    module: Any | ExportedProgram,
    samples: Sequence[Inputs],
    budget: float,
    *,
    plan: AccuracyPlan,
    options: CompileOptions,
    recipe: str,
    core: str,
    per_channel: bool | None = None,
    keep_float: Collection[str] = (),
    progress: Callable[[float], None] = lambda part: None,
) -> KeptFloat:
    """The layers that are worth keeping float, for at most this share of the estimated cycles more."""
    if not 0 < budget <= 10:
        fail("ON104", "option keep_float_budget", f"must be a share of the cycles above zero (got {budget})",
             "For example 5% or 0.05.")  # fmt: skip
    if options.converter != "open":
        fail("ON104", "option keep_float_budget", f"the converter {options.converter} tells no cycles",
             "Leave it out, or name the layers with keep_float.")  # fmt: skip
    maker = _Maker(module, samples, options, recipe, core, per_channel, plan)
    first = now = maker.make(keep_float)
    allowed = first.cycles * (1 + budget)
    target = find_target(options.config, options.converter)
    chosen: Unit = frozenset()
    search = _Search(first.prepared, samples, target, budget * first.cycles)
    left = search.candidates(progress)
    for done in range(_VERIFIED):
        if not left:
            break
        best = max(left, key=lambda c: c.gain_db / max(1, c.cycles))
        left.remove(best)
        trial = maker.make({*keep_float, *chosen, *best.nodes})
        gain = trial.quality.sqnr_db - now.quality.sqnr_db
        if trial.cycles <= allowed and gain >= GAIN_DB:
            chosen, now = chosen | best.nodes, trial
            left = search.again(left, chosen)
        progress(0.5 + 0.5 * (done + 1) / _VERIFIED)
    order = [n.name for n in first.prepared.graph.nodes if n.name in chosen]
    return KeptFloat(
        tuple(order), first.quality.sqnr_db, now.quality.sqnr_db, first.cycles, now.cycles, budget
    )


class _Search:
    """Candidates of a calibrated model, by what they give at the outputs when nothing of them is rounded."""

    def __init__(self, prepared: GraphModule, samples: Sequence[Inputs], target: Target, cycles: float):
        self.prepared = prepared
        self.samples = spread_over(samples, affordable(prepared, 16 << 20, 2, 8))
        self.target = target
        self.cycles = cycles
        self.exact: Run = float_run(prepared, self.samples)
        self.nodes = {n.name: n for n in prepared.graph.nodes}
        self.now_db = self._measure(frozenset())

    def candidates(self, progress: Callable[[float], None]) -> list[_Candidate]:
        """All that are worth it and not too dear."""
        units = _units(self.prepared)
        groups = dict.fromkeys([*units, *_pairs(self.prepared, units), *_runs(self.prepared, units)])
        found = []
        for done, group in enumerate(groups, 1):
            if (candidate := self._candidate(group)) is not None:
                found.append(candidate)
            progress(0.5 * done / len(groups))
        return found

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
        return quality(self.exact, quantized_run(self.prepared, self.samples, names)).sqnr_db


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
    """Operators with nothing rounded between them: an activation in its layer, a group of wide values."""
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
    units: dict[Node, set[str]] = {}
    for node in parent:
        units.setdefault(root(node), set()).add(node.name)
    watched = {behind(n).name for n in prepared.graph.nodes if n.op == "call_module"}
    return [frozenset(unit) for unit in units.values() if unit & watched and len(unit) <= _MOST]


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
    found: list[Unit] = []
    for start in plain:
        group, reached = start, [start]
        while reached and len(group) <= _MOST:
            reached = [o for u in reached for o in after[u] if o in plain and not o <= group]
            group = group.union(*reached)
            found.append(group)
        behind_too = group  # the other operands of the same arithmetic
        for unit in reversed(plain):
            if any(other <= behind_too for other in after[unit]) and len(behind_too) < _MOST:
                behind_too |= unit
        found.append(behind_too)
    return [group for group in found if len(group) <= _MOST]


def _cycles(nodes: Sequence[Node], target: Target) -> int:
    """What the CPU needs for operators in float, with the steps from and to int8 around them."""
    inside = set(nodes)
    specs = [ops.find(op_name(node)) for node in nodes]
    if all(spec is not None and spec.real is not None for spec in specs):
        # Between int8 tensors the NPU computes it in float: how well is known once it is compiled.
        return sum(t.numel() for n in nodes if (t := tensor_of(n)) is not None)
    total = sum(cpu_cycles(operator_of(node), target) for node in nodes)
    borders = {behind(s) for n in nodes for s in n.all_input_nodes if behind(s) not in inside}
    borders = {n for n in borders if n.op != "get_attr"}
    borders |= {n for n in nodes if any(u not in inside for u in readers(n))}
    steps = sum(t.numel() for n in borders if (t := tensor_of(n)) is not None)
    per_value = target.cost.cpu_fast_quantize_cycles * target.frequency_hz / target.cost.cpu_frequency_hz
    return total + round(per_value * steps)
