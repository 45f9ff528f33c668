"""The first stage: a model as torch.export gives it."""

from __future__ import annotations

from functools import partial
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
    # A module that knows better names for its nodes than torch.export gives them exports itself.
    export = getattr(module, "export_program", None) or partial(torch.export.export, module)
    with stage(EXPORT):
        return export(as_tuple(example_inputs))


def as_tuple(inputs: Any) -> Inputs:
    """The inputs of a model that may have been given as one tensor."""
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
