"""From a PyTorch module to a .pte: the stages in order. The file to read first.

    export -> quantize (PT2E, int8) -> partition -> LiteRT -> microcode -> Edge dialect (the rest) -> .pte

`quantize_model` is the second stage, `compile_model` all of them, `compile_litert` the last two. Partitions
are taken out before ExecuTorch's Edge dialect (`take_partitions`): it sees only what stays on the CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from openneutron.accuracy.verify import verified
from openneutron.converter import find_converter
from openneutron.converter.protocol import Partition
from openneutron.diagnostics import Reject, fail, nearest
from openneutron.environment.stopwatch import EXIR, LITERT, MICROCODE, VERIFY, stage
from openneutron.fast_export.code_on_demand import code_on_demand
from openneutron.fx import op_name
from openneutron.litert.file import read, write
from openneutron.lower.convert import Lowered
from openneutron.lower.whole import lower_whole
from openneutron.options import CompileOptions, CustomDelegationOptions
from openneutron.package.backend import NeutronPartitioner
from openneutron.package.embed import embed
from openneutron.package.payload import Port, build_payload, pack
from openneutron.package.program import CompiledProgram, by_method, package_program
from openneutron.passes import ATEN_PASSES, FLOAT_PARTS, PTQ, run_passes
from openneutron.passes.edge import remove_quant_io
from openneutron.quantize.carried import State, carry_state
from openneutron.quantize.export import (
    Inputs,
    Model,
    as_tuple,
    check_results,
    dynamic_shapes_of,
    export_model,
)
from openneutron.quantize.loop import (
    calibrate_and_quantize,
    convert_trained,
    prepare,
    prepare_to_train,
    train_and_quantize,
)
from openneutron.quantize.plan import BALANCED, EQUALIZE, AccuracyPlan
from openneutron.quantize.refine import Refined
from openneutron.quantize.samples import EXAMPLES, spread_over
from openneutron.quantize.sequences import quantize_sequences
from openneutron.quantize.stateful import as_sequences, frames_of, with_state_ports
from openneutron.quantize.together import (
    NamedFrame,
    have_common_buffers,
    name_shared,
    named_frames,
    quantize_together,
)
from openneutron.quantize.train_start import equalize_to_train
from openneutron.recipes.early import check_weights_fit
from openneutron.recipes.parts import lower_program
from openneutron.recipes.quantize_options import QuantizeOptions
from openneutron.recipes.recipe import NEUTRON, find_recipe
from openneutron.recipes.remainder import quantize_remainder
from openneutron.targets.table import DEFAULT_TARGET, find_target
from openneutron.tensors import plain_inputs

_NO_NPU = Reject("ON204", "The recipe computes everything on the CPU", "The recipe npu+cpu uses both.")
_NO_DELEGATION = Reject("ON204", "Delegation is switched off", "Compile with delegate=True (--delegate).")


@code_on_demand()
def compile_model(
    module: Model | Mapping[str, Model],
    example_inputs: Inputs | Mapping[str, Inputs],
    *,
    calibration: Iterable[Inputs] | Mapping[str, Iterable[Inputs]] | None = None,
    recipe: str = NEUTRON.name,
    core: str | None = None,
    options: CompileOptions | None = None,
    delegation: CustomDelegationOptions | None = None,
    per_channel: bool | None = None,
    accuracy: str | AccuracyPlan = BALANCED,
    keep_float: Collection[str] = (),
    keep_float_budget: float | None = None,
    remainder: bool = False,
    int8_io: bool = False,
    delegate: bool = True,
    etrecord: bool = False,
    verify: bool = True,
    state: State | Mapping[str, State] | None = None,
) -> CompiledProgram:
    """Compile a model for Neutron, or as another recipe says: `cortex-m` is the CPU alone, `npu+cpu` both.

    With `calibration` inputs the model is quantized first; without, it is taken as it is, quantized or not.
    What the NPU cannot compute stays on the CPU, and the result says why; `npu+cpu` computes it there in
    int8 where ExecuTorch's Cortex-M backend can. Weights have a scale per output channel, or with
    `per_channel=False` one for a whole layer. Example inputs in `torch.channels_last` give a program that
    takes its inputs so. `accuracy`, `keep_float`, `keep_float_budget` and `remainder` are those of
    `quantize_model`.
    `int8_io` drops the quantize and dequantize steps at the ends. Without `delegate` everything stays on the
    CPU, to compare with. Several methods are dictionaries by name; buffers that their modules have in common
    are one state, and calibration may be sequences of `(method, inputs)`. The program is run once here and
    compared with the quantized model, unless `verify` is off. `etrecord` (or the option `use_profiling`)
    keeps what ExecuTorch's Inspector needs to name the nodes of a profile. `state` names outputs that are
    inputs of the next run (`{"hn": "h0"}`): the program keeps them.
    """
    options, backends = options or CompileOptions(), find_recipe(recipe)
    methods, inputs, given = _by_method(module, example_inputs, calibration, state)
    samples = {name: [[example]] for name, example in inputs.items()}  # sequences of frames
    # An exported program may say of some dimensions that they have no fixed size.
    dynamic = {name: dynamic_shapes_of(m) for name, m in methods.items() if isinstance(m, ExportedProgram)}
    exported, shared = _with_shared_names(methods, inputs, dynamic)
    together: Sequence[NamedFrame] = ()  # what is run in turns, if methods share what they remember
    if calibration is not None:
        for name, method in methods.items() if delegate and not remainder else ():
            check_weights_fit(method, inputs[name], options, recipe, per_channel, keep_float)
        how = QuantizeOptions(
            per_channel, accuracy, keep_float, keep_float_budget, remainder, recipe, core, options
        )
        # The samples are not read before the weights are known to fit.
        if shared:
            sequences = named_frames(
                given if isinstance(calibration, Mapping) else calibration, tuple(methods)
            )
            methods = dict(_calibrated_together(exported, shared, sequences, how))
            samples, together = {}, sequences[0]
        else:
            given = {name: list(_samples_of(name, given)) for name in methods}
            methods = {name: _calibrated(method, given[name], how) for name, method in methods.items()}
            samples = {name: [frames_of(example[0])] if example else [] for name, example in given.items()}
    if calibration is not None or not shared:
        exported = {name: export_model(m, inputs[name], dynamic.get(name)) for name, m in methods.items()}
    for program in exported.values():
        check_results(program)
    record = etrecord or options.use_profiling
    with stage(EXIR):
        edge, partitioners = lower_program(
            exported, backends, options, core, delegation, delegate, record, calibration is not None, shared
        )
        edge = remove_quant_io(edge) if int8_io else edge
    not_asked = None if delegate and backends.neutron else _NO_NPU if delegate else _NO_DELEGATION
    compiled = package_program(edge, partitioners, not_asked=not_asked)
    if not verify:
        return compiled
    with stage(VERIFY):
        # What calibration made can be run as it is.
        return verified(compiled, exported if calibration is None else methods, samples, together)


@code_on_demand()
def convert_model(
    module: Model,
    example_inputs: Inputs,
    *,
    calibration: Iterable[Inputs] | None = None,
    per_channel: bool | None = None,
    accuracy: str | AccuracyPlan = BALANCED,
    keep_float: Collection[str] = (),
    channels_last_io: bool = False,
    state: State | None = None,
) -> bytes:
    """The whole model as one LiteRT file, for any LiteRT runtime: int8 with `calibration`, else as it is.

    A model that is quantized already stays so, with int8 inputs and outputs. What the NPU would not take is
    written in LiteRT's ordinary operators. `channels_last_io` leaves the transposes at the borders out.
    `state` names outputs that are inputs of the next run: the file has variables for them.
    """
    if state:
        carried, example_inputs = carry_state(module, example_inputs, state)
        module, calibration = carried, None if calibration is None else carried.frames(calibration)
    names = getattr(module, "port_names", None)  # an ONNX file has some, a PyTorch model has none
    if calibration is not None:
        module = quantize_model(
            module, calibration, per_channel=per_channel, accuracy=accuracy, keep_float=keep_float
        )
    exported = export_model(module, example_inputs)
    if calibration is None:
        quantized = any(op_name(n).startswith("quantized_decomposed.") for n in exported.graph.nodes)
        # A file quantized by others has its layers as they shall be; what it leaves in float is opened.
        passes = FLOAT_PARTS if quantized else ATEN_PASSES
        canonical = run_passes(exported.module(check_guards=False), passes, PTQ)
        exported = torch.export.export(canonical, as_tuple(example_inputs))
    with stage(LITERT):
        return write(lower_whole(exported, channels_last_io, names))


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
        converted = find_converter(options.converter).convert(
            data, options, find_target(options.config, options.converter)
        )
    ins, outs = (tuple(Port(i) for i in range(len(side))) for side in (graph.given, graph.returned))
    payload = build_payload(converted, ins, outs, len(graph.given), options.use_profiling)
    flags = (False,) * len(graph.given), (False,) * len(graph.returned)
    partition = Partition(Lowered(graph, *flags, graph), data, converted)
    partitioner = NeutronPartitioner(options.to_compile_specs())
    edge = embed(partition, pack(payload), partitioner.delegation_spec.compile_specs)
    nodes = tuple(op.outputs[0].name for op in graph.ops)
    return package_program(edge, {"forward": partitioner}, nodes)


@code_on_demand()
def quantize_model(
    module: Model,
    calibration_inputs: Iterable[Inputs],
    *,
    qat: bool = False,
    train_fn: Callable[[GraphModule], Any] | None = None,
    per_channel: bool | None = None,
    accuracy: str | AccuracyPlan = BALANCED,
    keep_float: Collection[str] = (),
    keep_float_budget: float | None = None,
    remainder: bool = False,
    target: str | None = None,
    recipe: str = NEUTRON.name,
    core: str | None = None,
    options: CompileOptions | None = None,
    watch: Callable[[Refined], None] | None = None,
    progress: Callable[[float], None] = lambda part: None,
) -> GraphModule:
    """Quantize a model to int8: by calibration on sample inputs, or with `qat` by training with `train_fn`.

    The first sample is also the example to export with. Layers named in `keep_float`, as `openneutron
    compare` names them, stay float and thus on the CPU. The options are those it will be compiled with: what
    they keep from the NPU is quantized for the CPU by the recipe `npu+cpu`. `accuracy` is fast, balanced,
    best or methods by name; `watch` is told what they did. With a `keep_float_budget` (0.05: 5 % more cycles)
    layers are kept float by what that gives at the outputs for the cycles it costs; None does so with 5 %
    where an output stays below 20 dB otherwise, 0 never. With `remainder` the model is one that another tool
    has quantized in part: only what that left in float is quantized.
    """
    how = QuantizeOptions(
        per_channel,
        accuracy,
        keep_float,
        keep_float_budget,
        remainder,
        recipe,
        core,
        _options(options, target),
    )
    if remainder and (qat or keep_float or keep_float_budget):
        fail("ON104", "remainder", "goes with calibration alone", "Leave qat and keep_float out.")
    if qat != (train_fn is not None):
        fail(
            "ON104",
            "quantize_model",
            "qat=True and train_fn belong together",
            "Give a function that trains the model it is given, or leave both out.",
        )
    if keep_float_budget and qat:
        fail("ON104", "keep_float_budget", "is for calibration, not for training", "Leave one out.")
    if train_fn is None:
        return _calibrated(module, calibration_inputs, how, watch, progress)
    return _trained(module, calibration_inputs, how, train_fn, watch)


def _calibrated(
    module: Model,
    calibration_inputs: Iterable[Inputs],
    how: QuantizeOptions,
    watch: Callable[[Refined], None] | None = None,
    progress: Callable[[float], None] = lambda part: None,
) -> GraphModule:
    """The model quantized by calibration: what is float in it, a model that remembers, or all of it."""
    plan = how.plan
    if how.remainder:
        samples = _samples(calibration_inputs)
        return quantize_remainder(
            module, samples, lambda given: how.quantizer(spread_over(given, EXAMPLES)), plan, watch, progress
        )
    budget, (examples, everything) = how.budget, _with_examples(calibration_inputs)
    exported = export_model(module, examples[0])
    if (stateful := with_state_ports(exported)) is not None:
        if how.keep_float_budget:
            fail("ON104", "keep_float_budget", "is not for a model that remembers", "Use keep_float.")
        pairs = stateful.pairs
        return quantize_sequences(
            stateful,
            as_sequences(everything),
            lambda given: how.quantizer(given, states=pairs),
            plan,
            watch,
            progress,
        )
    # The Cortex-M dialect has no operator with one input in float, so nothing is left so there unasked.
    unasked = how.keep_float_budget is None and find_recipe(how.recipe).cortex_m
    spend = budget.spend if budget.may_be_wanted(plan) and not unasked else None
    frames = (frame for sample in everything for frame in frames_of(sample))
    return calibrate_and_quantize(
        exported, frames, how.quantizer(examples), accuracy=plan, watch=watch, progress=progress, after=spend
    )


def _by_method(
    module: Model | Mapping[str, Model],
    example_inputs: Inputs | Mapping[str, Inputs],
    calibration: Iterable[Inputs] | Mapping[str, Iterable[Inputs]] | None,
    state: State | Mapping[str, State] | None,
) -> tuple[dict[str, Model], dict[str, Inputs], dict[str, Any]]:
    """Methods, their example inputs and their samples by name; a state that is passed is the method's own."""
    methods, examples = dict(by_method(module)), by_method(example_inputs)
    for name in methods:
        if name not in examples:
            fail("ON104", f"example inputs of {name}", "there are none",
                 "Give every method its inputs, by name.")  # fmt: skip
    inputs = {name: plain_inputs(as_tuple(examples[name])) for name in methods}
    given = {} if calibration is None else dict(by_method(calibration))
    states: Any = state if isinstance(module, Mapping) else {"forward": state}
    for name, pairs in states.items() if state else ():
        if name not in methods:
            fail("ON104", f"state of {name}", "there is no such method", nearest(name, methods))
        carried, inputs[name] = carry_state(methods[name], inputs[name], pairs)
        methods[name] = carried
        given |= {name: carried.frames(list(given[name]))} if name in given else {}
    return methods, inputs, given


