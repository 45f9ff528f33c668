"""The file formats of models: one row each, and what reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from openneutron.files import read_file
from openneutron.inputs.exported_program import load_exported
from openneutron.inputs.model import Source, check_static, is_quantized

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def _from_pt2(path: Path, *options: Sequence[str]) -> Source:
    from torch.utils import _pytree as pytree

    read_file(path)
    import executorch.exir  # noqa: F401  # registers the operators of quantized programs
    import torchao.quantization.pt2e  # noqa: F401

    program = load_exported(path)
    check_static(program, str(path))
    example = program.example_inputs
    if example is not None:
        inputs = tuple(pytree.tree_leaves(example))
    else:
        inputs = tuple(_placeholder_inputs(program))
    return Source(path.stem, program, inputs, quantized=is_quantized(program))


def _from_onnx(path: Path, shape: Sequence[str], fix: Sequence[str]) -> Source:
    from openneutron.onnx import load_onnx
    from openneutron.onnx.shapes import parse_numbers, parse_shapes

    module = load_onnx(path, parse_shapes(shape), parse_numbers(fix))
    return Source(path.stem, module, module.example_inputs, quantized=module.is_quantized)


def _from_litert(path: Path, *options: Sequence[str]) -> Source:
    return Source(path.stem, None, (), litert=read_file(path))


def _onnx_weights(path: Path) -> list[Path]:
    from openneutron.onnx.file import external_files

    return external_files(path)


def _placeholder_inputs(program: ExportedProgram) -> Iterable[torch.Tensor]:
    import torch

    names = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in names:
            value = node.meta["val"]
            yield torch.zeros(tuple(value.shape), dtype=value.dtype)


@dataclass(frozen=True)
class Format:
    """A file format of models."""

    load: Callable[[Path, Sequence[str], Sequence[str]], Source]  # with the values of --shape and --fix
    options: tuple[str, ...] = ()  # of `add_model_options`: those it has a use for
    companions: Callable[[Path], list[Path]] = lambda path: []  # files it reads besides


FORMATS = {
    ".pt2": Format(_from_pt2, ("state",)),
    ".onnx": Format(_from_onnx, ("shape", "fix", "state"), _onnx_weights),
    ".tflite": Format(_from_litert),
}
