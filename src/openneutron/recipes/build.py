"""The recipes: what executorch.export is told to do, for each of the three."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from executorch.export import ExportRecipe, LoweringRecipe, QuantizationRecipe
from torch.fx import GraphModule

from openneutron.diagnostics import fail
from openneutron.options import CompileOptions
from openneutron.package.backend import NeutronPartitioner
from openneutron.package.before_edge import goes_before_edge, take_partitions
from openneutron.partition.partitioner import spellings
from openneutron.passes import BEFORE_PREPARE, PTQ, QAT, run_passes
from openneutron.passes.canonical.constants import fold_quantized
from openneutron.quantize.convert import hide_norms, show_norms
from openneutron.quantize.export import as_tuple
from openneutron.quantize.plan import BALANCED, AccuracyPlan
from openneutron.quantize.refine import calibrate
from openneutron.quantize.samples import Kept
from openneutron.recipes.parts import lowering_of, make_quantizer
from openneutron.recipes.quantize_options import QuantizeOptions, choose_float
from openneutron.recipes.recipe import CORTEX_M, NEUTRON, NPU_CPU, Recipe, find_recipe
from openneutron.tensors import plain_inputs

Samples = Callable[[], Iterable[tuple[Any, ...]]]
Train = Callable[[GraphModule], Any]


def get_neutron_recipe(
    *,
    qat: bool = False,
    options: CompileOptions | None = None,
    per_channel: bool | None = None,
    accuracy: str | AccuracyPlan = BALANCED,
    keep_float_budget: float = 0.0,
    calibration_inputs_fn: Samples | None = None,
    train_fn: Train | None = None,
    dynamic_batch_size: bool = False,
) -> ExportRecipe:
    """The recipe for the NPU; what it does not take stays float on the CPU.

    With a `keep_float_budget` (0.05: 5 % more cycles) layers are kept float by what they give at the outputs.
    """
    how = QuantizeOptions(
        per_channel,
        accuracy,
        keep_float_budget=keep_float_budget,
        recipe=NEUTRON.name,
        compiling=options or CompileOptions(),
    )
    return _recipe(how, qat, calibration_inputs_fn, train_fn, dynamic_batch_size)


def get_cortex_m_recipe(
    *,
    qat: bool = False,
    core: str | None = None,
    accuracy: str | AccuracyPlan = BALANCED,
    keep_float_budget: float = 0.0,
    calibration_inputs_fn: Samples | None = None,
    train_fn: Train | None = None,
    dynamic_batch_size: bool = False,
) -> ExportRecipe:
    """The recipe for the CPU alone, in int8."""
    how = QuantizeOptions(
        accuracy=accuracy, keep_float_budget=keep_float_budget, recipe=CORTEX_M.name, core=core
    )
    return _recipe(how, qat, calibration_inputs_fn, train_fn, dynamic_batch_size)


def get_npu_cpu_recipe(
    *,
    qat: bool = False,
    options: CompileOptions | None = None,
    core: str | None = None,
    per_channel: bool | None = None,
    accuracy: str | AccuracyPlan = BALANCED,
    keep_float_budget: float = 0.0,
    on_npu: Sequence[str] = (),
    on_cpu: Sequence[str] = (),
    calibration_inputs_fn: Samples | None = None,
    train_fn: Train | None = None,
    dynamic_batch_size: bool = False,
) -> ExportRecipe:
    """The recipe for both: the NPU, and in int8 on the CPU what it does not take.

    Operators named in `on_cpu` are kept from the NPU; one named in `on_npu` that the NPU does not take is an
    error when the model is lowered, instead of an entry in the report.
    """
    options = options or CompileOptions()
    excluded = (*options.operators_not_to_delegate, *on_cpu)
    for name in on_npu:
        both = [other for other in excluded if spellings_meet(name, other)]
        if both:
            fail(
                "ON110",
                NPU_CPU.name,
                f"{name} is demanded from the NPU and kept from it",
                "Name it in on_npu or in on_cpu (operators_not_to_delegate), not in both.",
            )
    options = replace(options, operators_not_to_delegate=tuple(dict.fromkeys(excluded)))
    how = QuantizeOptions(
        per_channel,
        accuracy,
        keep_float_budget=keep_float_budget,
        recipe=NPU_CPU.name,
        core=core,
        compiling=options,
    )
    return _recipe(how, qat, calibration_inputs_fn, train_fn, dynamic_batch_size, tuple(on_npu))


get_imxrt700_recipe = get_npu_cpu_recipe  # its name when one chip was supported


def spellings_meet(left: str, right: str) -> bool:
    """Whether two names mean the same operator: `aten::add` and `aten.add.Tensor` do."""
    return bool(spellings(left.replace("::", ".")) & spellings(right.replace("::", ".")))


def _recipe(
    how: QuantizeOptions,
    qat: bool,
    samples: Samples | None,
    train_fn: Train | None,
    dynamic_batch_size: bool,
    on_npu: tuple[str, ...] = (),
) -> ExportRecipe:
    recipe, options = find_recipe(how.recipe), how.compiling
    _check_training(recipe, qat, samples, train_fn)
    plan = Accuracy(how.plan)
    quantizer = make_quantizer(recipe.name, options, qat, how.per_channel)
    mixed: list[Any] = []
    if how.keep_float_budget:
        if samples is None:
            fail("ON110", recipe.name, "keep_float_budget is given without calibration inputs",
                 "Give calibration_inputs_fn, which it is chosen with.")  # fmt: skip
        mixed = [MixedPrecision(quantizer, samples, how)]
    quantization = QuantizationRecipe(
        quantizers=[quantizer],
        is_qat=qat,
        dynamic_batch_size=dynamic_batch_size,
        calibration_inputs_fn=samples,
        train_fn=train_fn,
        pre_prepare_passes=[drop_guards, *mixed, _before_prepare(qat)],
        post_prepare_passes=[] if qat else [plan.watch],
        pre_convert_passes=[] if qat else [plan.apply, hide_norms],
        post_convert_passes=[fold_quantized] if qat else [show_norms],
    )
    name = f"{recipe.name}_int8_{'qat' if qat else 'ptq'}".replace("-", "_")
    lowering = lowering_of(recipe, options, how.core)
    partitioner = _Demanding(options, on_npu)
    before = [lambda method, program: take_partitions(program, partitioner)]
    return ExportRecipe(
        name=name,
        quantization_recipe=quantization,
        aten_transform_passes=before if recipe.neutron and goes_before_edge(options) else None,
        lowering_recipe=LoweringRecipe(
            partitioners=[partitioner] if recipe.neutron else None,
            edge_transform_passes=[lambda method, program: list(lowering.before)],
            edge_manager_transform_passes=[_step(step) for step in lowering.after],
            edge_compile_config=lowering.config,
        ),
        strict=False,
    )


def _step(step: Any) -> Callable[[Any], list[Any]]:
    return lambda manager: [step]


def _check_training(recipe: Recipe, qat: bool, samples: Samples | None, train_fn: Train | None) -> None:
    """ExecuTorch ignores the one that does not fit; here that is an error."""
    if qat and train_fn is None:
        fail(
            "ON110",
            recipe.name,
            "a recipe for training has no training function",
            "Give train_fn, or use prepare_qat and convert_qat with a loop of your own.",
        )
    if not qat and train_fn is not None:
        fail(
            "ON110",
            recipe.name,
            "a recipe for calibration has a training function",
            "Ask for the QAT recipe, or leave train_fn out.",
        )
    if qat and samples is not None:
        fail(
            "ON110",
            recipe.name,
            "a recipe for training has calibration inputs, which ExecuTorch ignores",
            "Leave calibration_inputs_fn out: the observers see what train_fn feeds the model.",
        )


def drop_guards(model: GraphModule) -> GraphModule:
    """Remove the input guards torch.export adds: Edge passes refuse the submodule they are in."""
    for node in [n for n in model.graph.nodes if n.op == "call_module" and n.target == "_guards_fn"]:
        model.graph.erase_node(node)
    model.recompile()
    return model


class Accuracy:
    """An accuracy plan in ExecuTorch's stages: the samples it calibrates with are kept, then used again."""

    def __init__(self, plan: AccuracyPlan):
        self._plan = plan

    def watch(self, prepared: GraphModule) -> GraphModule:
        """Keep what the model is calibrated with."""
        kept = Kept()

        def keep(module: Any, args: tuple[Any, ...]) -> None:
            kept.add(args)

        self._kept, self._hook = kept, prepared.register_forward_pre_hook(keep)
        return prepared

    def apply(self, prepared: GraphModule) -> GraphModule:
        """Use the plan's methods."""
        self._hook.remove()
        if not self._plan.methods or not self._kept.samples:
            return prepared
        return calibrate(prepared, self._kept.samples, self._plan)[0]


