"""Sample inputs saved with torch.save: a .pt file, or one compressed with xz, as NXP's examples take them."""

from __future__ import annotations

import io
import lzma
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.files import MOST_BYTES, read_file

TENSORS = (".pt", ".xz")
_KINDS = "Save a tensor with samples along its first dimension, or a list of samples, with torch.save."


def read_tensors(file: Path) -> list[np.ndarray]:
    """One array per model input, with samples along the first dimension; nothing in the file is run."""
    import torch

    try:
        loaded = torch.load(io.BytesIO(_unpacked(file)), map_location="cpu", weights_only=True)
    except OpenNeutronError:
        raise
    except lzma.LZMAError as error:
        fail("ON605", str(file), f"is no xz archive, or a damaged one: {error}", "Save it again.")
    except pickle.UnpicklingError:
        fail("ON605", str(file), "holds more than tensors, lists and tuples", _KINDS)
    except Exception as error:  # torch fails on a damaged archive in as many ways as it has bytes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        fail("ON605", str(file), f"torch.load cannot read it: {reason}", _KINDS)
    return [column.detach().numpy() for column in _columns(loaded, file)]


def _unpacked(file: Path) -> bytes:
    if file.suffix != ".xz":
        return read_file(file, "ON605")
    with lzma.open(io.BytesIO(read_file(file, "ON605"))) as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        fail("ON605", str(file), f"unpacks to more than {MOST_BYTES:,} bytes", "Give fewer samples.")
    return data


def _columns(loaded: Any, file: Path) -> list[Any]:
    """A tensor per input: of one tensor, a pair of inputs and labels, or a list of samples."""
    import torch

    if isinstance(loaded, torch.Tensor):
        return [loaded]
    if isinstance(loaded, list | tuple) and loaded:
        if _is_labelled(loaded):
            return [loaded[0]]
        rows = [row if isinstance(row, list | tuple) else (row,) for row in loaded]
        if all(isinstance(value, torch.Tensor) for row in rows for value in row[:1]):
            count = min(sum(isinstance(v, torch.Tensor) for v in row) for row in rows)
            try:
                return [torch.stack([row[i] for row in rows]) for i in range(count)]
            except (RuntimeError, TypeError) as error:
                fail("ON605", str(file), f"its samples differ: {str(error).splitlines()[0]}", _KINDS)
    fail("ON605", str(file), f"holds {type(loaded).__name__}, which is no set of samples", _KINDS)


def _is_labelled(loaded: Any) -> bool:
    """Whether it is a pair of inputs and labels: as many of the one as of the other."""
    import torch

    if len(loaded) != 2 or not all(isinstance(value, torch.Tensor) for value in loaded):
        return False
    inputs, labels = loaded
    return labels.ndim == 1 < inputs.ndim and not labels.is_floating_point() and len(inputs) == len(labels)
