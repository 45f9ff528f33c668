"""The first stage: a model as torch.export gives it."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

from openneutron.stopwatch import EXPORT, stage

Inputs = tuple[Any, ...]
Model = torch.nn.Module | ExportedProgram


def export_model(module: Model, example_inputs: Inputs) -> ExportedProgram:
    """The model as torch.export gives it; an exported one is taken as it is."""
    if isinstance(module, ExportedProgram):
        return module
    with stage(EXPORT):
        return torch.export.export(module, as_tuple(example_inputs))


def as_tuple(inputs: Any) -> Inputs:
    """The inputs of a model that may have been given as one tensor."""
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
