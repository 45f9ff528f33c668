"""The C runtime as Python sees it: prepare a microcode once, run it on arrays."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

import numpy as np

from openneutron.compiler.microcode.driver import (
    DATA,
    LIBRARY,
    WORK,
    Buffer,
    Descriptor,
    Model,
    aligned,
    buffer_of,
    copied,
    load,
    message,
    prepare,
)
from openneutron.compiler.microcode.format import DType, Kernel
from openneutron.diagnostics import fail
from openneutron.run.threads import thread_count

_BUFFERS = ctypes.POINTER(Buffer)
_LONG_WORK = 1 << 26
"""Runs of more work, milliseconds or longer, end at Ctrl-C; a shorter one is over before it is noticed."""


_COPY = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32
)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint32)
_TRACE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int)


class _Hooks(ctypes.Structure):
    _fields_ = (("context", ctypes.c_void_p), ("copy", _COPY), ("wait", _WAIT), ("trace", _TRACE))


class _Run(ctypes.Structure):
    """NeutronRun of neutron.h."""

    _fields_ = (
        ("inputs", _BUFFERS),
        ("input_count", ctypes.c_size_t),
        ("outputs", _BUFFERS),
        ("output_count", ctypes.c_size_t),
        ("scratch", Buffer),
        ("prefetch", Buffer),
        ("hooks", ctypes.POINTER(_Hooks)),
        ("threads", ctypes.c_void_p),
        ("stop", ctypes.POINTER(ctypes.c_uint32)),
        ("state", Buffer),
    )


class _Batch(ctypes.Structure):
    """NeutronBatch of neutron_batch.h."""

    _fields_ = (
        ("inputs", _BUFFERS),
        ("input_count", ctypes.c_size_t),
        ("outputs", _BUFFERS),
        ("output_count", ctypes.c_size_t),
        ("count", ctypes.c_size_t),
        ("scratch", Buffer),
        ("prefetch", Buffer),
        ("areas", ctypes.c_uint32),
        ("threads", ctypes.c_void_p),
        ("stop", ctypes.POINTER(ctypes.c_uint32)),
    )


@cache
def _threads(library: Path, count: int) -> int | None:
    """Threads for runs, shared by all models of the process; None for one thread."""
    if count == 1:
        return None
    loaded = load(library)
    loaded.neutron_pool_create.restype = loaded.neutron_pool_threads.restype = ctypes.c_void_p
    pool = loaded.neutron_pool_create(ctypes.c_uint32(count))
    if not pool:
        fail("ON504", str(library.name), f"{count} threads cannot be started", "Ask for fewer.")
    return loaded.neutron_pool_threads(ctypes.c_void_p(pool))


def check_most_work(given: int) -> int:
    """A limit of work as the runtime takes it; one that is no such number is a diagnostic."""
    if not 0 <= given < 1 << 64:
        fail("ON104", "most_work", f"must be from 0 to 2^64 - 1 (got {given})")
    return given


_WATCH = "neutron_watch_interrupts"  # a runtime without its host part has none


@contextlib.contextmanager
def _stopped_by_interrupts(library: ctypes.CDLL, run: _Run | _Batch) -> Iterator[None]:
    """Let Ctrl-C end a run: Python itself would wait until it returns. Signals are the main thread's."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(library, _WATCH):
        yield
        return
    library.neutron_watch_interrupts.restype = ctypes.POINTER(ctypes.c_uint32)
    run.stop = library.neutron_watch_interrupts()
    try:
        yield
    finally:
        library.neutron_unwatch_interrupts()
        run.stop = None


def _aligned_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return aligned(int(np.prod(shape)) * dtype.itemsize).view(dtype).reshape(shape)


