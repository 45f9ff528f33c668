"""The kernels of runtime/cpu_kernels beside ExecuTorch's portable ones, on this machine or under QEMU.

`build` makes the program of runtime/cpu_kernels/tests/compare.cpp, `run` gives it calls.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from openneutron.firmware.build import runtime_folder
from openneutron.firmware.cores import Core
from openneutron.firmware.operators import fast_operators, find_kernels
from openneutron.firmware.sources import Sources
from openneutron.firmware.toolchain import (
    CXX,
    PREFIX,
    C,
    Processor,
    Unit,
    cache_folder,
    compile_units,
    digest_of,
    run_tool,
)
from openneutron.firmware.whole import (
    CMSIS_NN_SPEED,
    CORE_FILES,
    DEFINES,
    SIZE,
    WARNINGS,
    cpu_kernel_units,
)

SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize=alignment", "-fno-sanitize-recover=undefined")
TYPES = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "bool": 11,
    "bfloat16": 15,
}


@dataclass(frozen=True)
class Host:
    """This machine, as a core to compile for."""

    name: str = "host"
    flags: tuple[str, ...] = ("-O1",)


HOST = Host()


@dataclass(frozen=True)
class Tensor:
    """An argument: values, or only a shape and type for what is written.

    `order`: of dimensions in memory; `dtype`: where numpy has none; `beside`: the argument whose memory it is
    written to.
    """

    values: np.ndarray
    written: bool = False
    order: tuple[int, ...] | None = None
    dtype: str | None = None
    beside: int | None = None


def out(shape: Sequence[int], dtype: str = "float32", order: tuple[int, ...] | None = None) -> Tensor:
    """A tensor that the kernel writes."""
    return Tensor(np.empty(tuple(shape), dtype), True, order)


@dataclass(frozen=True)
class Call:
    """An operator with its arguments, the written ones last; `work`: what instructions are counted per."""

    operator: str
    arguments: tuple[object, ...]
    work: int = 1

    def encode(self) -> bytes:
        """As compare.cpp reads it."""
        data = bytearray(struct.pack("<B", len(self.operator)) + self.operator.encode())
        data += struct.pack("<B", len(self.arguments))
        for argument in self.arguments:
            _encode(argument, data)
        return struct.pack("<I", len(data)) + bytes(data)


@dataclass(frozen=True)
class Outcome:
    """What the program said of a call; instructions are counted under QEMU only."""

    what: str
    portable: int
    ours: int
    fell_back: bool


def _encode(argument: object, data: bytearray) -> None:
    if argument is None:
        data += b"n"
    elif isinstance(argument, bool):
        data += struct.pack("<cB", b"b", argument)
    elif isinstance(argument, int):
        data += struct.pack("<cq", b"i", argument)
    elif isinstance(argument, str):
        data += struct.pack("<cB", b"s", len(argument)) + argument.encode()
    elif isinstance(argument, float):
        data += struct.pack("<cd", b"d", argument)
    elif isinstance(argument, list) and argument and isinstance(argument[0], Tensor | np.ndarray):
        data += struct.pack("<cB", b"T", len(argument))
        for tensor in argument:
            _encode_tensor(tensor, data)
    elif isinstance(argument, list) and argument and isinstance(argument[0], float):
        data += struct.pack(f"<cB{len(argument)}d", b"f", len(argument), *argument)
    elif isinstance(argument, list):
        data += struct.pack(f"<cB{len(argument)}q", b"l", len(argument), *argument)
    else:
        shares = isinstance(argument, Tensor) and argument.beside is not None
        kind = b"t" if not isinstance(argument, Tensor) or not argument.written else b"o"
        data += struct.pack("<cB", b"O", argument.beside) if shares else kind
        _encode_tensor(argument, data)


def _encode_tensor(given: object, data: bytearray) -> None:
    tensor = given if isinstance(given, Tensor) else Tensor(np.asarray(given))
    values = tensor.values
    order = tensor.order or tuple(range(values.ndim))
    data += struct.pack("<BB", TYPES[tensor.dtype or str(values.dtype)], values.ndim)
    data += struct.pack(f"<{values.ndim}i", *values.shape) + bytes(order)
    data += bytes(-len(data) % 8)
    if not tensor.written:
        data += np.ascontiguousarray(values.transpose(order)).tobytes()


@cache
def build(sources: Sources, core: Processor = HOST) -> Path:
    """The program for a core, with both kernels of every operator that is ours."""
    operators = sorted(fast_operators())
    portable, ours = find_kernels(operators, sources, portable=True), find_kernels(operators, sources)
    runtime, digest = runtime_folder(), sources.digest
    firmware, on_host = runtime / "firmware", not isinstance(core, Core)
    includes = (sources.include, sources.executorch / "runtime/core/portable_type/c10", sources.generated,
                sources.flatbuffers)  # fmt: skip
    check = SANITIZE if on_host else ()
    cxx = tuple(f for f in CXX if not on_host or "rtti" not in f)
    flags = ("-w", SIZE, *cxx, *DEFINES, "-DET_LOG_ENABLED=0")
    files = [sources.executorch / f"{name}.cpp" for name in CORE_FILES]
    if on_host:
        files.append(sources.executorch / "runtime/platform/default/minimal.cpp")
    counted = (*flags, f"-DMAX_KERNEL_NUM={portable.count}")
    units = [Unit("core", f.stem, f, counted, includes, digest) for f in files]
    cmsis_nn = (sources.cmsis_nn / "Include",) if sources.cmsis_nn else ()
    units += [Unit(g, f.stem, f, flags, (*includes, *cmsis_nn), digest) for g, f in portable.files]
    units += [Unit("cmsisnn", f.stem, f, ("-w", CMSIS_NN_SPEED, "-std=c11"), cmsis_nn, digest)
              for f in portable.cmsis_nn]  # fmt: skip
    units += cpu_kernel_units(ours.ours, includes, digest, ("-DCPU_KERNELS_COUNT", *check))
    for kernels, name in ((portable, "register_kernels"), (ours, "register_ours")):
        for library, folder in kernels.registrations:
            source = folder / "RegisterCodegenUnboxedKernelsEverything.cpp"
            headers = digest + digest_of(folder.glob("*.h"))
            mine = (*flags, f"-Dregister_kernels={name}")
            units.append(
                Unit("registration", f"{name}_{library}", source, mine, (folder, *includes), headers)
            )
    own = (firmware, runtime / "cpu_kernels")
    headers = digest + digest_of([*firmware.glob("*.h"), *own[1].glob("*.h")])
    main = runtime / "cpu_kernels/tests/compare.cpp"
    units.append(Unit("application", "compare", main, (*flags, *check), (*own, *includes), headers))
    link: list[object] = [*SANITIZE]
    if isinstance(core, Core):
        units += [Unit("application", n, firmware / f"{n}.c", (*WARNINGS, *C, SIZE), (firmware,), headers)
                  for n in ("board", "semihosting")]  # fmt: skip
        units.append(
            Unit(
                "application", "system", firmware / "executorch/system.cpp", flags, (*own, *includes), headers
            )
        )
        link = ["-nostartfiles", "-Wl,--gc-sections", "-Wl,--no-warn-rwx-segments", f"-L{firmware}",
                "-Wl,--defsym=__stack_bytes=65536", "-T", firmware / core.script]  # fmt: skip
    prefix = "" if on_host else PREFIX
    objects = compile_units(units, core, prefix)
    made_of = hashlib.sha256("".join(map(str, objects)).encode()).hexdigest()[:24]
    image = cache_folder() / "objects" / core.name / f"compare_{made_of}"
    if not image.exists():
        unfinished = image.with_name(f"{image.name}.{os.getpid()}")  # another process may make the same
        run_tool([f"{prefix}g++", *core.flags, *link, *objects, "-lm", "-o", unfinished])
        unfinished.replace(image)
    return image


def run(image: Path, calls: Iterable[Call], folder: Path, core: Processor = HOST) -> list[Outcome]:
    """What both kernels did, call by call."""
    encoded = [call.encode() for call in calls]
    (folder / "calls.bin").write_bytes(b"".join(encoded))
    command = [str(image), "calls.bin"]
    if isinstance(core, Core):
        command = ["qemu-system-arm", *core.machine, "-kernel", str(image)]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    text = done.stderr if isinstance(core, Core) else done.stdout
    lines = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    tick = core.tick if isinstance(core, Core) else 1
    found = [Outcome(w, round(int(p) * tick), round(int(o) * tick), f != "0") for _, w, p, o, f in lines]
    assert len(found) == len(encoded), f"stopped after call {len(found)}: {done.stderr[-3000:]}"
    return found
