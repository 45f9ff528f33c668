"""Reading an .onnx file: parsed, checked, its weights as tensors. Nothing in it is run or believed.

Every size the file declares is compared with the bytes that are there before anything of that size is made,
and external data is read from the model's own folder only.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openneutron.diagnostics import fail, nearest
from openneutron.files import read_file
from openneutron.onnx.dynamic import open_dynamic
from openneutron.onnx.narrow import BITS, FLOAT4, INT2, INT4, INTEGERS, NARROW, UINT2, UINT4
from openneutron.onnx.spec import Unsupported

try:
    import onnx
    from onnx import TensorProto
except ImportError:  # an extra of this package
    fail(
        "ON901",
        "openneutron[onnx]",
        "reading ONNX files needs the package onnx, which is not installed",
        "pip install 'openneutron[onnx]'",
    )

_T = TensorProto
# By ONNX's number of the type: torch's, the one in the file, and the field of values that are not raw bytes.
_TYPES: dict[int, tuple[torch.dtype, str, str]] = {
    _T.FLOAT: (torch.float32, "<f4", "float_data"),
    _T.DOUBLE: (torch.float64, "<f8", "double_data"),
    _T.FLOAT16: (torch.float16, "<u2", "int32_data"),
    _T.BFLOAT16: (torch.bfloat16, "<u2", "int32_data"),
    _T.INT8: (torch.int8, "i1", "int32_data"),
    _T.UINT8: (torch.uint8, "u1", "int32_data"),
    _T.INT16: (torch.int16, "<i2", "int32_data"),
    _T.UINT16: (torch.uint16, "<u2", "int32_data"),
    _T.INT32: (torch.int32, "<i4", "int32_data"),
    _T.UINT32: (torch.uint32, "<u4", "uint64_data"),
    _T.INT64: (torch.int64, "<i8", "int64_data"),
    _T.UINT64: (torch.uint64, "<u8", "uint64_data"),
    _T.BOOL: (torch.bool, "u1", "int32_data"),
    _T.FLOAT8E4M3FN: (torch.float8_e4m3fn, "u1", "int32_data"),
    _T.FLOAT8E4M3FNUZ: (torch.float8_e4m3fnuz, "u1", "int32_data"),
    _T.FLOAT8E5M2: (torch.float8_e5m2, "u1", "int32_data"),
    _T.FLOAT8E5M2FNUZ: (torch.float8_e5m2fnuz, "u1", "int32_data"),
    _T.FLOAT8E8M0: (torch.float8_e8m0fnu, "u1", "int32_data"),
    _T.INT4: (INT4, "u1", "int32_data"),
    _T.UINT4: (UINT4, "u1", "int32_data"),
    _T.INT2: (INT2, "u1", "int32_data"),
    _T.UINT2: (UINT2, "u1", "int32_data"),
    _T.FLOAT4E2M1: (FLOAT4, "u1", "int32_data"),
}
_NUMBERS = {dtype: number for number, (dtype, _, _) in _TYPES.items()}
_VALUE_FIELDS = (
    "raw_data",
    "float_data",
    "double_data",
    "int32_data",
    "int64_data",
    "uint64_data",
    "string_data",
)


@dataclass(frozen=True)
class OnnxFile:
    """A checked model; its weights are tensors, no longer in the message."""

    path: Path
    model: Any  # onnx.ModelProto
    weights: dict[str, torch.Tensor]


def read_onnx(path: Path) -> OnnxFile:
    """Read and check a file."""
    return parse_onnx(read_file(path), path)


def external_files(path: Path) -> list[Path]:
    """The files beside a model that its weights are in; those it may not read are left out."""
    try:
        model = onnx.ModelProto.FromString(read_file(path))
    except Exception:
        return []  # reading it says what is wrong
    home = path.parent.resolve()
    named = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location" and (home / entry.value).resolve().is_relative_to(home)
    }
    return [path.parent / name for name in sorted(named)]


def parse_onnx(data: bytes, path: Path) -> OnnxFile:
    """Check the bytes of a model; `path` says where its external data may lie."""
    where = str(path)
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception:
        model = None
    del data
    if model is None or not model.HasField("graph") or not model.opset_import:
        fail(
            "ON902",
            where,
            "the bytes are not an ONNX model, or not all of one",
            "Export or download it again; a Git LFS pointer or a web page is not the model.",
        )
    _make_text(model)
    weights = _take_weights(model, path)
    try:
        onnx.checker.check_model(_with_shapes(model))
    except Exception as error:
        text = [line for line in str(error).strip().splitlines() if line.strip()]
        fail(
            "ON903",
            where,
            f"ONNX's checker refuses it: {' '.join(text[:2])[:300] or type(error).__name__}",
            "The file breaks ONNX's rules, or is newer than the installed package onnx; export it again."
            + _nearest_operator(text),
        )
    open_dynamic(model, weights, where)
    return OnnxFile(path, model, weights)


def _make_text(message: Any) -> None:
    """Let names that are no UTF-8 (those of a Windows code page) be text: protobuf gives them as bytes."""
    for field in message.DESCRIPTOR.fields:
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        value = getattr(message, field.name)
        if field.label != field.LABEL_REPEATED:
            if isinstance(value, bytes):
                setattr(message, field.name, value.decode(errors="backslashreplace"))
            elif field.type == field.TYPE_MESSAGE and message.HasField(field.name):
                _make_text(value)
            continue
        for i, item in enumerate(value):
            if isinstance(item, bytes):
                value[i] = item.decode(errors="backslashreplace")
            elif field.type == field.TYPE_MESSAGE:
                _make_text(item)


def _nearest_operator(text: list[str]) -> str:
    """The operator that may be meant, if what the checker does not know is one."""
    match = re.search(r"No Op registered for (\w+)", " ".join(text))
    if match is None:
        return ""
    from openneutron.onnx.ops import BY_NAME  # which reads types from here

    hint = nearest(match[1], sorted({name for _, name in BY_NAME}))
    return f" {hint.split(' Known')[0]}" if hint.startswith("Did") else ""


def _with_shapes(model: Any) -> Any:
    """A copy to check, without what the checker refuses and nobody else minds: inputs that lack a shape."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    # Before opset 13 the two have one scale by the rules; onnxruntime writes and takes one for each channel.
    for node in copy.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and not node.domain:
            for attribute in [a for a in node.attribute if a.name == "axis"]:
                node.attribute.remove(attribute)
    return copy


