"""Trained weights that ship with the package, made by `python -m openneutron.models.train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_FOLDER = Path(__file__).resolve().parent


def weights_path(name: str) -> Path:
    """Where the weights of a zoo model (by its principal name) are, if there are any."""
    return _FOLDER / f"{name}_digits.npz"


def has_weights(name: str) -> bool:
    """Whether the zoo model of that name ships with trained weights."""
    return weights_path(name).exists()


def load_weights(module: torch.nn.Module, name: str) -> None:
    """Put the trained weights of a zoo model into a module of its class."""
    import numpy as np
    import torch

    with np.load(weights_path(name)) as arrays:
        module.load_state_dict({key: torch.from_numpy(arrays[key]) for key in arrays.files})
