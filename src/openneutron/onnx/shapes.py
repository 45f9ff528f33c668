"""The shapes of a model's inputs: as the file says, a batch of 1, or as the user says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from openneutron.diagnostics import fail, nearest
from openneutron.onnx.file import torch_dtype
from openneutron.onnx.spec import Unsupported


@dataclass(frozen=True)
class Input:
    """An input of the graph, its shape settled."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def settle_inputs(
    graph: Any, constants: set[str], given: Mapping[str, Sequence[int]], where: str
) -> list[Input]:
    """The inputs that are not constants; a symbolic batch is 1, other open dimensions must be given."""
    protos = [i for i in graph.input if i.name not in constants]
    names = [i.name for i in protos]
    given = {names[0] if name == "" and len(names) == 1 else name: shape for name, shape in given.items()}
    for name in given:
        if name == "":
            fail(
                "ON104",
                "option --shape",
                f"the model has {len(names)} inputs",
                f"Name the one that is meant: --shape {names[0] if names else 'NAME'}=...",
            )
        if name not in names:
            fail("ON104", "option --shape", f"{where} has no input '{name}'", nearest(name, names))
    symbols = _known_symbols(protos, given)
    return [_settle(proto, given.get(proto.name), symbols, where) for proto in protos]


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`NAME=1,3,320,320` of the command line; without a name it is that of the only input ("")."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")
        try:
            shape = tuple(int(s) for s in sizes.replace("x", ",").split(",") if s.strip())
        except ValueError:
            shape = (0,)
        if any(d < 1 for d in shape):
            fail(
                "ON104",
                "option --shape",
                f"'{text}' is not NAME=SIZES",
                "For example: --shape input=1,3,320,320",
            )
        shapes[name] = shape
    return shapes


def parse_numbers(texts: Sequence[str]) -> dict[str, float]:
    """`NAME=NUMBER` of the command line."""
    numbers: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            name = ""
        if not name:
            fail("ON104", "option --fix", f"'{text}' is not INPUT=NUMBER", "For example: --fix sr=16000")
        numbers[name] = value
    return numbers


def fixed_inputs(graph: Any, numbers: Mapping[str, float], where: str) -> dict[str, torch.Tensor]:
    """Inputs that the user makes constants: a tensor of one element, filled with the number."""
    protos = {i.name: i for i in graph.input}
    fixed = {}
    for name, number in numbers.items():
        if name not in protos:
            fail("ON104", "option --fix", f"{where} has no input '{name}'", nearest(name, protos))
        dims = _dims(protos[name]) or []
        shape = [d if isinstance(d, int) else 1 for d in dims]
        try:
            dtype = torch_dtype(protos[name].type.tensor_type.elem_type)
        except Unsupported as error:
            fail(error.code, f"{where}: input '{name}'", error.problem, error.hint)
        if any(d != 1 for d in shape):
            fail("ON104", "option --fix", f"input '{name}' of {where} is {_text(dims)}, not one number", "")
        fixed[name] = torch.full(shape, number if dtype.is_floating_point else int(number), dtype=dtype)
    return fixed


def _dims(proto: Any) -> list[int | str] | None:
    """Each dimension as a number, or the name (maybe empty) of what is open; None: not even a rank."""
    kind = proto.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return [
        int(d.dim_value) if d.HasField("dim_value") and d.dim_value > 0 else str(d.dim_param)
        for d in kind.shape.dim
    ]


def _known_symbols(protos: Sequence[Any], given: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """What names of dimensions stand for: a batch for 1, others for what --shape gives an input."""
    symbols: dict[str, int] = {}
    for proto in protos:
        dims = _dims(proto) or []
        for i, dim in enumerate(dims):
            if isinstance(dim, str) and dim and proto.name in given and i < len(given[proto.name]):
                symbols[dim] = int(given[proto.name][i])
    for proto in protos:
        dims = _dims(proto) or []
        if dims and isinstance(dims[0], str) and dims[0] and proto.name not in given:
            symbols.setdefault(dims[0], 1)
    return symbols


def _settle(proto: Any, given: Sequence[int] | None, symbols: Mapping[str, int], where: str) -> Input:
    at = f"{where}: input '{proto.name}'"
    if not proto.type.HasField("tensor_type"):
        fail("ON904", at, "is not a tensor but a sequence, map or optional value", "Tensors are read.")
    try:
        dtype = torch_dtype(proto.type.tensor_type.elem_type)
    except Unsupported as error:
        fail(error.code, at, error.problem, error.hint)
    dims = _dims(proto)
    if given is not None:
        if dims is not None and (
            len(dims) != len(given)
            or any(isinstance(d, int) and d != g for d, g in zip(dims, given, strict=True))
        ):
            fail("ON104", "option --shape", f"{list(given)} does not fit {at}, which is {_text(dims)}", "")
        return Input(proto.name, tuple(int(g) for g in given), dtype)
    if dims is None:
        fail("ON905", at, "has no shape", f"Give it: --shape {proto.name}=1,...")
    shape: list[int] = []
    for i, dim in enumerate(dims):
        if isinstance(dim, int):
            shape.append(dim)
        elif dim in symbols:
            shape.append(symbols[dim])
        elif i == 0:
            shape.append(1)  # a batch
        else:
            example = ",".join(
                str(d) if isinstance(d, int) else "1" if j == 0 else "N" for j, d in enumerate(dims)
            )
            name = f" ('{dim}')" if dim else ""
            fail(
                "ON905",
                at,
                f"has the open dimension {i}{name} in {_text(dims)}",
                f"Programs are static; say how large it is: --shape {proto.name}={example}",
            )
    return Input(proto.name, tuple(shape), dtype)


def _text(dims: Sequence[int | str]) -> str:
    return "[" + ", ".join(str(d) if d != "" else "?" for d in dims) + "]"