def _with_shared_names(
    methods: Mapping[str, Model], inputs: Mapping[str, Inputs], dynamic: Mapping[str, Any]
) -> tuple[dict[str, ExportedProgram], set[str]]:
    """The exported methods and the names of the states they have in common; nothing if there are none."""
    if not have_common_buffers(methods):
        return {}, set()
    exported = {name: export_model(m, inputs[name], dynamic.get(name)) for name, m in methods.items()}
    return exported, name_shared(methods, exported)


def _samples_of(method: str, given: Mapping[str, Iterable[Inputs]]) -> Iterable[Inputs]:
    if method not in given:
        fail("ON209", f"calibration of {method}", "there are no calibration inputs",
             "Give every method at least one tuple of inputs, in a dictionary by method.")  # fmt: skip
    return given[method]


def _calibrated_together(
    exported: Mapping[str, ExportedProgram],
    shared: set[str],
    sequences: list[list[NamedFrame]],
    how: QuantizeOptions,
) -> dict[str, GraphModule]:
    """The methods quantized by calibration, with one scale for what they share."""
    if how.remainder or how.keep_float_budget:
        option = "remainder" if how.remainder else "keep_float_budget"
        fail("ON104", option, "is not for methods that share what they remember", "Leave it out.")
    return quantize_together(
        exported, shared, sequences, lambda given, pairs: how.quantizer(given, states=pairs), how.plan
    )


