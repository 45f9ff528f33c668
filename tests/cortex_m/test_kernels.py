"""Every cortex_m operator gives on the host, bit for bit, what the dialect's Python reference gives."""

from __future__ import annotations

from pathlib import Path

import executorch.backends.cortex_m
import pytest
import torch
import yaml

from openneutron.run.delegate import load_runtime
from tests.cortex_m.cases import CASES, Maker
from tests.cortex_m.program import Call, reference, run_calls


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


@pytest.fixture(scope="module")
def schemas() -> set[str]:
    folder = Path(next(iter(executorch.backends.cortex_m.__path__)))
    entries = yaml.safe_load((folder / "ops" / "operators.yaml").read_text())
    return {entry["func"].split("(")[0] for entry in entries}


def test_every_operator_of_the_dialect_is_registered(schemas: set[str]) -> None:
    names = load_runtime().operator_registry.operator_names
    assert {name for name in names if name.startswith("cortex_m::")} == schemas


def test_every_operator_of_the_dialect_has_cases(schemas: set[str]) -> None:
    assert {f"cortex_m::{operator}.out" for operator in CASES} == schemas


@pytest.mark.parametrize("operator", CASES)
def test_equals_the_reference(operator: str) -> None:
    calls = [Call(operator, arguments) for arguments in CASES[operator](Maker(0))]
    results = run_calls(calls)
    assert len(results) == len(calls)
    different = [i for i, call in enumerate(calls) if not _same_bits(results[i], reference(call))]
    assert not different, f"calls {different} of {len(calls)}"