class NativeModel:
    """A microcode with its weights, prepared by the C runtime; safe to run from one thread at a time.

    `threads` is how many share the work of a run; None stands for OPENNEUTRON_THREADS, else 1. A model that
    asks for more work than `most_work` is refused (neutron.h says how it is counted); 0 stands for the
    runtime's own limit.
    """

    def __init__(
        self,
        microcode: bytes,
        weights: bytes,
        name: str = "microcode",
        library: Path = LIBRARY,
        threads: int | None = None,
        most_work: int = 0,
    ):
        self._library = load(library)
        self._name = name
        self._microcode, self._weights = copied(microcode), copied(weights)
        self._model = Model()
        arrays = self._microcode, self._weights
        if status := prepare(self._library, self._model, arrays, check_most_work(most_work)):
            problem = message(self._library, self._model, status)
            if status == WORK:
                fail(
                    "ON521", name, problem, "If you know where it comes from, set a larger limit (most_work)."
                )
            fail("ON503", name, problem, "Compile the model again with this version of openneutron.")
        model = self._model
        self.inputs = [_described(model.inputs[i]) for i in range(model.input_count)]
        self.outputs = [_described(model.outputs[i]) for i in range(model.output_count)]
        self._scratch, self._prefetch = aligned(model.scratch_bytes), aligned(model.prefetch_bytes)
        self._state = aligned(model.state_bytes)
        # Made once: asking NumPy for the address of an array takes as long as a small layer.
        self._inputs = [_aligned_array(shape, dtype) for shape, dtype in self.inputs]
        self._outputs = [_aligned_array(shape, dtype) for shape, dtype in self.outputs]
        self._ports = [(own, own.shape, own.dtype) for own in self._inputs]
        ports = [*self._inputs, *self._outputs]
        self._buffers = (Buffer * len(ports))(*map(buffer_of, ports))
        self._run_arguments = _Run(
            self._buffers,
            model.input_count,
            ctypes.cast(ctypes.byref(self._buffers, model.input_count * ctypes.sizeof(Buffer)), _BUFFERS),
            model.output_count,
            buffer_of(self._scratch),
            buffer_of(self._prefetch),
            None,
            _threads(library, thread_count(threads)),
            None,
            buffer_of(self._state),
        )
        self._thread_count = thread_count(threads)
        self._start = self._library.neutron_run
        self._call = (ctypes.byref(self._model), ctypes.byref(self._run_arguments))
        self.reset()

    def reset(self) -> None:
        """Let what the model remembers start from its initial values, as after loading."""
        self._check(self._library.neutron_reset(self._call[0], self._run_arguments.state))

    @property
    def state_bytes(self) -> int:
        """Memory that survives from run to run."""
        return int(self._model.state_bytes)

    @property
    def work(self) -> int:
        """What one run takes at most, in multiplications (neutron.h says how it is counted)."""
        return int(self._model.work)

    @property
    def scratch_bytes(self) -> int:
        """Activation memory the model needs besides its inputs and outputs."""
        return int(self._model.scratch_bytes)

    @property
    def prefetch_bytes(self) -> int:
        """SRAM the model needs for prefetched weights."""
        return int(self._model.prefetch_bytes)

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for these inputs, which must have the model's shapes and types."""
        if len(inputs) != len(self._ports):
            self._refuse(inputs)
        for array, (own, shape, dtype) in zip(inputs, self._ports):  # noqa: B905 (a check takes longer)
            if array.shape != shape or array.dtype != dtype:
                self._refuse(inputs)
            own[...] = array
        if self._model.work < _LONG_WORK:
            self._check(self._start(*self._call))
        else:
            with _stopped_by_interrupts(self._library, self._run_arguments):
                self._check(self._start(*self._call))
        return [array.copy() for array in self._outputs]

    def run_batch(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of many samples in one call; they are the first dimension of every input and output.

        Threads share whole samples, each with memory of its own.
        """
        counts = sorted({len(array) for array in inputs})
        if len(inputs) != len(self._ports):
            self._refuse(inputs)
        if len(counts) != 1:
            fail("ON503", self._name, f"inputs have {' and '.join(map(str, counts)) or 'no'} samples")
        (count,) = counts
        samples = [np.broadcast_to(array.dtype.type(), array.shape[1:]) for array in inputs]
        if any(a.shape != s or a.dtype != d for a, (_, s, d) in zip(samples, self._ports, strict=True)):
            self._refuse(samples)
        given = [np.ascontiguousarray(array) for array in inputs]
        outputs = [_aligned_array((count, *shape), dtype) for shape, dtype in self.outputs]
        areas = max(1, min(self._thread_count, count))
        area_bytes = self._library.neutron_area_bytes
        area_bytes.restype = ctypes.c_size_t
        scratch, prefetch = (
            aligned(areas * area_bytes(ctypes.c_uint32(size)))
            for size in (self.scratch_bytes, self.prefetch_bytes)
        )
        batch = _Batch(
            (Buffer * len(given))(*map(buffer_of, given)),
            len(given),
            (Buffer * len(outputs))(*map(buffer_of, outputs)),
            len(outputs),
            count,
            buffer_of(scratch),
            buffer_of(prefetch),
            areas,
            self._run_arguments.threads,
        )
        with _stopped_by_interrupts(self._library, batch):
            self._check(self._library.neutron_run_batch(self._call[0], ctypes.byref(batch)))
        return outputs

    def profile(self, inputs: Sequence[np.ndarray]) -> list[tuple[Kernel, float]]:
        """Run once; the kernel and the seconds of every call.

        The steps of a stage of a cascade add up; the cascade itself has what is not in its steps.
        """
        kernels: dict[int, Kernel] = {}
        times: dict[int, float] = {}
        running: list[list[float]] = []  # since when, and the seconds of what ran inside

        def trace(_context: int, call: int, kernel: int, begin: int) -> None:
            now = time.perf_counter()
            if begin:
                kernels[call] = Kernel(kernel)
                running.append([time.perf_counter(), 0.0])
                return
            began, inside = running.pop()
            times[call] = times.get(call, 0.0) + now - began - inside
            if running:
                running[-1][1] += now - began

        hooks = _Hooks(None, _COPY(), _WAIT(), _TRACE(trace))
        self._run_with(hooks, inputs)
        return [(kernels[call], times[call]) for call in sorted(times)]

    def _run_with(self, hooks: _Hooks, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        self._run_arguments.hooks = ctypes.pointer(hooks)
        try:
            return self.run(inputs)
        finally:
            self._run_arguments.hooks = None

    def _check(self, status: int) -> None:
        if status == DATA:
            from openneutron.run.indices import check_indices, port_limits

            limits = port_limits(self._microcode.tobytes())
            check_indices(self._inputs, [limits.get(i) for i in range(len(self._inputs))], self._name)
        if status:
            fail("ON503", self._name, message(self._library, self._model, status))

    def _refuse(self, inputs: Sequence[np.ndarray]) -> NoReturn:
        """Say what is wrong with these inputs."""
        if len(inputs) != len(self._ports):
            fail("ON503", self._name, f"{len(inputs)} inputs given, the model has {len(self._ports)}")
        pairs = enumerate(zip(inputs, self._ports, strict=True))
        wrong = ((i, a, s, d) for i, (a, (_, s, d)) in pairs if a.shape != s or a.dtype != d)
        i, array, shape, dtype = next(wrong)
        given = f"input {i} is {array.dtype}{list(array.shape)}"
        fail("ON503", self._name, f"{given}, the model takes {dtype}{list(shape)}")


def _described(d: Descriptor) -> tuple[tuple[int, ...], np.dtype]:
    return tuple(d.dims[i] for i in range(d.rank)), np.dtype(DType(d.dtype).name.lower())