def _trained(
    module: Model,
    calibration_inputs: Iterable[Inputs],
    how: QuantizeOptions,
    train_fn: Callable[[GraphModule], Any],
    watch: Callable[[Refined], None] | None,
) -> GraphModule:
    """The model quantized by training, which starts from the equalized one if int8 is better with it."""
    plan, (examples, everything) = how.plan, _with_examples(calibration_inputs)
    training = _export_to_train(module, examples[0])
    calibration = [frame for sample in everything for frame in frames_of(sample)]
    if EQUALIZE in plan.methods:
        prepared = _prepared(module, examples[0], how.quantizer(examples))
        result = equalize_to_train(training, prepared, calibration)
        if watch is not None:
            watch(Refined(plan.name, [result]))
    return train_and_quantize(training, train_fn, how.quantizer(examples, qat=True), calibration)


def _with_examples(calibration_inputs: Iterable[Inputs]) -> tuple[list[Inputs], Iterable[Inputs]]:
    """First frames of some of the samples, the very first one among them; and all samples."""
    samples = iter(calibration_inputs)
    first = next(samples, None)
    if first is None:
        fail("ON209", "calibration", "there are no calibration inputs", "Give at least one tuple of inputs.")
    spread = spread_over(calibration_inputs, EXAMPLES) if isinstance(calibration_inputs, list) else [first]
    return [frames_of(sample)[0] for sample in spread], chain([first], samples)


