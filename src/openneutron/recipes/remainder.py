"""Quantizing what another tool left in float: an LSTM, a softmax, layers that its user excluded.

What is quantized already stays exactly as it is. The rest is cut out as regions of the graph, each of which
is calibrated and quantized like a model of its own, on what the whole model feeds it; then it is put back. At
its borders a region takes the parameters that the file has there, so that nothing is rounded twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

from openneutron.fx import bind_args, is_float, op_name
from openneutron.ops.spec import OPEN
from openneutron.partition.clusters import find_clusters
from openneutron.partition.constants import DEQUANTIZE, DEQUANTIZE_TENSOR, QUANTIZE_TENSOR
from openneutron.passes.graph import constants_only
from openneutron.passes.patterns import is_fusible_activation
from openneutron.quantize.annotation.observer import RangeObserver
from openneutron.quantize.export import Inputs, Model, export_model
from openneutron.quantize.loop import prepare
from openneutron.quantize.plan import AccuracyPlan
from openneutron.quantize.prepared_model.model import let_biases_fit
from openneutron.quantize.refine import Refined, calibrate

_STEPS = "quantized_decomposed."
_INT8 = (-128, 127, torch.int8)


@dataclass(frozen=True)
class Parameters:
    """The scale and zero point of an int8 tensor."""

    scale: float
    zero_point: int


def quantize_remainder(
    module: Model,
    samples: Sequence[Inputs],
    make_quantizer: Callable[[Sequence[Inputs]], Quantizer],
    plan: AccuracyPlan,
    watch: Callable[[Refined], None] | None = None,
    progress: Callable[[float], None] = lambda part: None,
) -> GraphModule:
    """The model with its float parts quantized; every parameter that is in it already stays.

    `make_quantizer` is given examples of a region's inputs. `watch` is told what was done for all regions,
    with the figures of the one that is worst.
    """
    exported = export_model(module, samples[0])
    whole = exported.module(check_guards=False)
    assert isinstance(whole, GraphModule)
    clusters, _ = find_clusters(exported, OPEN)
    done = {node.name for cluster in clusters for node in cluster.members}
    _quantize_results(whole, done, samples)
    regions = _cut_out(whole, done)
    results: list[Refined] = []
    for number, name in enumerate(regions):
        region = whole.get_submodule(name)
        given = _inputs_of(whole, region, samples)
        (call,) = (n for n in whole.graph.nodes if n.op == "call_module" and n.target == name)
        inputs = [_known_input(n) for n in call.args]
        outputs = [_known_output(n) for n in _results(call)]
        prepared = prepare(export_model(region, given[0]), make_quantizer(given))
        _set_known(prepared, inputs, outputs)
        share = 1 / len(regions)
        ready, refined = calibrate(
            prepared,
            given,
            plan,
            lambda part, before=number * share, share=share: progress(before + share * part),  # type: ignore[misc]
            watch is not None,
        )
        results.append(refined)
        let_biases_fit(ready)
        _put_back(whole, call, convert_pt2e(ready))
    _join_steps(whole)
    if watch is not None:
        measured = [r for r in results if r.quality is not None]
        worst = min(measured, key=lambda r: r.quality.sqnr_db, default=Refined(plan.name))  # type: ignore[union-attr]
        watch(replace(worst, results=[result for refined in results for result in refined.results]))
    return whole


# --------------------------------------------------------------------------------------------------
# What is left to do


def _is_step(node: Node) -> bool:
    return op_name(node).startswith(_STEPS)


def _has_stored_weights(node: Node, constants: set[Node]) -> bool:
    """Whether a node multiplies by integers of the file: its weights are decided about."""
    return any(op_name(n) in DEQUANTIZE and n in constants for n in node.all_input_nodes)


def _quantize_results(whole: GraphModule, done: set[str], samples: Sequence[Inputs]) -> None:
    """Round what layers with quantized weights give where the file does not: only their results are float."""
    constants = constants_only(whole.graph.nodes)
    results: list[Node] = []
    for node in list(whole.graph.nodes):
        if node.op != "call_function" or node.name in done or node in constants or _is_step(node):
            continue
        if not _has_stored_weights(node, constants) or not is_float(node):
            continue
        last = node
        if len(node.users) == 1 and is_fusible_activation(next(iter(node.users))):
            last = next(iter(node.users))
        done.update((node.name, last.name))
        if not all(op_name(user) == QUANTIZE_TENSOR for user in last.users):
            results.append(last)
    if not results:
        return
    observers = {node: _observer() for node in results}
    with torch.no_grad():
        for sample in samples:
            _Watch(whole, observers).run(*sample)
    for node, observer in observers.items():
        scale, zero = observer.calculate_qparams()
        readers = [user for user in node.users if op_name(user) != QUANTIZE_TENSOR]
        with whole.graph.inserting_after(node):
            parameters = float(scale), int(zero), *_INT8
            quantized = _call(whole, "quantize_per_tensor", node, parameters)
        with whole.graph.inserting_after(quantized):
            real = _call(whole, "dequantize_per_tensor", quantized, parameters)
        for reader in readers:
            reader.replace_input_with(node, real)
        done.update((quantized.name, real.name))
    whole.recompile()


def _observer() -> RangeObserver:
    low, high, kind = _INT8
    return RangeObserver(dtype=kind, quant_min=low, quant_max=high, qscheme=torch.per_tensor_affine)


def _call(whole: GraphModule, name: str, source: Node, parameters: tuple[Any, ...]) -> Node:
    op = getattr(torch.ops.quantized_decomposed, name).default
    node = whole.graph.call_function(op, (source, *parameters))
    node.meta = dict(source.meta)
    kind = torch.int8 if name.startswith("quantize") else torch.float32
    if isinstance(value := source.meta.get("val"), torch.Tensor):
        node.meta["val"] = value.to(kind)
    return node


class _Watch(torch.fx.Interpreter):
    """Runs a model and shows observers what some nodes give."""

    def __init__(self, whole: GraphModule, observers: Mapping[Node, RangeObserver]):
        super().__init__(whole)
        self._observers = observers

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n in self._observers:
            self._observers[n](result)
        return result


class _Left(OperatorSupportBase):
    """What is not quantized, and what computes constants for it."""

    def __init__(self, whole: GraphModule, done: set[str]):
        constants = constants_only(whole.graph.nodes)
        self._left: set[Node] = set()
        for node in reversed(whole.graph.nodes):
            is_free = node.op == "call_function" and not _is_step(node) and node.name not in done
            if is_free and (node not in constants or self._left & set(node.users)):
                self._left.add(node)

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        """Whether it goes into a region."""
        return node in self._left


def _cut_out(whole: GraphModule, done: set[str]) -> list[str]:
    """Make submodules of the regions that are left; their names."""
    for node in [n for n in whole.graph.nodes if n.op == "get_attr"]:
        for user in list(node.users)[1:]:  # a constant belongs to one reader, and goes with it
            with whole.graph.inserting_before(user):
                user.replace_input_with(node, whole.graph.node_copy(node))
    before = {name for name, _ in whole.named_children()}
    partitioner = CapabilityBasedPartitioner(whole, _Left(whole, done), allows_single_node_partition=True)
    partitioner.fuse_partitions(partitioner.propose_partitions())
    names = []
    for name in [n for n, _ in whole.named_children() if n not in before]:
        (call,) = (n for n in whole.graph.nodes if n.op == "call_module" and n.target == name)
        _take_constants(whole, call, whole.get_submodule(name))
        region: Any = whole.get_submodule(name)
        if any(is_float(n) for n in region.graph.nodes if n.op == "call_function"):
            names.append(name)
        else:
            _put_back(whole, call, region)
    whole.recompile()
    return names


def _take_constants(whole: GraphModule, call: Node, region: Any) -> None:
    """Give a region the constants that it reads as its own."""
    kept = []
    for index, (given, inside) in enumerate(
        zip(call.args, list(region.graph.find_nodes(op="placeholder")), strict=True)
    ):
        if not isinstance(given, Node) or given.op != "get_attr":
            kept.append(given)
            continue
        name, value = f"constant_{index}", _attribute(whole, str(given.target))
        if isinstance(value, torch.nn.Parameter):
            region.register_parameter(name, value)
        else:
            region.register_buffer(name, value)
        with region.graph.inserting_before(inside):
            constant = region.graph.get_attr(name)
        constant.meta = dict(inside.meta)
        inside.replace_all_uses_with(constant)
        region.graph.erase_node(inside)
    call.args = tuple(kept)
    whole.graph.eliminate_dead_code()
    region.recompile()


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


# --------------------------------------------------------------------------------------------------
# One region


def _inputs_of(whole: GraphModule, region: Any, samples: Iterable[Inputs]) -> list[Inputs]:
    """What the whole model feeds a region."""
    inputs: list[Inputs] = []
    hook = region.register_forward_pre_hook(lambda _, args: inputs.append(args))
    try:
        with torch.no_grad():
            for sample in samples:
                whole(*sample)
    finally:
        hook.remove()
    return inputs


def _results(call: Node) -> list[list[Node]]:
    """For every result of a region the nodes that read it."""
    users = list(call.users)
    if users and all(op_name(u) == "" and "getitem" in str(u.target) for u in users):
        count = 1 + max(_number(u) for u in users)
        return [[r for u in users if _number(u) == i for r in u.users] for i in range(count)]
    return [users]


def _number(pick: Node) -> int:
    """Which of several results a node picks."""
    assert isinstance(pick.args[1], int)
    return pick.args[1]


def _known_input(node: Any) -> Parameters | None:
    return _parameters(node) if op_name(node) == DEQUANTIZE_TENSOR else None


def _known_output(readers: Sequence[Node]) -> Parameters | None:
    """What all readers of a result round it to."""
    found = {_parameters(r) if op_name(r) == QUANTIZE_TENSOR else None for r in readers}
    return found.pop() if len(found) == 1 else None


def _parameters(step: Node) -> Parameters | None:
    args = bind_args(step)
    if (args["quant_min"], args["quant_max"], args["dtype"]) != _INT8:
        return None
    return Parameters(float(args["scale"]), int(args["zero_point"]))


def _set_known(
    prepared: GraphModule, inputs: Sequence[Parameters | None], outputs: Sequence[Parameters | None]
) -> None:
    """Let the observers at the borders of a region have the parameters that are there."""
    wanted: dict[int, set[Parameters]] = {}

    def want(node: Any, known: Parameters | None) -> None:
        if isinstance(node, Node) and node.op == "call_module" and known is not None:
            observer = prepared.get_submodule(str(node.target))
            if isinstance(observer, RangeObserver):
                wanted.setdefault(id(observer), set()).add(known)

    for node, known in zip(prepared.graph.find_nodes(op="placeholder"), inputs, strict=True):
        for user in node.users:
            want(user, known)
    (end,) = prepared.graph.find_nodes(op="output")
    for node, known in zip(pytree.tree_leaves(end.args[0]), outputs, strict=True):
        want(node, known)
    for observer in list(prepared.modules()):
        found = wanted.get(id(observer), set())
        if len(found) == 1 and isinstance(observer, RangeObserver):  # two would contradict one another
            observer.__class__ = _Known
            observer.known = next(iter(found))


class _Known(RangeObserver):
    """An observer whose parameters the file has: what it sees changes nothing."""

    known: Parameters

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Nothing is observed."""
        return x_orig

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero point."""
        return torch.tensor([self.known.scale]), torch.tensor([self.known.zero_point])


def _put_back(whole: GraphModule, call: Node, region: Any) -> None:
    """Write a region's nodes in the place of its call."""
    name = str(call.target)
    values: dict[Node, Any] = dict(zip(region.graph.find_nodes(op="placeholder"), call.args, strict=True))
    with whole.graph.inserting_before(call):
        for node in region.graph.nodes:
            if node.op == "get_attr":
                target = f"{name}_{str(node.target).replace('.', '_')}"
                value = _attribute(region, str(node.target))
                if not hasattr(whole, target):
                    if isinstance(value, torch.nn.Parameter):
                        whole.register_parameter(target, value)
                    else:
                        whole.register_buffer(target, value)
                values[node] = whole.graph.get_attr(target)
                values[node].meta = dict(node.meta)
            elif node.op not in ("placeholder", "output"):
                values[node] = whole.graph.node_copy(node, lambda n: values[n])
    (end,) = region.graph.find_nodes(op="output")
    results = pytree.tree_map_only(Node, lambda n: values[n], end.args[0])
    if isinstance(results, tuple | list) and any("getitem" in str(u.target) for u in call.users):
        for user in list(call.users):
            user.replace_all_uses_with(results[_number(user)])
            whole.graph.erase_node(user)
    else:
        (single,) = results if isinstance(results, tuple | list) else (results,)
        call.replace_all_uses_with(single)
    whole.graph.erase_node(call)
    whole.delete_submodule(name)
    whole.graph.lint()
    whole.recompile()


def _join_steps(whole: GraphModule) -> None:
    """Drop a quantize step behind a dequantize step with the same parameters: it gives the same integers."""
    for node in list(whole.graph.nodes):
        if op_name(node) != QUANTIZE_TENSOR or op_name(node.args[0]) != DEQUANTIZE_TENSOR:
            continue
        if (parameters := _parameters(node)) is not None and parameters == _parameters(node.args[0]):
            node.replace_all_uses_with(node.args[0].args[0])
    whole.graph.eliminate_dead_code()
    whole.recompile()
