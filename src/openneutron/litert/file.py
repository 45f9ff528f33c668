"""Reading and writing .tflite files with LiteRT's own flatbuffer schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from openneutron.diagnostics import OpenNeutronError, fail, printable
from openneutron.litert.ir import RESOURCE, Builtin, Graph, Op, Quant, Tensor, Trait, kinds
from openneutron.litert.variables import as_variables, from_variables

_FILE_ID = b"TFL3"
_TYPE_CODE = {
    "float32": schema.TensorType.FLOAT32, "int32": schema.TensorType.INT32, "int8": schema.TensorType.INT8,
    "int64": schema.TensorType.INT64, "int16": schema.TensorType.INT16, "uint8": schema.TensorType.UINT8,
    "bool": schema.TensorType.BOOL, RESOURCE: schema.TensorType.RESOURCE,
}  # fmt: skip
_TYPE_NAME = {code: name for name, code in _TYPE_CODE.items()}

# Builtins whose options table does not follow from the operator's name.
_OPTIONS_NAME = {
    Builtin.AVERAGE_POOL_2D: "Pool2DOptions", Builtin.MAX_POOL_2D: "Pool2DOptions",
    **dict.fromkeys(kinds(Trait.REDUCES), "ReducerOptions"),
    Builtin.CONV_2D: "Conv2DOptions", Builtin.DEPTHWISE_CONV_2D: "DepthwiseConv2DOptions",
    Builtin.MAXIMUM: "MaximumMinimumOptions", Builtin.MINIMUM: "MaximumMinimumOptions",
    Builtin.L2_NORMALIZATION: "L2NormOptions", Builtin.BATCH_MATMUL: "BatchMatMulOptions",
}  # fmt: skip


def options_name(kind: Builtin) -> str | None:
    """The schema's options table for an operator, or None when it has none."""
    if kind in _OPTIONS_NAME:
        return _OPTIONS_NAME[kind]
    name = "".join(part.capitalize() for part in kind.name.split("_")) + "Options"
    name = {"Padv2Options": "PadV2Options", "SpaceToBatchNdOptions": "SpaceToBatchNDOptions",
            "BatchToSpaceNdOptions": "BatchToSpaceNDOptions"}.get(name, name)  # fmt: skip
    return name if hasattr(schema, name + "T") else None


def write(graph: Graph, description: str = "OpenNeutron") -> bytes:
    """The graph as the bytes of a .tflite file; the same graph gives the same bytes.

    What it remembers are variables, with a second subgraph that sets their initial values.
    """
    graph.verify()
    buffers: list[Any] = [schema.BufferT()]
    buffer_of: dict[bytes, int] = {b"": 0}
    codes: dict[tuple[int, str], int] = {}

    model = schema.ModelT()
    model.version = 3
    model.description = description.encode()
    model.subgraphs = [_write_subgraph(g, buffers, buffer_of, codes) for g in as_variables(graph)]
    model.buffers = buffers
    model.operatorCodes = []
    for kind, custom in codes:
        code = schema.OperatorCodeT()
        code.builtinCode = kind
        code.deprecatedBuiltinCode = min(kind, 127)
        # LiteRT's kernels look at what a tensor is, not at the version; one is registered from version 2 on.
        code.version = 2 if kind == Builtin.BROADCAST_TO else 1
        code.customCode = custom.encode() if custom else None
        model.operatorCodes.append(code)
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder), file_identifier=_FILE_ID)
    return bytes(builder.Output())


def _write_subgraph(
    graph: Graph, buffers: list[Any], buffer_of: dict[bytes, int], codes: dict[tuple[int, str], int]
) -> Any:
    tensors = graph.tensors()
    index = {id(t): i for i, t in enumerate(tensors)}
    subgraph = schema.SubGraphT()
    subgraph.name = graph.name.encode()
    subgraph.tensors = []
    for t in tensors:
        entry = schema.TensorT()
        entry.name = t.name.encode()
        entry.shape = np.array(t.shape, np.int32)
        entry.hasRank = True
        entry.type = _TYPE_CODE[t.dtype]
        entry.quantization = _write_quant(t.quant) if t.quant else None
        if t.data is not None:
            raw = np.ascontiguousarray(t.data).tobytes()
            if raw not in buffer_of:
                buffer_of[raw] = len(buffers)
                buffer = schema.BufferT()
                buffer.data = np.frombuffer(raw, np.uint8)
                buffers.append(buffer)
            entry.buffer = buffer_of[raw]
        subgraph.tensors.append(entry)
    subgraph.inputs = np.array([index[id(t)] for t in graph.inputs], np.int32)
    subgraph.outputs = np.array([index[id(t)] for t in graph.outputs], np.int32)
    subgraph.operators = []
    for op in graph.ops:
        entry = schema.OperatorT()
        key = (int(op.kind), op.custom_name)
        entry.opcodeIndex = codes.setdefault(key, len(codes))
        entry.inputs = np.array([-1 if t is None else index[id(t)] for t in op.inputs], np.int32)
        entry.outputs = np.array([index[id(t)] for t in op.outputs], np.int32)
        _write_options(op, entry)
        subgraph.operators.append(entry)
    return subgraph


