"""Trained .tflite models that others made, through the open compiler: LiteRT's reference bit for bit."""

import numpy as np
import pytest

from openneutron.litert.reference import Reference
from openneutron.run.litert import load_litert
from tests.programs import assert_same
from tests.trained import NAMES, trained_model


@pytest.mark.parametrize("name", NAMES)
def test_trained_model(name: str) -> None:
    path = trained_model(name)
    program, reference = load_litert(path), Reference(path.read_bytes())
    rng = np.random.default_rng(0)
    for _ in range(50):
        inputs = [rng.integers(-128, 128, shape).astype(dtype) for shape, dtype in program.inputs]
        assert_same(program.run(inputs), reference.run(inputs))
