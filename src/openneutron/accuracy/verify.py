"""Does the program compute what the quantized model computes? It is run once here, on a sample, to find out.

The two need not be equal: each operator may round by one step differently, and such differences spread
through the operators that follow. How far they spread depends on the model, so the model itself is asked: it
is run again with every operator's result moved at random by one step of its scale. The program passes if its
distance from the model, as root mean square and at its largest, is at most FACTOR times the distance of the
model from itself so disturbed. Real kernels round differently in few places, the disturbance moves them all:
rounding alone stays far below the bound. A permuted tensor, a wrong layout or a wrong scale is an error of
the size of the signal, and far above it. Integer results (an argmax) pass if no larger part of them differs
than when disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from openneutron.diagnostics import fail
from openneutron.fx import op_name, tensor_of
from openneutron.ops import find
from openneutron.package.program import CompiledProgram, Verification
from openneutron.package.pte import TensorSpec, numpy_dtype
from openneutron.partition.constants import DEQUANTIZE_TENSOR, QUANTIZE_TENSOR
from openneutron.quantize.export import Model
from openneutron.quantize.stateful import Frames, is_stateful, one_sequence
from openneutron.quantize.together import NamedFrame
from openneutron.run.program import LoadedProgram, as_array, load_program
from openneutron.tensors import results

FACTOR = 2.0
_RUNS = 16  # disturbed runs at most; one is enough for a program that is right, nearly always
_FLOAT = 1e-5  # of the largest value
_SHORT_FLOAT_STEPS = 8  # that float16 and bfloat16 may differ by, of the largest value
REPEATED = 4  # times that the only frame of a program that remembers is run
MOST_FRAMES = 16  # of a sequence that a program is compared over

Arrays = list[np.ndarray]


def verified(
    program: CompiledProgram,
    models: Mapping[str, Model],
    samples: Mapping[str, Sequence[Frames]],
    together: Sequence[NamedFrame] = (),
) -> CompiledProgram:
    """The program with the outcome of the check; fails if it does not compute what the models compute.

    Methods that have state in common are run `together`, in the order of a sequence.
    """
    return replace(program, verification=verify_program(program.pte, program, models, samples, together))


def verify_program(
    pte: bytes,
    program: CompiledProgram,
    models: Mapping[str, Model],
    samples: Mapping[str, Sequence[Frames]],
    together: Sequence[NamedFrame] = (),
) -> Verification:
    """Run every method over its sequences and compare; what cannot run here is left out, and why is said."""
    if program.partitions and not program.compiled:
        return Verification(skipped="NXP's microcode runs on NXP silicon only")
    loaded = load_program(pte)
    worst = 0.0
    if any(spec is not None and 0 in spec.shape for m in loaded.info.methods.values() for spec in m.inputs):
        return Verification(skipped="a program with an empty input does not run here")
    references = {name: _runnable(model) for name, model in models.items()}
    for name, reference in references.items():
        if missing := loaded.missing_operators(name):
            _refuse_without_kernel(missing, program)
            return Verification(skipped=f"there is no kernel for {', '.join(missing)}")
        for frames in samples.get(name, ()):
            if len(frames) == 1 and is_stateful(reference):  # one run says nothing about what is remembered
                frames = frames * REPEATED
            own = {name: reference}
            worst = max(worst, _compare(loaded, own, [(name, frame) for frame in frames[:MOST_FRAMES]]))
    if together:
        worst = max(worst, _compare(loaded, references, together[:MOST_FRAMES]))
    return Verification(worst=worst)


def _runnable(model: Model) -> GraphModule:
    reference = model.module(check_guards=False) if isinstance(model, ExportedProgram) else model
    assert isinstance(reference, GraphModule)
    return reference


def _refuse_without_kernel(missing: Sequence[str], program: CompiledProgram) -> None:
    """An operator of PyTorch's own without a kernel has none anywhere; a user's may have one elsewhere."""
    for name in missing:
        namespace, _, rest = name.partition("::")
        if namespace != "aten":
            continue
        prefix = f"{namespace}.{rest.partition('.')[0]}."
        where = next((f"node '{r.node.name}'" for r in program.rejected if r.kernel.startswith(prefix)), name)
        fail("ON513", where, f"stays on the CPU, and ExecuTorch has no kernel for {name}",
             "Write the model without it; or register a kernel of your own before compiling, or compile with "
             "--no-verify (verify=False) and register one where the program runs.")  # fmt: skip


def _compare(loaded: LoadedProgram, models: Mapping[str, GraphModule], frames: Sequence[NamedFrame]) -> float:
    """The distance as a part of what is allowed, the worst of all outputs of one sequence."""
    frames = [(name, _varied_frame(models[name], frame)) for name, frame in frames]
    loaded.reset()
    by_frame = [_run_program(loaded, name, models[name], frame) for name, frame in frames]
    found = [array for outputs in by_frame for array in outputs]
    wanted = _run(models, frames)
    noise = _disturbed(models, frames)
    nodes = [node for name, _ in frames for node in _results(models[name])]
    bounds = [_float_rounding(w, node) for w, node in zip(wanted, nodes, strict=True)]
    for _ in range(_RUNS):
        shares = [_share(_distance(f, w), bound) for f, w, bound in zip(found, wanted, bounds, strict=True)]
        if max(shares, default=0.0) <= 1:
            return max(shares, default=0.0)
        moved = [_distance(d, w) for d, w in zip(next(noise), wanted, strict=True)]
        bounds = [
            (max(rms, FACTOR * by_rms), max(top, FACTOR * by_top))
            for (rms, top), (by_rms, by_top) in zip(bounds, moved, strict=True)
        ]
    number = int(np.argmax(shares))
    rms, top = _distance(found[number], wanted[number])
    at, output = [(i, j) for i, outputs in enumerate(by_frame) for j in range(len(outputs))][number]
    after = f" of frame {at + 1}" if len(frames) > 1 else ""
    fail(
        "ON517",
        f"{frames[at][0]}, output {output}{after}",
        f"differs from the quantized model by {rms:.3g} (root mean square) and {top:.3g} at most; rounding "
        f"explains {bounds[number][0]:.3g} and {bounds[number][1]:.3g}",
        "This is a defect: please report it with the model. --no-verify (verify=False) keeps the program.",
    )


def _distance(found: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """Root mean square and maximum of the difference; of integers, the part that differs."""
    if found.shape != wanted.shape:
        return float("inf"), float("inf")
    if not wanted.size:
        return 0.0, 0.0
    if wanted.dtype.kind in "iub":
        part = float(np.mean(found != wanted))
        return part, part
    same = np.isnan(found) & np.isnan(wanted) | (found == wanted)
    difference = np.where(same, 0.0, np.abs(found.astype(np.float64) - wanted.astype(np.float64)))
    difference = np.nan_to_num(difference, nan=np.inf)
    return float(np.sqrt(np.mean(difference**2))), float(difference.max())


def _float_rounding(wanted: np.ndarray, node: Any) -> tuple[float, float]:
    """What float kernels may differ by: they add in another order."""
    if wanted.dtype.kind != "f" or not np.isfinite(wanted).any():
        return 0.0, 0.0
    value = tensor_of(node) if isinstance(node, Node) else None
    dtype = torch.float32 if value is None else value.dtype
    is_short = dtype in (torch.float16, torch.bfloat16)
    part = _SHORT_FLOAT_STEPS * torch.finfo(dtype).eps if is_short else _FLOAT
    bound = part * float(np.abs(wanted[np.isfinite(wanted)]).max())
    return bound, bound


def _share(distance: tuple[float, float], bound: tuple[float, float]) -> float:
    return max(0.0 if d == 0 else d / b if b else float("inf") for d, b in zip(distance, bound, strict=True))


# --------------------------------------------------------------------------------------------------
# The model, as it is and disturbed


def _run(
    models: Mapping[str, GraphModule],
    frames: Sequence[NamedFrame],
    run: Callable[[GraphModule, tuple[Any, ...]], Any] = lambda model, frame: model(*frame),
) -> Arrays:
    with torch.no_grad(), ExitStack() as stack:
        for model in models.values():
            stack.enter_context(one_sequence(model))
        return [_array(x).copy() for name, frame in frames for x in results(run(models[name], frame))]


def _disturbed(models: Mapping[str, GraphModule], frames: Sequence[NamedFrame]) -> Iterator[Arrays]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(_RUNS):
        yield _run(models, frames, lambda model, frame: _Disturbed(model, generator).run(*frame))


class _Disturbed(Interpreter):
    """Runs a quantized model with each computed tensor moved by one step, up or down or not at all."""

    def __init__(self, model: GraphModule, generator: torch.Generator):
        super().__init__(model)
        self._generator = generator

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if op_name(n) != QUANTIZE_TENSOR or _keeps_values(n.all_input_nodes[0]):
            return value
        low, high = int(n.args[3]), int(n.args[4])  # type: ignore[arg-type]
        step = torch.randint(-1, 2, value.shape, generator=self._generator)
        return (value.to(torch.int32) + step).clamp(low, high).to(value.dtype)


def _keeps_values(node: Node) -> bool:
    spec = find(op_name(node))
    return spec is not None and spec.keeps_values


# --------------------------------------------------------------------------------------------------
# Inputs and outputs


def _varied_frame(model: GraphModule, frame: tuple[Any, ...]) -> tuple[Any, ...]:
    leaves = [_varied(x, node) for x, node in _with_nodes(model, frame)]
    return pytree.tree_unflatten(leaves, pytree.tree_structure(frame))


def _run_program(loaded: LoadedProgram, method: str, model: GraphModule, frame: tuple[Any, ...]) -> Arrays:
    specs = loaded.method(method).inputs
    given = [_as_given(x, spec, n) for (x, n), spec in zip(_with_nodes(model, frame), specs, strict=True)]
    found = [np.array(x) for x in loaded.run(given, method)]
    steps = [_result_step(node) for node in _results(model)]
    return [_dequantized(x, step) for x, step in zip(found, steps, strict=True)]


def _with_nodes(model: GraphModule, sample: tuple[Any, ...]) -> list[tuple[Any, Node]]:
    nodes = [n for n in model.graph.nodes if n.op == "placeholder"]
    return list(zip(pytree.tree_leaves(sample), nodes, strict=True))


def _results(model: GraphModule) -> list[Any]:
    return results(model.graph.output_node().args[0])


def _varied(value: Any, node: Node) -> Any:
    """A float input that is the same everywhere would hide a wrong layout: another of its range is taken."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.numel() < 2:
        return value
    if bool(value.max() > value.min()):
        return value
    parameters = _input_parameters(node)
    noise = torch.rand(value.shape, generator=torch.Generator().manual_seed(1), dtype=value.dtype)
    if parameters is None:
        noise = noise * 2 - 1
    else:
        scale, zero, low, high = parameters
        noise = (noise * (high - low) + low - zero) * scale
    varied = torch.empty_like(value)
    return varied.copy_(noise)


