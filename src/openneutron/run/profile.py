"""Where the time goes: an ETDump read with ExecuTorch's Inspector, and beside it what the cost model expects.

The delegate records one event per kernel call whenever a program is run with a tracer, however it was
compiled; the calls are numbered as in the microcode, which is in the .pte. The names of the Edge nodes behind
a call are in the ETRecord only, which is written at compile time.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from openneutron.compiler.microcode.cost import costs_of
from openneutron.compiler.microcode.format import KernelCall, decode
from openneutron.diagnostics import fail
from openneutron.files import MOST_BYTES, read_file
from openneutron.package.pte import MethodInfo
from openneutron.targets.chip import Target

if TYPE_CHECKING:
    from executorch.devtools import Inspector
    from executorch.devtools.etrecord import ETRecord

SUFFIX = ".etrecord"
_TENSORS = ("_state_dict", "_constants", "_example_inputs")  # how the names of tensors in a record end
_VALUES = ("reference_outputs", "representative_inputs")  # tensors too
_NAME = re.compile(r"[^\W\d]\w*|")
_TREE = re.compile(r"(?:[^\w.]|\w+(?![\w.])|builtins\.(?:tuple|list|dict)\b)*")
_OPERATOR = re.compile(
    r"(torch\.ops|executorch\.exir\.dialects\.(edge|backend)\.ops)(\.\w+){2,3}|"
    r"_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|eq|ne|lt|le|gt|ge)|math\.\w+|torch\.sym_\w+"
)
# What the texts under these keys of a program may be; other texts are shown and not run.
_ALLOWED = {
    "name": _NAME, "as_name": _NAME, "target": _OPERATOR, "as_operator": _OPERATOR,
    "in_spec": _TREE, "out_spec": _TREE,
}  # fmt: skip
_STEPS = ("quantized_decomposed.quantize", "quantized_decomposed.dequantize")
_NATIVE = "native_call_"


@dataclass(frozen=True)
class CallTime:
    """One kernel call: what it took on this machine, and what the cost model expects of the NPU."""

    delegate: int
    call: int
    kernel: str
    ops: tuple[str, ...]  # of the Edge nodes behind it; empty without an ETRecord
    nodes: tuple[str, ...]
    host_us: float  # median of the runs
    host_share: float  # of all kernel calls
    cycles_estimated: int
    cycles_share: float


@dataclass(frozen=True)
class HostTime:
    """What runs outside kernel calls: an operator on the CPU, or the delegate around its calls."""

    name: str
    host_us: float


@dataclass(frozen=True)
class Profile:
    """One method's time, call by call."""

    calls: tuple[CallTime, ...]
    others: tuple[HostTime, ...]
    runs: int
    named: bool  # whether there was an ETRecord

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return asdict(self) | {
            "host_us": sum(c.host_us for c in self.calls),
            "cycles_estimated": sum(c.cycles_estimated for c in self.calls),
        }


def read_profile(etdump: Path, method: MethodInfo, target: Target, etrecord: Path | None) -> Profile:
    """The times in an ETDump of a program whose method this is, with names if there is an ETRecord."""
    record = None if etrecord is None else read_etrecord(etrecord)
    calls = microcode_calls(method)
    if record is not None:
        _check_same(record, calls, str(etrecord))
    inspector = open_inspector(etdump, record)
    events = [e for block in inspector.event_blocks if block.name == "Execute" for e in block.events]
    times = {
        (e._instruction_id, int(e.delegate_debug_identifier)): e
        for e in events
        if e.is_delegated_op and e._instruction_id in calls
    }
    costs = {
        (i, n): cost.cycles for i, group in calls.items() for n, cost in enumerate(costs_of(group, target))
    }
    if missing := costs.keys() - times.keys():
        problem = f"has no event for {len(missing)} of {len(costs)} kernel calls"
        fail("ON516", str(etdump), problem, "Run the program it is to be compared with again, with --etdump.")
    total_time = sum(times[key].perf_data.p50 for key in costs) or 1.0
    total_cycles = sum(costs.values()) or 1
    rows = tuple(
        CallTime(
            delegate=method.delegate_calls[instruction],
            call=number,
            kernel=calls[instruction][number].kernel.name,
            ops=_ops(times[instruction, number]),
            nodes=_nodes(times[instruction, number]),
            host_us=times[instruction, number].perf_data.p50,
            host_share=times[instruction, number].perf_data.p50 / total_time,
            cycles_estimated=cycles,
            cycles_share=cycles / total_cycles,
        )
        for (instruction, number), cycles in costs.items()
    )
    runs = max((len(e.perf_data.raw) for e in times.values()), default=1)
    return Profile(rows, tuple(_others(events, method, list(times.values()))), runs, record is not None)


