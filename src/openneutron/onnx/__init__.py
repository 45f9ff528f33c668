"""ONNX files as torch modules, for the same pipeline as everything else.

    file      bytes -> a checked model; weights as tensors; external data from the model's own folder only
    shapes    the shape of every input: the file's, a batch of 1, or the user's
    importer  shapes propagated, constants computed, branches and functions inlined
    ops/      ONE entry per ONNX operator: versions read, how it is written in torch, test cases
    module    what remains as a torch module with the graph's own names

Inside of this package `import onnx` is the PyPI package; it is an extra, and imported with the first file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openneutron.onnx.module import OnnxModule

__all__ = ["load_onnx"]


def load_onnx(
    path: str | Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fixed: Mapping[str, float] | None = None,
) -> OnnxModule:
    """The model of an .onnx file as a torch module.

    `shapes` settles open dimensions by input name; `fixed` makes inputs of one element constants. Half
    precision is computed in float32.
    """
    from openneutron.onnx.file import read_onnx
    from openneutron.onnx.importer import import_model
    from openneutron.onnx.shapes import fixed_inputs

    file = read_onnx(Path(path))
    return import_model(file, shapes, fixed_inputs(file.model.graph, fixed or {}, str(path)), widen=True)