def _write_quant(quant: Quant) -> Any:
    entry = schema.QuantizationParametersT()
    entry.scale = np.array(quant.scale, np.float32)
    entry.zeroPoint = np.array(quant.zero_point, np.int64)
    entry.quantizedDimension = quant.axis
    return entry


def _write_options(op: Op, entry: Any) -> None:
    if op.kind is Builtin.CUSTOM:
        raw = op.options.get("custom", b"")
        entry.customOptions = np.frombuffer(raw, np.uint8) if raw else None
        return
    name = options_name(op.kind)
    if name is None:
        assert not op.options, f"{op.kind.name} takes no options, got {op.options}"
        return
    options = getattr(schema, name + "T")()
    for key, value in op.options.items():
        assert hasattr(options, key), f"{name} has no field {key}"
        if isinstance(value, tuple):
            value = np.array(value, np.int32)
        elif isinstance(value, str):
            value = value.encode()
        setattr(options, key, value)
    if hasattr(schema.BuiltinOptions, name):
        entry.builtinOptionsType = getattr(schema.BuiltinOptions, name)
        entry.builtinOptions = options
    else:
        entry.builtinOptions2Type = getattr(schema.BuiltinOptions2, name)
        entry.builtinOptions2 = options


@dataclass(frozen=True)
class _Source:
    """A file being read: its name for messages, its parsed model, its bytes (large buffers live there)."""

    name: str
    model: Any
    raw: bytes


def read(raw: bytes, name: str = "model.tflite") -> Graph:
    """The first subgraph of a .tflite file; an unknown batch (-1 in the signature) is taken as stored: 1."""
    if len(raw) < 8 or raw[4:8] != _FILE_ID:
        fail(
            "ON302", name, "not a LiteRT model (the file identifier TFL3 is missing)", "Give a .tflite file."
        )
    try:
        source = _Source(name, schema.ModelT.InitFromPackedBuf(bytearray(raw), 0), raw)
        return _read_graph(source).verify()
    except OpenNeutronError as error:
        if error.diagnostic.code == "ON301":  # what we write is legal, so the file is not as it was written
            fail(
                "ON302", name, f"the file is damaged ({error.diagnostic.problem})", "Copy or export it again."
            )
        raise
    except Exception as error:  # the flatbuffer accessors raise anything on damaged bytes
        fail(
            "ON302",
            name,
            f"the file is damaged ({type(error).__name__}: {error})",
            "Copy or export it again.",
        )


def _read_graph(source: _Source) -> Graph:
    """The graph of a file's one subgraph; a second one may set the initial values of variables."""
    subgraphs = source.model.subgraphs or []
    if len(subgraphs) not in (1, 2):
        fail("ON303", source.name, f"the model has {len(subgraphs)} subgraphs; control flow is not supported")
    main, *others = (_read_subgraph(source, subgraph) for subgraph in subgraphs)
    return from_variables(main, others, source.name)


