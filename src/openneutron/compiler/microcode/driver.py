"""The C driver as Python sees it: the library, what it takes, and its check of a microcode."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np

from openneutron.compiler.microcode.format import ALIGNMENT
from openneutron.diagnostics import fail

LINE = 128
"""Bytes that a host's caches move together; a multiple of ALIGNMENT."""
assert LINE % ALIGNMENT == 0
LIBRARY = Path(__file__).resolve().parents[2] / "_native" / "libneutron.so"


class Buffer(ctypes.Structure):
    """Bytes in memory."""

    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


class Image(ctypes.Structure):
    """What is prepared: a microcode and its weights."""

    _fields_ = (
        ("microcode", Buffer),
        ("weights", Buffer),
        ("check_weights", ctypes.c_int),
        ("most_work", ctypes.c_uint64),
    )


class Descriptor(ctypes.Structure):
    """An input or output."""

    _fields_ = (
        ("dtype", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("place", ctypes.c_uint32),
        ("dims", ctypes.c_uint32 * 8),
    )


class Model(ctypes.Structure):
    """NeutronModel of neutron.h."""

    _fields_ = (
        ("input_count", ctypes.c_uint32),
        ("output_count", ctypes.c_uint32),
        ("inputs", ctypes.POINTER(Descriptor)),
        ("outputs", ctypes.POINTER(Descriptor)),
        ("work", ctypes.c_uint64),
        ("scratch_bytes", ctypes.c_uint32),
        ("prefetch_bytes", ctypes.c_uint32),
        ("weights_bytes", ctypes.c_uint32),
        ("call_count", ctypes.c_uint32),
        ("converter_version", ctypes.c_uint32),
        ("state_count", ctypes.c_uint32),
        ("state_bytes", ctypes.c_uint32),
        ("states", ctypes.c_void_p),
        ("problem_call", ctypes.c_int32),
        ("problem_kernel", ctypes.c_uint32),
        ("header", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("prepared", ctypes.c_uint32),
    )


@cache
def load(path: Path = LIBRARY) -> ctypes.CDLL:
    """The runtime library; a missing one is a diagnostic."""
    if not path.exists():
        fail("ON504", str(path.name), "the native library is not built",
             "Install the package again (pip install -e .), or run `make native`.")  # fmt: skip
    library = ctypes.CDLL(str(path))
    library.neutron_describe.restype = ctypes.c_char_p
    return library


def aligned(size: int) -> np.ndarray:
    """Bytes at an address as the driver needs it, and as the host's caches like it."""
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size]


def copied(data: bytes) -> np.ndarray:
    """The bytes at an aligned address."""
    array = aligned(len(data))
    array[:] = np.frombuffer(data, np.uint8)
    return array


def buffer_of(array: np.ndarray) -> Buffer:
    """An array as the driver takes it."""
    return Buffer(array.ctypes.data, array.nbytes)


def prepare_problem(microcode: bytes, weights: bytes, library: Path = LIBRARY) -> str:
    """What the driver finds wrong with a microcode, or an empty string; nothing is run."""
    arrays, model, loaded = (copied(microcode), copied(weights)), Model(), load(library)
    status = prepare(loaded, model, arrays)
    return message(loaded, model, status) if status else ""


def prepare(
    library: ctypes.CDLL, model: Model, arrays: tuple[np.ndarray, np.ndarray], most_work: int = 0
) -> int:
    """Prepare a microcode and its weights for running; the driver's status, 0 if all is well.

    `most_work` is what one run may take (see neutron.h); 0 stands for the runtime's own limit.
    """
    image = Image(*map(buffer_of, arrays), 1, most_work)
    return int(library.neutron_prepare(ctypes.byref(model), ctypes.byref(image)))


DATA = 24
"""The status of neutron.h that says: an index, or an entry of a table, is out of range."""
WORK = 26
"""The status of neutron.h that says: more work than the caller allows."""


def message(library: ctypes.CDLL, model: Model, status: int) -> str:
    """What a status of the driver means."""
    text = ctypes.create_string_buffer(256)
    library.neutron_describe(ctypes.byref(model), status, text, ctypes.c_size_t(len(text)))
    return text.value.decode()
