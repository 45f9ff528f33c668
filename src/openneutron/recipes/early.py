"""What can be said before a model is quantized: that its weights cannot fit the SRAM.

Quantizing a large model takes minutes, and that its weights are too many is known before: in int8 they are
one byte each. Whether they all go to one partition is found by a trial, which only a model that is too large
for the SRAM as a whole has to go through.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain

import torch
from torch.export import ExportedProgram

from openneutron.diagnostics import fail
from openneutron.ops.spec import OPEN
from openneutron.options import CompileOptions
from openneutron.package.backend import NeutronPartitioner
from openneutron.partition.constants import Constants
from openneutron.quantize.export import Inputs, Model, as_tuple, export_model
from openneutron.quantize.loop import calibrate_and_quantize
from openneutron.recipes.parts import make_quantizer
from openneutron.recipes.recipe import find_recipe
from openneutron.targets.table import find_target
from openneutron.tensors import plain_inputs


def check_weights_fit(
    module: Model,
    example_inputs: Inputs,
    options: CompileOptions,
    recipe: str,
    per_channel: bool | None = None,
    keep_float: Collection[str] = (),
) -> None:
    """Refuse a model whose weights, once they are int8, exceed the SRAM of its target."""
    if options.converter != OPEN or options.fetch_constants_to_sram or not find_recipe(recipe).neutron:
        return
    target = find_target(options.config, options.converter)
    sram = options.sram_bytes or target.sram_bytes
    if target.reads_flash or _count(module) <= sram:
        return
    example = plain_inputs(as_tuple(example_inputs))
    quantizer = make_quantizer(recipe, options, False, per_channel, keep_float, [example])
    quantized = calibrate_and_quantize(export_model(module, example), [example], quantizer)
    partitioner = NeutronPartitioner(options.to_compile_specs())
    program = partitioner.transform_for_pre_decomposition(export_model(quantized, example))
    partitioner.partition(program)
    constants = Constants(program)
    for group in partitioner.partitions:
        nodes = {
            n for cluster in group for member in cluster.members for n in (member, *member.all_input_nodes)
        }
        stored = {id(t): t for n in nodes if (t := constants.stored(n)) is not None and t.dtype == torch.int8}
        weights = sum(t.numel() for t in stored.values())
        if weights > sram:
            fail(
                "ON403",
                "program",
                f"the weights need {weights:,} bytes in int8, {sram:,} bytes of SRAM are given",
                "fetch_constants_to_sram keeps the weights in flash and prefetches them layer by layer.",
            )


def _count(module: Model) -> int:
    """All numbers that a model has stored."""
    if isinstance(module, ExportedProgram):
        values = chain(module.state_dict.values(), module.constants.values())
    else:
        values = chain(module.parameters(), module.buffers())
    return sum(value.numel() for value in values if isinstance(value, torch.Tensor))
