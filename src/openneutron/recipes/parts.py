"""What a recipe is made of: its quantizer, and how a program is lowered. The pipeline and ExecuTorch's own
recipes (`build`) are both put together from these."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, to_edge_transform_and_lower
from torch import Tag
from torch._export.verifier import SpecViolationError
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torchao.quantization.pt2e.quantizer import Quantizer

from openneutron.diagnostics import fail
from openneutron.fast_export.composite_operators import composite_operators
from openneutron.fx import overload
from openneutron.options import CompileOptions, CustomDelegationOptions
from openneutron.package.backend import NeutronPartitioner
from openneutron.package.before_edge import goes_before_edge, take_all_partitions
from openneutron.package.state import name_states_apart, with_copied_states, with_shared_states
from openneutron.passes.cpu_part.dim_order import needs_order_restored, restore_order_around
from openneutron.passes.cpu_part.parameters import has_narrow_parameters, widen_parameters
from openneutron.passes.cpu_part.weights import store_transposed
from openneutron.passes.edge import run_edge_passes
from openneutron.quantize.annotation.sharing import NextState
from openneutron.quantize.quantizer import NeutronQuantizer
from openneutron.recipes.recipe import Recipe, find_recipe
from openneutron.targets.spec import NeutronTargetSpec
from openneutron.targets.table import core_of


def make_quantizer(
    recipe: str,
    options: CompileOptions,
    is_qat: bool = False,
    per_channel: bool | None = None,
    keep_float: Collection[str] = (),
    examples: Sequence[tuple[Any, ...]] = (),
    states: Mapping[str, NextState] | None = None,
) -> Quantizer:
    """The quantizer of a recipe; example inputs show it sizes, and which processor would take what.

    Weights have a scale per output channel unless `per_channel` is False.
    """
    backends, channels = find_recipe(recipe), per_channel is not False
    if not backends.cortex_m:
        spec = NeutronTargetSpec(options.config, converter=options.converter)
        return NeutronQuantizer(spec, is_qat, per_channel=channels, keep_float=keep_float, examples=examples,
                                states=states)  # fmt: skip
    if backends.neutron:
        from openneutron.cortex_m.combined import CombinedQuantizer

        return CombinedQuantizer(
            options, is_qat, per_channel=channels, keep_float=keep_float, examples=examples, states=states
        )
    from openneutron.cortex_m.quantizer import CortexMInt8Quantizer

    if per_channel is not None:
        fail(
            "ON104",
            "per_channel",
            f"has no effect on the recipe {recipe}",
            "Leave it out: Cortex-M has a scale per channel for convolutions, one per tensor otherwise.",
        )
    return CortexMInt8Quantizer(is_qat, keep_float)


@dataclass(frozen=True)
class Lowering:
    """Between an exported program and ExecuTorch's: settings of the Edge dialect, and passes in order."""

    config: EdgeCompileConfig
    before: tuple[Any, ...]  # on the Edge program, before the NPU's partitions are taken out
    after: tuple[Any, ...]  # on what they leave


def lowering_of(recipe: Recipe, options: CompileOptions, core: str | None = None) -> Lowering:
    """How programs of a recipe are lowered, for the target's own CPU or another; an unknown is refused."""
    config, cpu = EdgeCompileConfig(_check_ir_validity=True, _skip_dim_order=False), []
    if recipe.cortex_m:
        from openneutron.cortex_m.lowering import LowerToCortexM, edge_compile_config

        own = core_of(options.config, options.converter)
        config, cpu = edge_compile_config(), [LowerToCortexM(core or own)]
    # The order is restored last: that reads what the others leave.
    return Lowering(config, (run_edge_passes,), (*cpu, restore_order_around))


def lower_program(
    exported: Mapping[str, ExportedProgram],
    recipe: Recipe,
    options: CompileOptions,
    core: str | None = None,
    delegation: CustomDelegationOptions | None = None,
    delegate: bool = True,
    etrecord: bool = False,
    may_change: bool = False,
    shared: Collection[str] = (),
) -> tuple[EdgeProgramManager, dict[str, NeutronPartitioner]]:
    """The Edge program with Neutron's partitions delegated and the rest in Cortex-M's dialect, if wanted.

    Programs that `may_change` are not copied first. Buffers that are `shared` are one state in all methods.
    """
    lowering = lowering_of(recipe, options, core)
    # The program is packaged with the delegates' memory in its plan, so that inputs may die in it.
    specs = replace(options, keep_inputs=bool(options.keep_inputs)).to_compile_specs()
    made = {name: NeutronPartitioner(specs, custom_delegation_options=delegation) for name in exported}
    if shared:
        exported = with_shared_states(exported, shared)
    if recipe.neutron and delegate and goes_before_edge(options, etrecord):
        exported = take_all_partitions(exported, made, may_change, shared)

    exported = {name: with_copied_states(program) for name, program in exported.items()}
    name_states_apart(exported, shared)

    partitioners = {name: [p] for name, p in made.items()} if recipe.neutron and delegate else {}
    edge = _to_edge(exported, lowering, partitioners, etrecord)
    for step in lowering.after:
        modules = (edge.exported_program(name).graph_module for name in exported)
        if step is not restore_order_around or any(map(needs_order_restored, modules)):
            edge = edge.transform([step])
    if any(has_narrow_parameters(edge.exported_program(name).graph_module) for name in exported):
        edge = edge.transform([widen_parameters])
    for name in exported:
        store_transposed(edge.exported_program(name))
    return edge, made


def _to_edge(
    exported: Mapping[str, ExportedProgram],
    lowering: Lowering,
    partitioners: dict[str, list[NeutronPartitioner]],
    etrecord: bool,
) -> EdgeProgramManager:
    """The programs in the Edge dialect, with those operators outside core ATen that they have."""

    def lower(outside: list[OpOverload]) -> EdgeProgramManager:
        config = copy.copy(lowering.config)
        config._core_aten_ops_exception_list = [*config._core_aten_ops_exception_list, *outside]
        with composite_operators():
            return to_edge_transform_and_lower(
                dict(exported),
                transform_passes=list(lowering.before),
                partitioner=partitioners,
                compile_config=config,
                generate_etrecord=etrecord,
            )

    try:
        return lower(outside_core(exported))
    except SpecViolationError:  # an operator that is inside another: which, is known after decomposing it
        try:
            return lower(all_outside_core())
        except SpecViolationError as error:  # complex numbers, say
            problem = " ".join(str(error).split())[:200]
            fail("ON212", "Edge dialect", problem, "Write the operator that is named in float32.")


def all_outside_core() -> list[OpOverload]:
    """Every operator of ATen that is not in Core ATen; some thousand."""
    operators = []
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload_name = rest.partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload_name or "default", None)
        if namespace == "aten" and op is not None and Tag.core not in op.tags:
            operators.append(op)
    return operators


def outside_core(exported: Mapping[str, ExportedProgram]) -> list[OpOverload]:
    """Operators that ExecuTorch would refuse for not being in Core ATen: they are the CPU's like others."""
    calls = (overload(node) for program in exported.values() for node in program.graph.nodes)
    operators = {op for op in calls if op is not None and op.namespace == "aten"}
    return sorted((op for op in operators if Tag.core not in op.tags), key=str)
