"""What was compiled before is kept: microcode by the digest of all that it depends on.

An entry is found by its name, the digest of the LiteRT model, the options, the target and the compiler's own
sources. It is believed only if its own digest is right and it names what was asked for; the driver checks the
microcode either way. Entries hold bytes and JSON, no code. Whatever is wrong with one, or with the folder,
costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import openneutron
from openneutron.compiler.emit.result import BufferInfo, CallInfo, CompiledGraph
from openneutron.compiler.microcode.cost import Bound, Cost
from openneutron.compiler.microcode.format import KernelCall, Region, decode
from openneutron.diagnostics import OpenNeutronError
from openneutron.files import cache_base, is_own_file, read_file, replace_file
from openneutron.options import CompileOptions
from openneutron.targets.chip import Target

NO_CACHE = "OPENNEUTRON_NO_CACHE"  # set to anything: nothing is kept and nothing is looked up
MOST_BYTES = 512 << 20  # of all entries; the oldest go
_MAGIC = b"ONcache1"
_KINDS = {kind.__name__: kind for kind in (CompiledGraph, CallInfo, BufferInfo, Cost, Bound, Region)}
# These do not change what is compiled: only where something is written, or what stays on the CPU.
_OTHER = ("intermediates_dir", "kernel_selection_dir", "operators_not_to_delegate", "use_profiling")


def compile_or_recall(
    litert: bytes, target: Target, options: CompileOptions, compile: Callable[[], CompiledGraph]
) -> CompiledGraph:
    """What `compile` gives for this model, from the cache if it is there."""
    folder = _folder()
    if folder is None:
        return compile()
    key = _key(litert, target, options)
    file = folder / key.hex()
    recalled = _recall(file, key)
    if recalled is None:
        recalled = compile()
        with contextlib.suppress(OSError, OpenNeutronError, TypeError):
            _keep(file, _pack(recalled, key))
    return recalled


def _folder() -> Path | None:
    base = None if os.environ.get(NO_CACHE) else cache_base()
    return None if base is None else base / "partitions"


def _key(litert: bytes, target: Target, options: CompileOptions) -> bytes:
    chosen = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in _OTHER}
    digest = hashlib.sha256(_compiler())
    digest.update(f"{sorted(chosen.items())!r}\0{target!r}\0".encode() + litert)
    return digest.digest()


@cache
def _compiler() -> bytes:
    """A digest of the sources that decide what is compiled."""
    root = Path(openneutron.__file__).parent
    # Tables come from LiteRT's own kernels, places of buffers from the solver.
    digest = hashlib.sha256(repr([version(name) for name in ("ai-edge-litert", "ortools")]).encode())
    for file in compiler_sources():
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.digest()


def compiler_sources() -> list[Path]:
    """All that compiling imports of this package, and its neighbours."""
    root = Path(openneutron.__file__).parent
    folders = (
        root / name for name in ("compiler", "environment", "fast_export", "litert", "lower", "targets")
    )
    return sorted([*root.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))])


def _recall(file: Path, key: bytes) -> CompiledGraph | None:
    try:
        if not is_own_file(file):
            return None
        raw = read_file(file, most=MOST_BYTES)
        body = raw[len(_MAGIC) + 32 :]
        if raw[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != raw[len(_MAGIC) :][:32]:
            return None
        compiled = _unpack(body, key)
        os.utime(file)  # it was of use: others go first
    except Exception:  # what is no entry fails in as many ways as there are bytes
        return None
    return compiled


def _keep(file: Path, entry: bytes) -> None:
    if len(entry) > MOST_BYTES // 4:
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(file, entry)
    entries = sorted((s.st_mtime_ns, s.st_size, f) for f in file.parent.iterdir() if (s := f.lstat()))
    total = sum(size for _, size, _ in entries)
    for _, size, old in entries:
        if total <= MOST_BYTES:
            break
        with contextlib.suppress(OSError):  # a folder is none of ours
            old.unlink(missing_ok=True)
            total -= size


def _pack(compiled: CompiledGraph, key: bytes) -> bytes:
    """Bytes that `_unpack` makes the same of; the program is in its microcode."""
    infos = [replace(info, call=None) for info in compiled.calls]  # type: ignore[arg-type]
    bare = replace(compiled, microcode=b"", weights=b"", program=None, calls=tuple(infos))  # type: ignore[arg-type]
    facts = json.dumps(_plain(bare)).encode()
    parts = (facts, compiled.microcode, compiled.weights)
    body = key + b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    return _MAGIC + hashlib.sha256(body).digest() + body


def _unpack(body: bytes, key: bytes) -> CompiledGraph:
    if body[: len(key)] != key:
        raise ValueError("the entry is for another model")
    parts, at = [], len(key)
    for _ in range(3):
        (size,) = struct.unpack_from("<Q", body, at)
        parts.append(body[at + 8 : at + 8 + size])
        at += 8 + size
    program = decode(parts[1])
    bare = _value(json.loads(parts[0]))
    calls = tuple(replace(info, call=c) for info, c in zip(bare.calls, program.calls, strict=True))
    compiled = replace(bare, microcode=parts[1], weights=parts[2], program=program, calls=calls)
    if not _is(compiled, CompiledGraph):
        raise TypeError("a value of another type")
    return compiled


def _is(value: Any, hint: Any) -> bool:
    """Whether a value of an entry has the type that its field asks for."""
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_is(item, get_args(hint)[0]) for item in value)
    if type(value) is not hint and not (hint is KernelCall and isinstance(value, hint)):
        return False
    if hint not in (CompiledGraph, CallInfo, BufferInfo, Cost):
        return True
    hints = get_type_hints(hint)
    return all(_is(getattr(value, field.name), hints[field.name]) for field in fields(value))


def _plain(value: Any) -> Any:
    """As JSON has it; a kind of value that is not known here is a TypeError."""
    kind = type(value).__name__
    if isinstance(value, Enum):
        if kind not in _KINDS:
            raise TypeError(kind)
        return {"kind": kind, "value": value.value}
    if is_dataclass(value):
        if kind not in _KINDS:
            raise TypeError(kind)
        return {"kind": kind, **{f.name: _plain(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if value == b"":
        return None
    if not isinstance(value, str | int | float | bool | None):
        raise TypeError(kind)
    return value


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(_value(item) for item in plain)
    if not isinstance(plain, dict):
        return plain
    return _KINDS[plain.pop("kind")](**{key: _value(item) for key, item in plain.items()})
