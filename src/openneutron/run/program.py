"""Running a .pte with ExecuTorch's own runtime and our delegate.

Everything that can be wrong with a file is found before ExecuTorch sees it, so that the message can name it:
ExecuTorch itself reports a number, or ends the process.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.files import scratch_folder, write_atomically
from openneutron.package.payload import check_fits
from openneutron.package.pte import (
    MethodInfo,
    ProgramInfo,
    TensorSpec,
    check_program,
    numpy_dtype,
    parse_program,
    read_program,
)
from openneutron.package.seal import was_made_here
from openneutron.run.delegate import allow_work, load_runtime, stopped_by_interrupts, use_threads
from openneutron.run.indices import explain_indices, index_limits
from openneutron.run.native import NativeModel, check_most_work
from openneutron.run.rehearsal import rehearse
from openneutron.run.threads import thread_count
from openneutron.targets.table import DEFAULT_TARGET
from openneutron.tensors import from_numpy, in_order

if TYPE_CHECKING:
    from executorch.runtime import Method, Program, Runtime

Input = torch.Tensor | np.ndarray


class LoadedProgram:
    """A program ready to run. Calls from several threads take turns; to run at once, each loads its own.

    `threads` is how many the delegate shares its work with; None stands for OPENNEUTRON_THREADS, else 1.
    `most_work` is what a delegate may ask for in one run; 0 stands for the runtime's own limit.
    """

    @property
    def target(self) -> str:
        """The chip its delegates were compiled for."""
        payloads = (d.known_payload() for d in self.info.delegates if d.is_neutron)
        return next((p.stamp.target for p in payloads if p is not None and p.stamp.target), DEFAULT_TARGET)

    def __init__(
        self,
        runtime: Runtime,
        data: bytes,
        info: ProgramInfo,
        where: str,
        etdump: bool = False,
        threads: int | None = None,
        most_work: int = 0,
    ):
        self.info = info
        self._most_work = most_work
        self._threads = thread_count(threads)
        self._where = where
        self._runtime = runtime
        self._lock = threading.Lock()
        self._methods: dict[str, Method] = {}
        self._data, self._etdump = data, etdump
        self._program = self._open()

    def _open(self) -> Program:
        try:
            return self._runtime.load_program(self._data, enable_etdump=self._etdump)
        except RuntimeError as error:
            fail(
                "ON512",
                self._where,
                f"ExecuTorch refuses the program: {_first_line(error)}",
                "Copy or compile it again.",
            )

    def run(self, inputs: Sequence[Input], method: str = "forward") -> list[np.ndarray]:
        """The outputs of a method for these inputs, which must have its shapes and types; no None."""
        info = self.method(method)
        arguments = self._arguments(info, inputs)
        with self._lock:
            loaded = self._load(info)
            use_threads(self._threads)
            try:
                with stopped_by_interrupts():
                    outputs = loaded.execute(arguments)
            except RuntimeError as error:
                explain_indices(self._data, info, inputs, self._where)
                fail(
                    "ON515",
                    self._where,
                    f"{method} failed: {_first_line(error)}",
                    "ExecuTorch's messages above say more.",
                )
        return [as_array(value) for value in outputs if value is not None]

    def reset(self) -> None:
        """Let all that the program remembers start from its initial values, as after loading."""
        with self._lock:
            if (
                self._methods and self.remembers
            ):  # a method that is loaded anew has memory of its own, as it was at first
                self._methods, self._program = {}, self._open()

    @property
    def remembers(self) -> bool:
        """Whether anything survives from run to run: in a delegate, or in a buffer that the CPU writes."""
        on_cpu = any("aten::copy_" in method.operators for method in self.info.methods.values())
        return on_cpu or any(payload.states for payload in self.info.payloads())

    def method(self, name: str = "forward") -> MethodInfo:
        """What a method takes and returns."""
        if name not in self.info.methods:
            names = ", ".join(sorted(self.info.methods))
            fail("ON515", self._where, f"the program has no method '{name}'", f"It has: {names}")
        return self.info.methods[name]

    def index_limits(self, method: str = "forward") -> list[int | None]:
        """For each input that holds indices, one more than the largest; None for the others."""
        return index_limits(self._data, self.method(method), self._where)

    def write_etdump(self, path: Path) -> None:
        """Write the events of all runs so far for ExecuTorch's Inspector; needs `etdump=True` at loading."""
        with scratch_folder() as folder:
            events, debug = folder / "events", folder / "debug"  # ExecuTorch wants both
            self._program.write_etdump_result_to_file(str(events), str(debug))
            write_atomically(Path(path), events.read_bytes())

    def _load(self, info: MethodInfo) -> Method:
        if info.name not in self._methods:
            # Loading a method writes the initial values of all it shares: not while others remember there.
            for other in self.info.methods.values() if info.shares_state else (info,):
                if other.shares_state or other is info:
                    self._load_one(other)
        return self._methods[info.name]

    def _load_one(self, info: MethodInfo) -> None:
        if info.name not in self._methods:
            self._check_registered(info)
            allow_work(self._most_work)
            try:
                self._methods[info.name] = self._program.load_method(info.name)
            except RuntimeError as error:
                _explain_payloads(info, self._where, self._most_work)
                fail(
                    "ON515",
                    self._where,
                    f"{info.name} cannot be loaded: {_first_line(error)}",
                    "ExecuTorch's messages above say more.",
                )

    def missing_operators(self, method: str) -> list[str]:
        """The operators of a method that no library in this process has a kernel for."""
        return sorted(set(self.method(method).operators) - self._runtime.operator_registry.operator_names)

    def _check_registered(self, info: MethodInfo) -> None:
        if missing := self.missing_operators(info.name):
            fail(
                "ON513",
                self._where,
                f"there is no kernel for {', '.join(missing)}",
                "Load the library that registers it first, or lower the model so that it is not needed.",
            )
        registered = set(self._runtime.backend_registry.registered_backend_names)
        absent = sorted({d.backend for d in info.delegates} - registered)
        if absent:
            fail(
                "ON513",
                self._where,
                f"there is no backend {', '.join(absent)}",
                f"Load its library first. Here are: {', '.join(sorted(registered))}.",
            )

    def _arguments(self, info: MethodInfo, inputs: Sequence[Input]) -> tuple[Any, ...]:
        if len(inputs) != len(info.inputs):
            listing = ", ".join(str(spec) for spec in info.inputs)
            fail(
                "ON514",
                self._where,
                f"{len(inputs)} inputs given, {info.name} takes {len(info.inputs)}",
                f"It takes {listing}." if listing else "",
            )
        pairs = zip(inputs, info.inputs, strict=True)
        return tuple(
            _argument(value, spec, f"{self._where}: input {i}") for i, (value, spec) in enumerate(pairs)
        )