def _read_subgraph(source: _Source, subgraph: Any) -> Graph:
    model = source.model
    names: set[str] = set()
    tensors = [_read_tensor(source, t, i, names) for i, t in enumerate(subgraph.tensors or [])]

    def pick(indices: Any) -> list[Tensor]:
        return [tensors[_checked(int(i), len(tensors))] for i in ([] if indices is None else indices)]

    ops: list[Op] = []
    for entry in [] if subgraph.operators is None else subgraph.operators:
        code = model.operatorCodes[_checked(int(entry.opcodeIndex), len(model.operatorCodes))]
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        if number not in Builtin._value2member_map_:
            label = next((k for k, v in vars(schema.BuiltinOperator).items() if v == number), str(number))
            fail("ON303", source.name, f"operator {label} is not supported",
                 "Known: " + ", ".join(b.name for b in Builtin))  # fmt: skip
        kind = Builtin(number)
        inputs: list[Tensor | None] = [
            None if i == -1 else tensors[_checked(int(i), len(tensors))]
            for i in ([] if entry.inputs is None else entry.inputs)
        ]
        ops.append(Op(kind, inputs, pick(entry.outputs), _read_options(kind, entry), origin=(),
                      custom_name=_text(code.customCode)))  # fmt: skip
        for t in ops[-1].outputs:
            ops[-1].origin += (t.name,)
    return Graph(pick(subgraph.inputs), pick(subgraph.outputs), ops, _text(subgraph.name) or "main")


def _text(raw: bytes | None) -> str:
    """A name in the file, fit for a terminal."""
    return printable((raw or b"").decode(errors="replace")).replace("\n", "?")


def _checked(index: int, count: int) -> int:
    if not 0 <= index < count:
        raise IndexError(f"index {index} of {count}")
    return index


def _read_tensor(source: _Source, entry: Any, index: int, names: set[str]) -> Tensor:
    name = _text(entry.name) or f"t{index}"
    if name in names:
        name = f"{name}:{index}"
    names.add(name)
    if entry.type not in _TYPE_NAME:
        label = next((k for k, v in vars(schema.TensorType).items() if v == entry.type), str(entry.type))
        fail("ON303", source.name, f"tensor {name} has type {label}", "Supported: " + ", ".join(_TYPE_CODE))
    dtype = _TYPE_NAME[entry.type]
    shape = tuple(int(d) for d in ([] if entry.shape is None else entry.shape))
    if entry.shapeSignature is not None and any(d < 0 for d in entry.shapeSignature[1:]):
        fail("ON303", source.name, f"tensor {name} has a dynamic shape {list(entry.shapeSignature)}",
             "Convert the model with fixed sizes (only the batch may be open, it is then 1).")  # fmt: skip
    raw = _buffer_bytes(source, entry.buffer)
    # A tensor without elements has no bytes to be a constant by: the shape of a scalar is one.
    data = np.frombuffer(raw, dtype).reshape(shape).copy() if raw or 0 in shape else None
    return Tensor(name, shape, dtype, _read_quant(entry.quantization), data)


def _buffer_bytes(source: _Source, index: int) -> bytes:
    buffer = source.model.buffers[_checked(int(index), len(source.model.buffers))]
    if buffer.data is not None:
        return np.asarray(buffer.data, np.uint8).tobytes()
    if buffer.size and buffer.offset > 1:
        if buffer.offset + buffer.size > len(source.raw):
            raise IndexError(f"buffer {index} ends outside the file")
        return source.raw[buffer.offset : buffer.offset + buffer.size]
    return b""


def _read_quant(entry: Any) -> Quant | None:
    if entry is None or entry.scale is None or len(entry.scale) == 0:
        return None
    zeros = (
        [0] * len(entry.scale) if entry.zeroPoint is None or len(entry.zeroPoint) == 0 else entry.zeroPoint
    )
    if len(zeros) == 1 and len(entry.scale) > 1:
        zeros = [int(zeros[0])] * len(entry.scale)
    return Quant(
        tuple(float(s) for s in entry.scale), tuple(int(z) for z in zeros), int(entry.quantizedDimension)
    )


def _read_options(kind: Builtin, entry: Any) -> dict[str, Any]:
    if kind is Builtin.CUSTOM:
        raw = entry.customOptions
        return {"custom": b"" if raw is None else np.asarray(raw, np.uint8).tobytes()}
    options = entry.builtinOptions if entry.builtinOptions is not None else entry.builtinOptions2
    name = options_name(kind)
    if options is None or name is None:
        return {}
    if type(options).__name__ != name + "T":
        raise ValueError(f"{kind.name} has the options of another operator")
    result = {}
    for key, value in vars(options).items():
        if isinstance(value, np.ndarray | list):
            value = tuple(int(v) for v in value)
        elif isinstance(value, bytes):
            value = _text(value)
        if value is not None and not (hasattr(value, "__dict__")):
            result[key] = value
    return result
