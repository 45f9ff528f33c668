"""What a program should compute, kept beside it: for programs that only a board can run.

`model.reference.npz` has inputs, the quantized model's outputs for them, and how far a program may be from
them: the bound of `verify`, which moves the result of every operator by one step.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule

from openneutron.accuracy.verify import (
    FACTOR,
    _as_given,
    _dequantized,
    _distance,
    _disturbed,
    _float_rounding,
    _result_step,
    _results,
    _run,
    _varied,
    _with_nodes,
)
from openneutron.diagnostics import fail
from openneutron.files import write_atomically
from openneutron.models.arrays import load_arrays
from openneutron.package.pte import inspect_program
from openneutron.tensors import from_numpy

CASES = 4


@dataclass(frozen=True)
class Case:
    """One input of a program, what should come of it, and how far it may be off (rms and most)."""

    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    bounds: list[tuple[float, float]]
    steps: list[tuple[float, int] | None]  # of an int8 output: scale and zero point

    def check(self, found: Sequence[np.ndarray], where: str) -> float:
        """How much of what is allowed a board's outputs are off; more than all of it is a diagnostic."""
        worst = 0.0
        for number, (array, want) in enumerate(zip(found, self.outputs, strict=True)):
            real = _dequantized(np.asarray(array), self.steps[number]).reshape(want.shape)
            distance, bound = _distance(real, want), self.bounds[number]
            pairs = zip(distance, bound, strict=True)
            share = max(0.0 if d == 0 else d / b if b else float("inf") for d, b in pairs)
            if share > 1:
                fail("ON726", f"{where}, output {number}",
                     f"differs from the quantized model by {distance[0]:.3g} (root mean square) and "
                     f"{distance[1]:.3g} at most; rounding explains {bound[0]:.3g} and {bound[1]:.3g}",
                     "Please report it with the program and the firmware.")  # fmt: skip
            worst = max(worst, share)
        return worst


def reference_path(program: Path) -> Path:
    """Where the reference of a program is kept."""
    return program.with_name(f"{program.stem}.reference.npz")


def write_reference(program: Path, pte: bytes, model: Any, example: tuple[Any, ...]) -> Path:
    """Run the quantized model on the example and on inputs like it, and keep what it computes."""
    graph = model if isinstance(model, GraphModule) else model.module(check_guards=False)
    method = next(iter(inspect_program(pte).methods.values()))
    arrays: dict[str, np.ndarray] = {"program": np.frombuffer(hashlib.sha256(pte).digest(), np.uint8)}
    steps = [_result_step(node) for node in _results(graph)]
    arrays["steps"] = np.array([(0.0, 0) if s is None else s for s in steps], np.float64).reshape(-1, 2)
    for n, sample in enumerate(_samples(graph, example)):
        pairs = zip(_with_nodes(graph, sample), method.inputs, strict=True)
        given = [_as_given(x, spec, node) for (x, node), spec in pairs]
        wanted = _run({"": graph}, [("", sample)])
        bounds = [_float_rounding(want, node) for want, node in zip(wanted, _results(graph), strict=True)]
        for noise in _disturbed({"": graph}, [("", sample)]):
            moved = [_distance(a, b) for a, b in zip(noise, wanted, strict=True)]
            bounds = [
                (max(rms, FACTOR * by_rms), max(top, FACTOR * by_top))
                for (rms, top), (by_rms, by_top) in zip(bounds, moved, strict=True)
            ]
        arrays |= {f"input_{n}_{i}": np.asarray(x) for i, x in enumerate(given)}
        arrays |= {f"output_{n}_{i}": x for i, x in enumerate(wanted)}
        arrays[f"bounds_{n}"] = np.array(bounds, np.float64).reshape(-1, 2)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomically(reference_path(program), buffer.getvalue())
    return reference_path(program)


def read_reference(program: Path, pte: bytes) -> list[Case]:
    """The cases of this very program; none if there is no such file, or it is damaged or another's."""
    method = next(iter(inspect_program(pte).methods.values()))
    try:
        arrays = load_arrays(reference_path(program))
        if arrays["program"].tobytes() != hashlib.sha256(pte).digest():
            return []
        steps = [(float(scale), int(zero)) if scale else None for scale, zero in arrays["steps"]]
        cases = []
        for n in range(CASES):
            inputs = [arrays[f"input_{n}_{i}"] for i in range(len(method.inputs))]
            outputs = [arrays[f"output_{n}_{i}"] for i in range(len(method.outputs))]
            bounds = [(float(rms), float(top)) for rms, top in arrays[f"bounds_{n}"]]
            fits = [spec is None or (array.shape == spec.shape and str(array.dtype) == spec.dtype)
                    for array, spec in zip(inputs, method.inputs, strict=True)]  # fmt: skip
            if not all(fits) or len(bounds) != len(outputs) or len(steps) != len(outputs):
                return []
            cases.append(Case(inputs, outputs, bounds, steps))
        return cases
    except Exception:  # a file of anyone's: whatever is wrong with it, there is no reference
        return []


def _samples(graph: GraphModule, example: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The example, and its values in other orders: the same range at other places."""
    first = tuple(_varied(x, node) for x, node in _with_nodes(graph, example))
    found = [first]
    generator = np.random.default_rng(0)
    for _ in range(CASES - 1):
        found.append(tuple(_shuffled(x, generator) for x in first))
    return found


def _shuffled(value: Any, generator: np.random.Generator) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    flat = value.detach().numpy().reshape(-1)
    moved = from_numpy(generator.permutation(flat).reshape(value.shape))
    return torch.empty_like(value).copy_(moved)
