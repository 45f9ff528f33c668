"""Trained weights that ship with the package, made by `python -m openneutron.models.train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_FOLDER = Path(__file__).resolve().parent


def weights_path(name: str) -> Path:
    """Where weights of this name, a model's and its data's (`dscnn_digits`), are, if there are any."""
    return _FOLDER / f"{name}.npz"


def load_weights(module: torch.nn.Module, name: str) -> None:
    """Put trained weights into a module of the class that they were trained in."""
    import numpy as np
    import torch

    with np.load(weights_path(name)) as arrays:
        module.load_state_dict({key: torch.from_numpy(arrays[key]) for key in arrays.files})