def _input_parameters(node: Node) -> tuple[float, int, int, int] | None:
    steps = [u for u in node.users if op_name(u) == QUANTIZE_TENSOR]
    return (float(steps[0].args[1]), *map(int, steps[0].args[2:5])) if steps else None  # type: ignore[arg-type, return-value]


def _result_step(node: Any) -> tuple[float, int] | None:
    """Scale and zero point of a result that is dequantized last."""
    if not isinstance(node, Node) or op_name(node) != DEQUANTIZE_TENSOR:
        return None
    return float(node.args[1]), int(node.args[2])  # type: ignore[arg-type]


def _as_given(value: Any, spec: TensorSpec | None, node: Node) -> Any:
    """A float sample for a program that takes int8."""
    if spec is None or not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    parameters = _input_parameters(node)
    if numpy_dtype(spec) != np.int8 or parameters is None:
        return value
    scale, zero, low, high = parameters
    return torch.ops.quantized_decomposed.quantize_per_tensor(value, scale, zero, low, high, torch.int8)


def _dequantized(value: np.ndarray, step: tuple[float, int] | None) -> np.ndarray:
    """An int8 result of a program without dequantize steps, as the float it stands for."""
    if step is None or value.dtype != np.int8:
        return value
    return ((value.astype(np.int32) - step[1]) * np.float32(step[0])).astype(np.float32)


def _array(value: Any) -> np.ndarray:
    return as_array(value.detach() if isinstance(value, torch.Tensor) else value)
