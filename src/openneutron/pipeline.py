"""From a PyTorch module to a .pte: the stages in order. The file to read first.

    export -> quantize (PT2E, int8) -> Edge dialect -> partition -> LiteRT -> microcode -> .pte

`quantize_model` is the second stage, `compile_model` all of them, `compile_litert` the last two. The stages
after partitioning run inside ExecuTorch, which calls `NeutronBackend.preprocess` for every partition; what
they made comes back with the program.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, to_edge_transform_and_lower
from torch.export import ExportedProgram
from torch.fx import GraphModule

from openneutron.compiled import CompiledProgram, copy_graph, describe
from openneutron.converter import find_converter
from openneutron.diagnostics import fail
from openneutron.litert.file import read
from openneutron.lower.convert import Lowered
from openneutron.options import CompileOptions, CustomDelegationOptions
from openneutron.package.backend import NeutronPartitioner, Partition
from openneutron.package.embed import embed
from openneutron.package.payload import Port, build_payload, pack
from openneutron.passes.edge import remove_quant_io, run_edge_passes
from openneutron.quantize.loop import calibrate_and_quantize, train_and_quantize
from openneutron.quantize.quantizer import NeutronQuantizer
from openneutron.run.seal import seal
from openneutron.stages import EXIR, EXPORT, MICROCODE, PACKAGE, stage
from openneutron.target import DEFAULT_TARGET, NeutronTargetSpec, find_target

Inputs = tuple[Any, ...]


def compile_model(
    module: torch.nn.Module | ExportedProgram,
    example_inputs: Inputs,
    *,
    calibration: Iterable[Inputs] | None = None,
    options: CompileOptions | None = None,
    delegation: CustomDelegationOptions | None = None,
    per_channel: bool = False,
    int8_io: bool = False,
    delegate: bool = True,
    etrecord: bool = False,
) -> CompiledProgram:
    """Compile a model for Neutron.

    With `calibration` inputs the model is quantized first; without, it is taken as it is, quantized or not.
    What the NPU cannot compute stays on the CPU, and the result says why. Example inputs in
    `torch.channels_last` give a program that takes its inputs so. `int8_io` drops the quantize and dequantize
    steps at the program's ends. Without `delegate` everything stays on the CPU, to compare with. `etrecord`
    (or the option `use_profiling`) keeps what ExecuTorch's Inspector needs to name the nodes of a profile.
    """
    options = options or CompileOptions()
    if calibration is not None:
        module = quantize_model(module, calibration, per_channel=per_channel, target=options.config)
    exported = export_model(module, example_inputs)
    partitioner = NeutronPartitioner(options.to_compile_specs(), custom_delegation_options=delegation)
    with stage(EXIR):
        edge = to_edge_transform_and_lower(
            exported,
            transform_passes=[run_edge_passes],
            partitioner=[partitioner] if delegate else [],
            compile_config=EdgeCompileConfig(_check_ir_validity=True, _skip_dim_order=False),
            generate_etrecord=etrecord or options.use_profiling,
        )
        edge = remove_quant_io(edge) if int8_io else edge
    return package_program(edge, partitioner, delegated=delegate)


def compile_litert(
    data: bytes, options: CompileOptions | None = None, where: str = "LiteRT model"
) -> CompiledProgram:
    """Compile a static int8 LiteRT model (the bytes of a .tflite) to a program that is one delegate."""
    options = options or CompileOptions()
    graph = read(data, where)
    if not any(t.dtype == "int8" for op in graph.ops for t in op.outputs):
        fail("ON303", where, "the model computes in float only: no operator has an int8 result",
             "Convert it with full int8 quantization; the NPU computes in int8.")  # fmt: skip
    with stage(MICROCODE):
        converted = find_converter(options.converter).convert(data, options, find_target(options.config))
    ins, outs = (tuple(Port(i) for i in range(len(side))) for side in (graph.inputs, graph.outputs))
    payload = build_payload(converted, ins, outs, len(graph.inputs), options.use_profiling)
    flags = (False,) * len(graph.inputs), (False,) * len(graph.outputs)
    partition = Partition(Lowered(graph, *flags, graph), data, converted)
    partitioner = NeutronPartitioner(options.to_compile_specs())
    edge = embed(partition, pack(payload), partitioner.delegation_spec.compile_specs)
    return package_program(edge, partitioner, tuple(op.outputs[0].name for op in graph.ops))


def quantize_model(
    module: torch.nn.Module | ExportedProgram,
    calibration_inputs: Iterable[Inputs],
    *,
    qat: bool = False,
    train_fn: Callable[[GraphModule], Any] | None = None,
    per_channel: bool = False,
    keep_float: Collection[str] = (),
    target: str = DEFAULT_TARGET,
) -> GraphModule:
    """Quantize a model to int8: by calibration on sample inputs, or with `qat` by training with `train_fn`.

    The first sample is also the example to export with. Layers named in `keep_float`, as `openneutron
    compare` names them, stay float and thus on the CPU.
    """
    samples = iter(calibration_inputs)
    first = next(samples, None)
    if first is None:
        fail("ON209", "calibration", "there are no calibration inputs", "Give at least one tuple of inputs.")
    if qat != (train_fn is not None):
        fail(
            "ON104",
            "quantize_model",
            "qat=True and train_fn belong together",
            "Give a function that trains the model it is given, or leave both out.",
        )
    if qat and isinstance(module, torch.nn.Module):
        module = copy.deepcopy(module).train()  # training must not change the caller's model
    exported = export_model(module, _tuple(first))
    quantizer = NeutronQuantizer(
        NeutronTargetSpec(target), is_qat=qat, per_channel=per_channel, keep_float=keep_float
    )
    everything = map(_tuple, chain([first], samples))
    if train_fn is not None:
        return train_and_quantize(exported, train_fn, quantizer, everything)
    return calibrate_and_quantize(exported, everything, quantizer)


def export_model(module: torch.nn.Module | ExportedProgram, example_inputs: Inputs) -> ExportedProgram:
    """The model as torch.export gives it; an exported one is taken as it is."""
    if isinstance(module, ExportedProgram):
        return module
    with stage(EXPORT):
        return torch.export.export(module, _tuple(example_inputs))


def package_program(
    edge: EdgeProgramManager,
    partitioner: NeutronPartitioner,
    npu_nodes: tuple[str, ...] | None = None,
    delegated: bool = True,
) -> CompiledProgram:
    """Serialize a lowered program, seal it, and describe what is in it."""
    with stage(PACKAGE):
        kept = copy_graph(edge.exported_program())  # to_executorch changes the program it is given
        with stage(EXIR):
            program = edge.to_executorch()
        return describe(seal(program.buffer), kept, partitioner, npu_nodes, delegated, program._etrecord)


def _tuple(inputs: Any) -> Inputs:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
