"""A .pte as data: its methods, what they take and return, the operators and delegates they call."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.files import read_file
from openneutron.package.payload import Payload, parse
from openneutron.package.seal import check_seal
from openneutron.partition.partitioner import BACKEND_ID

# ExecuTorch's scalar types that NumPy has too.
_DTYPES = {
    "BYTE": "uint8",
    "CHAR": "int8",
    "SHORT": "int16",
    "INT": "int32",
    "LONG": "int64",
    "HALF": "float16",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "BOOL": "bool",
    "UINT16": "uint16",
}
_NAME = re.compile(r"[\w.:<>/+-]{1,256}", re.ASCII)  # of a method, operator or backend
_FILE_IDENTIFIER = b"ET12"
_HEADER = struct.Struct(
    "<4sIQQQ"
)  # magic "eh00", length, program size, segment base offset, segment data size


@dataclass(frozen=True)
class TensorSpec:
    """A tensor a method takes or returns; `dim_order` has its dimensions from outermost in memory inwards.

    The shape of a dynamic one is the largest; the file does not say which of its dimensions may be smaller.
    """

    shape: tuple[int, ...]
    dtype: str
    dim_order: tuple[int, ...]
    dynamic: bool = False

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape can be given."""
        if not self.dynamic:
            return tuple(shape) == self.shape
        return len(shape) == len(self.shape) and all(
            d <= top for d, top in zip(shape, self.shape, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}{' or smaller' if self.dynamic else ''}"


@dataclass(frozen=True)
class Delegate:
    """One delegate call: the backend's name and its payload as it lies in the file."""

    backend: str
    raw: bytes = field(repr=False)
    arguments: int = 0  # of the call

    @property
    def is_neutron(self) -> bool:
        """Whether it is one of NeutronBackend's."""
        return self.backend == BACKEND_ID

    def payload(self, where: str = "payload") -> Payload:
        """The payload, taken apart."""
        return parse(self.raw, where)

    def known_payload(self) -> Payload | None:
        """The payload, taken apart; None if it is another backend's, or in a form that is not known."""
        try:
            return self.payload() if self.is_neutron else None
        except OpenNeutronError:
            return None

    @property
    def temporary_bytes(self) -> int:
        """What it takes from the temporary allocator for activations: nothing if the call brings an arena."""
        payload = self.known_payload()
        if payload is None:
            return 0
        planned = payload.is_open and self.arguments > payload.input_args + len(payload.outputs)
        return 0 if planned else payload.words.scratch_bytes


@dataclass(frozen=True)
class MethodInfo:
    """One method; an input or output that is no tensor (a number, say) is None."""

    name: str
    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec | None, ...]
    operators: tuple[str, ...]  # with overload, as ExecuTorch registers them: "aten::add.out"
    delegates: tuple[Delegate, ...]
    planned_bytes: int  # memory ExecuTorch plans for the method's tensors
    planned_buffers: tuple[int, ...] = ()  # the same by buffer
    instructions: tuple[str, ...] = ()  # of the first chain: an operator, a backend, or what else it is
    most_arguments: int = 0  # of an operator
    delegate_calls: dict[int, int] = field(default_factory=dict)  # instruction -> index into `delegates`
    remembers: bool = False  # from run to run, in planned memory
    unplanned_ports: tuple[int, ...] = ()  # bytes of the inputs and outputs that no memory is planned for

    @property
    def shares_state(self) -> bool:
        """Whether what methods remember lies apart from their tensors (`share_mutable_buffers`)."""
        return len(self.planned_buffers) > 1

    @property
    def io_bytes(self) -> int:
        """The method's inputs and outputs."""
        return sum(tensor_bytes(spec) for spec in (*self.inputs, *self.outputs))

    @property
    def reserve_bytes(self) -> int:
        """Memory for inputs, outputs and activations together: planned, and of the temporary allocator."""
        return self.planned_bytes + max((d.temporary_bytes for d in self.delegates), default=0)


@dataclass(frozen=True)
class ProgramInfo:
    """What is in a .pte."""

    methods: dict[str, MethodInfo]
    bytes: int
    sealed: bool

    @property
    def delegates(self) -> tuple[Delegate, ...]:
        """The delegates of all methods."""
        return tuple(d for method in self.methods.values() for d in method.delegates)

    def payloads(self) -> list[Payload]:
        """The payloads of NeutronBackend, taken apart."""
        neutron = [d for d in self.delegates if d.is_neutron]
        return [d.payload(f"delegate {i}") for i, d in enumerate(neutron)]


