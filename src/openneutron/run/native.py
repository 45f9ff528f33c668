"""The C runtime as Python sees it: prepare a microcode once, run it on arrays."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from openneutron.compiler.microcode.format import DType, Kernel
from openneutron.diagnostics import fail
from openneutron.driver import (
    LIBRARY,
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
from openneutron.run.threads import thread_count

_BUFFERS = ctypes.POINTER(Buffer)


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


def _aligned_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return aligned(int(np.prod(shape)) * dtype.itemsize).view(dtype).reshape(shape)


class NativeModel:
    """A microcode with its weights, prepared by the C runtime; safe to run from one thread at a time.

    `threads` is how many share the work of a run; None stands for OPENNEUTRON_THREADS, else 1.
    """

    def __init__(
        self,
        microcode: bytes,
        weights: bytes,
        name: str = "microcode",
        library: Path = LIBRARY,
        threads: int | None = None,
    ):
        self._library = load(library)
        self._name = name
        self._microcode, self._weights = copied(microcode), copied(weights)
        self._model = Model()
        if problem := prepare(self._library, self._model, (self._microcode, self._weights)):
            fail("ON503", name, problem, "Compile the model again with this version of openneutron.")
        model = self._model
        self.inputs = [_described(model.inputs[i]) for i in range(model.input_count)]
        self.outputs = [_described(model.outputs[i]) for i in range(model.output_count)]
        self._scratch, self._prefetch = aligned(model.scratch_bytes), aligned(model.prefetch_bytes)
        # Made once: asking NumPy for the address of an array takes as long as a small layer.
        self._inputs = [_aligned_array(shape, dtype) for shape, dtype in self.inputs]
        self._outputs = [_aligned_array(shape, dtype) for shape, dtype in self.outputs]
        arrays = [*self._inputs, *self._outputs]
        self._buffers = (Buffer * len(arrays))(*map(buffer_of, arrays))
        self._run_arguments = _Run(
            self._buffers,
            model.input_count,
            ctypes.cast(ctypes.byref(self._buffers, model.input_count * ctypes.sizeof(Buffer)), _BUFFERS),
            model.output_count,
            buffer_of(self._scratch),
            buffer_of(self._prefetch),
            None,
            _threads(library, thread_count(threads)),
        )
        self._call = (ctypes.byref(self._model), ctypes.byref(self._run_arguments))

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
        return self._run(inputs, None)

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
        self._run(inputs, ctypes.pointer(hooks))
        return [(kernels[call], times[call]) for call in sorted(times)]

    def _run(self, inputs: Sequence[np.ndarray], hooks: ctypes._Pointer[_Hooks] | None) -> list[np.ndarray]:
        if len(inputs) != len(self.inputs):
            fail("ON503", self._name, f"{len(inputs)} inputs given, the model has {len(self.inputs)}")
        for array, own in zip(inputs, self._inputs, strict=True):
            if array.shape != own.shape or array.dtype != own.dtype:
                index = next(i for i, a in enumerate(inputs) if a is array)
                given = f"input {index} is {array.dtype}{list(array.shape)}"
                fail("ON503", self._name, f"{given}, the model takes {own.dtype}{list(own.shape)}")
            own[...] = array
        if hooks is not None or self._run_arguments.hooks:
            self._run_arguments.hooks = hooks
        status = self._library.neutron_run(*self._call)
        if status:
            fail("ON503", self._name, message(self._library, self._model, status))
        return [array.copy() for array in self._outputs]


def _described(d: Descriptor) -> tuple[tuple[int, ...], np.dtype]:
    return tuple(d.dims[i] for i in range(d.rank)), np.dtype(DType(d.dtype).name.lower())