def prepare_qat(
    module: Model,
    example_inputs: Inputs,
    *,
    recipe: str = NEUTRON.name,
    options: CompileOptions | None = None,
    per_channel: bool | None = None,
    calibration_inputs: Iterable[Inputs] = (),
) -> GraphModule:
    """A copy of the model with fake quantization in place, to be trained by a loop of your own.

    `train()` and `eval()` work on it as on any module; give it to `convert_qat` when it is trained. With
    calibration inputs training starts from the equalized model, if int8 is better with it.
    """
    example = plain_inputs(as_tuple(example_inputs))
    how = QuantizeOptions(per_channel, recipe=recipe, compiling=_options(options))
    training = _export_to_train(module, example)
    if calibration := _samples(calibration_inputs):
        equalize_to_train(training, _prepared(module, example, how.quantizer([example])), calibration)
    return prepare_to_train(training, how.quantizer([example], qat=True))


def convert_qat(prepared: GraphModule, calibration_inputs: Iterable[Inputs] = ()) -> GraphModule:
    """The quantized model that a prepared one has been trained to, to be given to `compile_model`.

    Sample inputs let the observers settle on the weights as training left them.
    """
    return convert_trained(prepared, _samples(calibration_inputs))


def _export_to_train(module: Model, example_inputs: Inputs) -> GraphModule:
    """A copy of the model to train: training must not change the caller's."""
    if isinstance(module, torch.nn.Module):
        module = copy.deepcopy(module).train()
    return copy.deepcopy(export_model(module, example_inputs).module(check_guards=False))


def _prepared(module: Model, example_inputs: Inputs, quantizer: Quantizer) -> GraphModule:
    if isinstance(module, torch.nn.Module):
        module = copy.deepcopy(module).eval()
    return prepare(export_model(module, example_inputs), quantizer)


def _samples(values: Iterable[Any]) -> list[Inputs]:
    return [plain_inputs(as_tuple(value)) for value in values]


def _options(options: CompileOptions | None, target: str | None = None) -> CompileOptions:
    """Options that name the target; the one of the options, if both are given, must be the same."""
    if options is None:
        return CompileOptions(config=target or DEFAULT_TARGET)
    if target is not None and target != options.config:
        fail("ON104", "target", f"is {target}, but the options say {options.config}", "Give it once.")
    return options