def read_program(source: Path | str | bytes) -> tuple[bytes, str]:
    """The bytes of a program and a name for messages; an unreadable file is a diagnostic."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source), "program"
    return read_file(Path(source), "ON510"), str(source)


def check_program(data: bytes, where: str) -> bool:
    """Whether a program is sealed; bytes that are no whole program are a diagnostic."""
    if data[4:8] != _FILE_IDENTIFIER:
        kind = "a LiteRT model" if data[4:8] == b"TFL3" else "not an ExecuTorch program"
        hint = "openneutron run takes .tflite files too." if kind == "a LiteRT model" else "Give a .pte file."
        fail("ON511", where, f"the file is {kind}" if data else "the file is empty", hint)
    if data[8:12] == b"eh00" and len(data) >= 8 + _HEADER.size:
        _, _, program_bytes, segments_at, segments_bytes = _HEADER.unpack_from(data, 8)
        end = max(program_bytes, segments_at + segments_bytes)
        if len(data) < end:
            fail("ON512", where, f"truncated: {len(data):,} bytes of {end:,}", "Copy the file again.")
    return check_seal(data, where)


def inspect_program(source: Path | str | bytes) -> ProgramInfo:
    """Read a .pte without running it."""
    data, where = read_program(source)
    sealed = check_program(data, where)
    return parse_program(data, where, sealed)


def parse_program(data: bytes, where: str, sealed: bool) -> ProgramInfo:
    """The content of a program that `check_program` accepted."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    try:
        program = deserialize_pte_binary(data).program
        methods = {plan.name: _method(program, plan) for plan in program.execution_plan}
    except Exception as error:  # a damaged flatbuffer fails in as many ways as it has bytes
        fail(
            "ON512",
            where,
            f"the program cannot be read ({type(error).__name__})",
            "Copy or compile it again.",
        )
    names = [n for m in methods.values() for n in (m.name, *m.operators, *(d.backend for d in m.delegates))]
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            fail("ON512", where, f"{str(name)[:40]!r} in it is no name", "Copy or compile it again.")
    for method in methods.values():
        for spec in (*method.inputs, *method.outputs):
            if spec is not None and sorted(spec.dim_order) != list(range(len(spec.shape))):
                fail(
                    "ON512",
                    where,
                    f"{spec} has the order {spec.dim_order}",
                    "Copy or compile it again.",
                )
    return ProgramInfo(methods, len(data), sealed)


# ExecuTorch has no types here that mypy could follow: its modules are imported late and skipped.
def _method(program, plan) -> MethodInfo:  # type: ignore[no-untyped-def]
    return MethodInfo(
        name=plan.name,
        inputs=tuple(read_tensor(plan.values[i]) for i in plan.inputs),
        outputs=tuple(read_tensor(plan.values[i]) for i in plan.outputs),
        operators=tuple(_operator(op) for op in plan.operators),
        delegates=tuple(_delegates(program, plan)),
        planned_bytes=sum(plan.non_const_buffer_sizes),
        planned_buffers=tuple(plan.non_const_buffer_sizes[1:]),  # the first stands for constants
        instructions=tuple(_instruction(plan, i.instr_args) for c in plan.chains[:1] for i in c.instructions),
        most_arguments=_most_arguments(plan),
        delegate_calls=_delegate_calls(plan),
        remembers=any(_is_written_buffer(value.val) for value in plan.values),
        unplanned_ports=tuple(_unplanned_ports(plan)),
    )


def _unplanned_ports(plan) -> Iterator[int]:  # type: ignore[no-untyped-def]
    """Bytes of the inputs and outputs that an application has to bring memory for."""
    for i in dict.fromkeys((*plan.inputs, *plan.outputs)):
        tensor = plan.values[i].val
        if (
            type(tensor).__name__ == "Tensor"
            and not tensor.data_buffer_idx
            and tensor.allocation_info is None
        ):
            yield tensor_bytes(read_tensor(plan.values[i]))


def _is_written_buffer(value) -> bool:  # type: ignore[no-untyped-def]
    """Whether it is a tensor in planned memory that starts from a value in the file."""
    is_tensor = type(value).__name__ == "Tensor"
    return is_tensor and value.data_buffer_idx > 0 and value.allocation_info is not None


def _operator(op) -> str:  # type: ignore[no-untyped-def]
    return f"{op.name}.{op.overload}" if op.overload else str(op.name)


def _instruction(plan, call) -> str:  # type: ignore[no-untyped-def]
    kind = type(call).__name__
    if kind == "KernelCall":
        return _operator(plan.operators[call.op_index])
    return str(plan.delegates[call.delegate_index].id) if kind == "DelegateCall" else kind


def _most_arguments(plan) -> int:  # type: ignore[no-untyped-def]
    calls = [i.instr_args for chain in plan.chains for i in chain.instructions]
    return max((len(c.args) for c in calls if type(c).__name__ == "KernelCall"), default=0)


def _delegate_calls(plan) -> dict[int, int]:  # type: ignore[no-untyped-def]
    instructions = [i.instr_args for chain in plan.chains[:1] for i in chain.instructions]
    return {n: a.delegate_index for n, a in enumerate(instructions) if type(a).__name__ == "DelegateCall"}


def read_tensor(value) -> TensorSpec | None:  # type: ignore[no-untyped-def]
    """The tensor that a value of a program is; None if it is something else."""
    tensor = value.val
    if type(tensor).__name__ != "Tensor":
        return None
    dtype = _DTYPES.get(tensor.scalar_type.name, tensor.scalar_type.name.lower())
    dynamic = tensor.shape_dynamism.name != "STATIC"
    return TensorSpec(tuple(tensor.sizes), dtype, tuple(tensor.dim_order), dynamic)


def _delegates(program, plan) -> Iterator[Delegate]:  # type: ignore[no-untyped-def]
    calls = [i.instr_args for chain in plan.chains for i in chain.instructions]
    arguments = {c.delegate_index: len(c.args) for c in calls if type(c).__name__ == "DelegateCall"}
    for index, delegate in enumerate(plan.delegates):
        # Reading the file has brought every delegate's segment back into this list.
        raw = bytes(program.backend_delegate_data[delegate.processed.index].data)
        yield Delegate(delegate.id, raw, arguments.get(index, 0))


def tensor_bytes(spec: TensorSpec | None) -> int:
    """Of an input or output; a number has eight."""
    if spec is None:
        return 8
    dtype = numpy_dtype(spec)
    return int(np.prod(spec.shape, dtype=np.int64)) * (dtype.itemsize if dtype is not None else 8)


def numpy_dtype(spec: TensorSpec) -> np.dtype | None:
    """The NumPy type of a tensor, or None if NumPy has none."""
    return np.dtype(spec.dtype) if spec.dtype in _DTYPES.values() else None
