"""Firmware that takes any program over a serial line, and QEMU running it behind a socket."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from openneutron.board.limits import MODELRUNNER_OPERATORS
from openneutron.board.port import SocketPort
from openneutron.diagnostics import fail
from openneutron.files import make_folder, write_atomically
from openneutron.firmware.build import runtime_folder
from openneutron.firmware.cores import DEFAULT, Core
from openneutron.firmware.emulator import end_with_parent
from openneutron.firmware.operators import PRIM, find_kernels, uses_cmsis_nn, wheel_operators
from openneutron.firmware.pools import WholePools
from openneutron.firmware.sources import Sources, find_sources
from openneutron.firmware.toolchain import (
    PREFIX,
    WARNINGS,
    C,
    Unit,
    cache_folder,
    check_tools,
    compile_units,
    digest_of,
    find_tool,
    run_tool,
)
from openneutron.firmware.whole import POOLS_HEADER, SIZE, TRACED, application_units, whole_units

START_SECONDS = 60.0
_PRIMS = ("executorch_prim::et_view.default", "executorch_prim::et_copy_index.tensor")


def default_operators() -> tuple[str, ...]:
    """What a board usually has: the stock firmware's, and all for Cortex-M and quantized tensors."""
    more = {op for op in wheel_operators() if op.startswith(("cortex_m::", "quantized_decomposed::"))}
    return tuple(sorted({*MODELRUNNER_OPERATORS, *more, *_PRIMS}))


def pools_of(core: Core) -> WholePools:
    """All of a core's SRAM, shared out as programs usually need it; some is left for the code's own data."""
    own = max(80 * 1024, core.sram_bytes // 20)
    stack = max(16 * 1024, core.sram_bytes // 60)
    part = (core.sram_bytes - own - stack) // 56 // 16 * 16
    return WholePools(method=8 * part, planned=24 * part, temporary=20 * part, io=4 * part, stack=stack)


def upload_bytes(core: Core) -> int:
    """How large a program may be."""
    return core.flash_bytes - core.code_bytes


def build_server(
    core: Core = DEFAULT,
    operators: Sequence[str] = (),
    folder: Path | None = None,
    *,
    executorch: str | Path | None = None,
    cmsis_nn: str | Path | None = None,
) -> Path:
    """The image that serves programs with these CPU operators and every Neutron kernel; kept in the cache."""
    names = tuple(sorted(set(operators)))
    portable = wheel_operators()
    unknown = [op for op in names if op not in portable and not op.startswith(PRIM)]
    if unknown:
        fail("ON709", "firmware", f"there is no kernel for the target for {', '.join(unknown)}",
             "Compile the model so that it is not needed.")  # fmt: skip
    check_tools(cxx=True, emulator=True)
    sources = find_sources(executorch, cmsis_nn, needs_cmsis_nn=uses_cmsis_nn(names))
    objects = _objects(core, names, sources)
    if folder is not None:
        make_folder(folder)
        return _link(core, objects, folder.resolve())
    scripts = digest_of(runtime_folder().glob("firmware/*.ld"))
    key = hashlib.sha256(
        repr((core, pools_of(core), scripts, [str(o) for o in objects])).encode()
    ).hexdigest()[:24]
    folder = cache_folder() / "serve" / key
    image = _image(core, folder)
    if not image.exists():
        make_folder(folder)
        _link(core, objects, folder.resolve())
    return image


def _objects(core: Core, operators: tuple[str, ...], sources: Sources) -> list[Path]:
    kernels = find_kernels(operators, sources)
    runtime = runtime_folder() / "firmware"
    headers = digest_of([*runtime.glob("*.h"), *(runtime / "serve").glob("*.h")])
    includes, flags = (runtime, runtime / "serve"), (*WARNINGS, *C, SIZE)
    units = whole_units(core, kernels, sources, TRACED)
    units += [
        Unit("application", name, runtime / place / f"{name}.c", flags, includes, headers)
        for name, place in (("board", ""), ("semihosting", ""), ("console", "serve"), ("uart", "serve"))
    ]
    upload = f"-DFIRMWARE_UPLOAD_BYTES={upload_bytes(core)}u"
    counted = "-DFIRMWARE_INSTRUCTIONS_PER_MICROSECOND=1000u"  # of the emulator's clock
    defines = (*TRACED, upload, counted, f'-DFIRMWARE_CORE="{core.name}"')
    units += application_units(sources, defines, ("serve", "system"))
    units.append(Unit("application", "upload", runtime / "serve/upload.S", (upload.removesuffix("u"),)))
    return compile_units(units, core)


def _image(core: Core, folder: Path) -> Path:
    return folder / f"serve-{core.name}.elf"


def _link(core: Core, objects: list[Path], folder: Path) -> Path:
    runtime = runtime_folder() / "firmware"
    image = _image(core, folder)
    write_atomically(folder / POOLS_HEADER, pools_of(core).header("firmware that serves").encode())
    source = runtime / "executorch/pools.c"
    headers = digest_of([folder / POOLS_HEADER, source.with_suffix(".h")])
    unit = Unit("application", "pools", source, (*WARNINGS, *C, SIZE), (source.parent, folder), headers)
    link = ("-nostartfiles", "-Wl,--gc-sections", "-Wl,--no-warn-rwx-segments",
            f"-Wl,--defsym=__stack_bytes={pools_of(core).stack}", f"-L{runtime}",
            "-T", runtime / core.script)  # fmt: skip
    unfinished = folder / f"{image.stem}.unfinished"
    parts = [*objects, *compile_units([unit], core)]
    run_tool([find_tool(f"{PREFIX}g++"), *core.flags, *link, *parts, "-lm", "-o", unfinished])
    unfinished.replace(image)
    return image


def emulator_command(core: Core, image: Path, serial: str) -> list[str]:
    """QEMU with the image and a serial line, as QEMU names it."""
    return [find_tool("qemu-system-arm"), "-M", core.board, "-cpu", core.name, "-display", "none", "-monitor",
            "none", "-icount", "shift=0", "-serial", serial, "-kernel", str(image)]  # fmt: skip


@contextmanager
def emulated_line(core: Core, image: Path) -> Iterator[SocketPort]:
    """The line of an emulated board, which runs as long as the context."""
    with tempfile.TemporaryDirectory(prefix="openneutron-") as name:
        path = Path(name) / "line"  # short: a socket's path has a hundred bytes
        command = emulator_command(core, image, f"unix:{path},server=on,wait=off")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, errors="replace",
                                   preexec_fn=end_with_parent())  # fmt: skip
        try:
            yield SocketPort(_connect(path, process))
        finally:
            process.kill()
            process.communicate()


def _connect(path: Path, process: subprocess.Popen[str]) -> socket.socket:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            said = (process.stderr.read() if process.stderr else "").strip()
            fail("ON704", "qemu", f"the emulator ended at once: {said[-300:] or process.returncode}",
                 "Does qemu-system-arm know the board? 7.2 does.")  # fmt: skip
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(str(path))
            return line
        except OSError:
            line.close()
            time.sleep(0.05)
    fail("ON704", "qemu", f"the emulator did not start within {START_SECONDS:g} s", "Try again.")