@dataclass(frozen=True)
class MixedPrecision:
    """Tells the quantizer of a recipe which layers to keep float, before the model is prepared."""

    quantizer: Any
    samples: Samples
    how: QuantizeOptions

    def __call__(self, model: GraphModule) -> GraphModule:
        """Choose them on the calibration inputs; the model is left as it is."""
        samples = [plain_inputs(as_tuple(sample)) for sample in self.samples()]
        self.quantizer.keep_float, _ = choose_float(model, samples, self.how)
        return model


def _before_prepare(qat: bool) -> Callable[[GraphModule], GraphModule]:
    return lambda model: run_passes(model, BEFORE_PREPARE, QAT if qat else PTQ)


class _Demanding(NeutronPartitioner):
    """Fails if an operator that must be on the NPU is left to the CPU."""

    def __init__(self, options: CompileOptions, on_npu: tuple[str, ...]):
        super().__init__(options.to_compile_specs())
        self._on_npu = on_npu

    def partition(self, exported_program: Any) -> Any:
        result = super().partition(exported_program)
        for entry in self.rejected:
            for name in self._on_npu:
                if spellings_meet(name, entry.op):
                    hint = entry.reject.hint or "Leave it out of on_npu."
                    fail("ON111", entry.node.name, f"{name} must be on the NPU: {entry.reject.reason}", hint)
        return result