def _take_weights(model: Any, path: Path) -> dict[str, torch.Tensor]:
    """The initializers as tensors; in the message only their names remain, so that it is small to check."""
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        fail("ON904", f"{path}: initializer '{name}'", "is sparse", "Store it as an ordinary tensor.")
    weights: dict[str, torch.Tensor] = {}
    for proto in model.graph.initializer:
        try:
            weights[proto.name] = tensor_of(proto, path.parent)
        except Unsupported as error:
            fail(error.code, f"{path}: initializer '{proto.name}'", error.problem, error.hint)
        for field in (*_VALUE_FIELDS, "external_data", "data_location"):
            proto.ClearField(field)
        del proto.dims[:]
        proto.dims.append(0)
    return weights


def torch_dtype(number: int) -> torch.dtype:
    """torch's type for one of ONNX's."""
    if number not in _TYPES:
        names = {v: k for k, v in _T.DataType.items()}
        raise Unsupported(
            f"it has the type {names.get(number, number)}",
            f"Read: {', '.join(names[n].lower() for n in _TYPES)}.",
        )
    return _TYPES[number][0]


def onnx_type(dtype: torch.dtype) -> int:
    """ONNX's number for one of torch's types."""
    return _NUMBERS[dtype]


def tensor_of(proto: Any, folder: Path | None) -> torch.Tensor:
    """A tensor of the file; what it declares must agree with what is there."""
    dtype = torch_dtype(proto.data_type)
    _, stored, field = _TYPES[proto.data_type]
    shape = tuple(int(d) for d in proto.dims)
    # A tensor without elements may not have a size beyond all memory in another dimension: NumPy has none.
    if any(d < 0 for d in shape) or len(shape) > 32 or math.prod(d or 1 for d in shape) >= 1 << 60:
        raise Unsupported(f"it has the shape {list(shape)}"[:300], "The file is damaged.", "ON903")
    count = math.prod(shape)
    kind = np.dtype(stored)
    whole, packed = count, 8 // BITS.get(dtype, 8)
    count = -(-count // packed)  # several elements share a byte
    if proto.data_location == _T.EXTERNAL:
        raw: Any = _external(proto, folder, count * kind.itemsize)
        values = np.frombuffer(raw, kind)
    elif proto.HasField("raw_data"):
        raw = proto.raw_data
        if len(raw) != count * kind.itemsize:
            raise Unsupported(
                f"it declares {list(shape)} of {dtype}, {count * kind.itemsize} bytes, and has {len(raw)}",
                "The file is damaged; export it again.",
                "ON903",
            )
        values = np.frombuffer(raw, kind)
    else:
        listed = getattr(proto, field)
        if len(listed) != count:
            raise Unsupported(
                f"it declares {list(shape)}, {count} values, and has {len(listed)}",
                "The file is damaged; export it again.",
                "ON903",
            )
        values = np.array(listed, np.int64 if kind.kind in "iu" and kind.itemsize < 8 else kind).astype(kind)
    if dtype in NARROW:
        return _narrow(values, whole, dtype).reshape(shape)
    array = values.reshape(shape).copy() if not values.flags.writeable else values.reshape(shape)
    if dtype in (torch.float16, torch.bfloat16):
        return torch.from_numpy(array.view(np.int16)).view(dtype)
    return torch.from_numpy(array).to(dtype) if dtype == torch.bool else torch.from_numpy(array)


def _narrow(values: np.ndarray, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Elements of less than a byte, the lowest bits first, each in a byte of its own."""
    bits = BITS.get(dtype, 8)
    parts = [(values >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    flat = np.stack(parts, -1).reshape(-1)[:count].astype(np.uint8)
    low, high = INTEGERS.get(dtype, (0, 0))
    if low:
        flat = np.where(flat > high, flat.astype(np.int16) - (1 << bits), flat).astype(np.int8).view(np.uint8)
    return torch.from_numpy(flat).view(dtype)


def _external(proto: Any, folder: Path | None, size: int) -> bytearray:
    """The bytes of a tensor that lies in another file: in the model's folder, and nowhere else."""
    entries = {e.key: e.value for e in proto.external_data}
    location = entries.get("location", "")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
    except ValueError:
        raise Unsupported("its external data has an offset or a length that is none", "", "ON903") from None
    if folder is None:
        raise Unsupported("it has external data in a model without a folder", "", "ON906")
    refused = Unsupported(
        f"its data is in '{location}', outside of the model's folder",
        "Put the data file beside the model and name it without a path.",
        "ON906",
    )
    if not location or Path(location).is_absolute() or "\\" in location or "\0" in location:
        raise refused
    home = folder.resolve()
    file = (home / location).resolve()
    if not file.is_relative_to(home):
        raise refused
    if not file.is_file():
        raise Unsupported(f"its data file '{location}' is missing", "Put it beside the model.", "ON906")
    if length != size or offset < 0 or offset + length > file.stat().st_size:
        raise Unsupported(
            f"it needs {size} bytes, declares {length} at {offset} of '{location}', which has "
            f"{file.stat().st_size}",
            "The data file is damaged or belongs to another model.",
            "ON903",
        )
    with file.open("rb") as stream:
        stream.seek(offset)
        data = bytearray(stream.read(length))
    if len(data) != length:
        raise Unsupported(f"its data file '{location}' cannot be read whole", "Copy it again.", "ON903")
    return data


def attributes_of(proto: Any) -> dict[str, Any]:
    """The attributes of a node as Python values; a graph stays as it is."""
    a = onnx.AttributeProto
    attributes: dict[str, Any] = {}
    for item in proto.attribute:
        if item.type == a.STRING:
            attributes[item.name] = item.s.decode(errors="replace")
        elif item.type == a.STRINGS:
            attributes[item.name] = [s.decode(errors="replace") for s in item.strings]
        elif item.type == a.TENSOR:
            attributes[item.name] = tensor_of(item.t, None)
        elif item.type in (a.INT, a.FLOAT):
            attributes[item.name] = item.i if item.type == a.INT else item.f
        elif item.type in (a.INTS, a.FLOATS):
            attributes[item.name] = list(item.ints if item.type == a.INTS else item.floats)
        elif item.type == a.GRAPH:
            attributes[item.name] = item.g
        # Sparse tensors and the like: an operator that needs one says that it lacks it.
    return attributes
