"""Bringing the native half into the process: the delegate, and kernels for the operators around it."""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from openneutron.compiler.microcode.driver import LIBRARY
from openneutron.diagnostics import fail
from openneutron.environment.versions import (
    executorch_folder,
    executorch_library,
    executorch_version,
    require_executorch,
)
from openneutron.partition.partitioner import BACKEND_ID

if TYPE_CHECKING:
    from executorch.runtime import Runtime

NATIVE = LIBRARY.parent
DELEGATE = NATIVE / "libneutron_backend.so"
CORTEX_M = NATIVE / "libneutron_cortex_m.so"
CPU_KERNELS = NATIVE / "libneutron_cpu_kernels.so"
REHEARSE = NATIVE / "neutron_rehearse"
_BUILD = "Run `make setup` in the repository, or install the package again (pip install -e .)."


def cortex_m_operators() -> set[str]:
    """The operators of the cortex_m dialect, as programs name them: those of the installed wheel."""
    schemas = executorch_folder() / "backends" / "cortex_m" / "ops" / "operators.yaml"
    return set(re.findall(r"^- func: (cortex_m::[\w.]+)\(", schemas.read_text(), re.MULTILINE))


@cache
def load_runtime(library: Path = DELEGATE) -> Runtime:
    """ExecuTorch's runtime with our delegate and the operators a quantized program calls.

    What is registered is so for the whole process: any other user of ExecuTorch's runtime sees it too.
    """
    if not library.exists():
        fail("ON504", library.name, "the ExecuTorch delegate is not built", _BUILD)
    require_executorch()
    _check_built_for(executorch_version())
    from executorch.runtime import Runtime

    runtime = Runtime.get()
    if "quantized_decomposed::quantize_per_tensor.out" not in runtime.operator_registry.operator_names:
        _load(executorch_library("libexecutorch_kernels_quantized.so"))
    _load(CORTEX_M)  # skips what somebody else has registered
    _load(CPU_KERNELS).neutron_use_cpu_kernels()  # in place of slower ones with the same bits
    if not runtime.backend_registry.is_available(BACKEND_ID):
        _load(library)
    if not runtime.backend_registry.is_available(BACKEND_ID):
        fail("ON504", library.name, "the library did not register its backend", _BUILD)
    return runtime


def _check_built_for(installed: str | None) -> None:
    """Fail if the native libraries were built against another executorch: its C++ classes differ."""
    stamp = NATIVE / "executorch-version"
    built_for = stamp.read_text() if stamp.exists() else None
    if built_for != installed:
        problem = f"built for executorch {built_for or '(unknown)'}, but {installed} is installed"
        fail("ON504", DELEGATE.name, problem, _BUILD)


def use_threads(count: int) -> None:
    """Set how many threads the delegate's next runs in this process use."""
    if _delegate().neutron_backend_set_threads(ctypes.c_uint32(count)) != 0:
        fail("ON504", DELEGATE.name, f"{count} threads cannot be started", "Ask for fewer.")


def allow_work(most_work: int) -> None:
    """Set the work that delegates loaded from now on may ask for; 0 stands for the runtime's own limit."""
    _delegate().neutron_backend_set_most_work(ctypes.c_uint64(most_work))


@contextlib.contextmanager
def stopped_by_interrupts() -> Iterator[None]:
    """Let Ctrl-C end a delegate's run: Python would wait until it returns. Signals are the main thread's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _delegate().neutron_backend_watch_interrupts()
    try:
        yield
    finally:
        _delegate().neutron_backend_unwatch_interrupts()


@cache
def _delegate() -> ctypes.CDLL:
    return ctypes.CDLL(str(DELEGATE))


def _load(library: Path) -> ctypes.CDLL:
    try:
        # Global: a registration must reach the one registry of the process, in libexecutorch.
        return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        fail("ON504", library.name, f"the library cannot be loaded: {error}", _BUILD)