def load_program(
    source: Path | str | bytes,
    *,
    target: str | None = None,
    etdump: bool = False,
    threads: int | None = None,
    trust: bool = False,
    most_work: int = 0,
) -> LoadedProgram:
    """Load a .pte file (or its bytes) to run it here; whatever is wrong with it is a diagnostic.

    A program this process did not compile is rehearsed first, in a process of its own; `trust` skips that.
    With a `target` a program for another is refused. A delegate that asks for more work than `most_work`
    multiplications is refused; 0 stands for the runtime's own limit.
    """
    check_most_work(most_work)
    data, where = read_program(source)
    sealed = check_program(data, where)
    runtime = load_runtime()
    if not trust and not was_made_here(data):
        rehearse(data, where, most_work)
    info = parse_program(data, where, sealed)
    for method in info.methods.values():
        for i, delegate in enumerate(d for d in method.delegates if d.is_neutron):
            place = f"{where}: {method.name}, delegate {i}"
            check_fits(delegate.payload(place), target, place)
    return LoadedProgram(runtime, data, info, where, etdump, threads, most_work)


def _explain_payloads(info: MethodInfo, where: str, most_work: int) -> None:
    """Prepare every payload here, where the reason for a refusal can be had in words."""
    for i, delegate in enumerate(d for d in info.delegates if d.is_neutron):
        place = f"{where}: {info.name}, delegate {i}"
        payload = delegate.payload(place)
        try:
            NativeModel(payload.microcode, payload.weights, place, most_work=most_work)
        except OpenNeutronError as error:
            diagnostic = error.diagnostic
            code = "ON512" if diagnostic.code == "ON503" else diagnostic.code
            fail(code, place, diagnostic.problem, diagnostic.hint)


def _argument(value: Any, spec: TensorSpec | None, where: str) -> Any:
    if spec is None:
        return value
    if not isinstance(value, torch.Tensor | np.ndarray):
        fail(
            "ON514",
            where,
            f"is {type(value).__name__}, the program takes {spec}",
            "Give an array or a tensor.",
        )
    # A name torch and NumPy share; a type NumPy lacks is compared by torch's name alone.
    dtype = str(value.dtype).removeprefix("torch.")
    if not spec.takes(value.shape) or dtype != str(numpy_dtype(spec) or spec.dtype):
        fail(
            "ON514",
            where,
            f"is {dtype}{list(value.shape)}, the program takes {spec}",
            "Convert it; a program is compiled for one type, and for one shape unless that is dynamic.",
        )
    tensor = value if isinstance(value, torch.Tensor) else from_numpy(value)
    return in_order(tensor, spec.dim_order)


def as_array(value: Any) -> np.ndarray:
    """A result as an array; NumPy has no bfloat16, of which float32 has every value."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