def microcode_calls(method: MethodInfo) -> dict[int, tuple[KernelCall, ...]]:
    """The kernel calls of every delegate of ours, by the instruction that calls it."""
    calls = {}
    for instruction, index in method.delegate_calls.items():
        delegate = method.delegates[index]
        if delegate.is_neutron and (payload := delegate.payload(f"delegate {index}")).is_open:
            calls[instruction] = decode(payload.microcode, f"delegate {index}").calls
    return calls


def read_etrecord(path: Path) -> ETRecord:
    """An ETRecord file; one that is missing or damaged is a diagnostic."""
    from executorch.devtools.etrecord import parse_etrecord

    data = io.BytesIO(read_file(path, "ON510"))
    try:
        _check_record(data)
        with quiet():
            return parse_etrecord(data)  # a file will do, and it is what was checked
    except Exception as error:  # a damaged archive fails in as many ways as it has bytes
        text = str(error).strip().splitlines()
        problem = f"is no ETRecord: {text[0] if text else type(error).__name__}"
        fail("ON516", str(path), problem, "Compile the model again with --etrecord.")


def _check_record(data: io.BytesIO) -> None:
    """Refuse what would run code: ExecuTorch evaluates expressions, and makes source code out of names."""
    with ZipFile(data) as archive:
        if sum(item.file_size for item in archive.infolist()) > MOST_BYTES:
            raise ValueError("it unpacks to too much")
        for name in archive.namelist():
            if not name.endswith(_TENSORS) and name not in _VALUES and (text := archive.read(name)):
                _check_values(json.loads(text), "")


def _check_values(value: Any, key: str) -> None:
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else ((key, item) for item in value):
            _check_values(item, name)
    elif isinstance(value, str):
        allowed = _ALLOWED.get(key)
        if key == "expr_str" or (allowed is not None and not allowed.fullmatch(value)):
            raise ValueError(f"its {key} {value[:60]!r} might run code")


def open_inspector(etdump: Path, record: ETRecord | None = None) -> Inspector:
    """ExecuTorch's Inspector on an ETDump, in microseconds; a damaged file is a diagnostic."""
    from executorch.devtools import Inspector
    from executorch.devtools.inspector import TimeScale

    try:
        with quiet():
            return Inspector(
                etdump_path=str(etdump),
                etrecord=record,
                source_time_scale=TimeScale.NS,
                target_time_scale=TimeScale.US,
            )
    except Exception as error:  # flatbuffers of another kind fail in many ways
        fail("ON516", str(etdump), f"is no ETDump ({type(error).__name__})", "Run with --etdump again.")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The Inspector warns of what is not its own: optional buffers, arguments by name."""
    logger = logging.getLogger("executorch")
    level = logger.level
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _check_same(record: ETRecord, calls: dict[int, tuple[KernelCall, ...]], where: str) -> None:
    """Refuse the record of another program: names would be wrong without anybody noticing."""
    recorded = (record._delegate_map or {}).get("forward", {})
    lengths = {i: len(group) for i, group in calls.items()}
    theirs = {int(i): len(m.get("delegate_map") or ()) for i, m in recorded.items() if int(i) in lengths}
    if lengths != theirs:
        fail("ON516", where, "is the ETRecord of another program: its kernel calls are not those of the .pte",
             "Compile again with --etrecord and run what that wrote.")  # fmt: skip


def _ops(event: Any) -> tuple[str, ...]:
    """The operators behind an event; quantize and dequantize steps only if there is nothing else."""
    every = list(dict.fromkeys(event.op_types))
    return tuple([op for op in every if not op.startswith(_STEPS)] or every)


def _nodes(event: Any) -> tuple[str, ...]:
    every = list(event.stack_traces)
    return tuple(n.rstrip("_") for n in ([n for n in every if "quantize_per" not in n] or every))


def _others(events: list[Any], method: MethodInfo, calls: list[Any]) -> Iterator[HostTime]:
    for event in events:
        if event.name.startswith(_NATIVE):
            yield HostTime(event.name.removeprefix(_NATIVE), event.perf_data.p50)
        elif event.name == "DELEGATE_CALL":
            inside = [c.perf_data.raw for c in calls if c._instruction_id == event._instruction_id]
            # Run by run: the medians of the parts do not add up to the median of the whole.
            rest = [whole - sum(parts) for whole, *parts in zip(event.perf_data.raw, *inside, strict=True)]
            index = method.delegate_calls.get(event._instruction_id)
            yield HostTime(f"delegate {index}, outside its calls", max(0.0, median(rest)))
