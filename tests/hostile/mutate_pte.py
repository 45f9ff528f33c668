"""Programs changed at random and sealed again, loaded and run through the public API.

    python -m tests.hostile.mutate_pte COUNT SEED [KEEP]

Half of the changes are to words of the file, half to fields of the program as ExecuTorch reads it. The work
is done by a process of its own, so that its death is seen and counted; KEEP is a folder for the programs that
killed it. Prints one line, what became of how many, and exits with 1 if a process died or hung, or if an
exception was no OpenNeutronError.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH = 250
HANG_SECONDS = 150


def small_programs() -> list[bytes]:
    """A delegate between CPU operators, one on the Cortex-M's kernels, and a program without a delegate."""
    import torch

    from openneutron.pipeline import compile_model

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
            self.linear = torch.nn.Linear(4, 5)

        def forward(self, x):
            y = torch.relu(self.conv(x)).mean((2, 3))
            return torch.softmax(self.linear(y), -1), torch.atan(y)

    torch.manual_seed(0)
    inputs = (torch.randn(1, 3, 6, 6),)
    made = [
        compile_model(Net().eval(), inputs, calibration=[inputs], recipe=recipe).pte
        for recipe in ("neutron", "cortex-m")
    ]
    from executorch.exir import to_edge

    plain = to_edge(torch.export.export(Net().eval(), inputs)).to_executorch().buffer
    return [*made, bytes(plain)]


EDGES = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    0x7F,
    0xFF,
    0x100,
    0xFFFF,
    0x10000,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0xFFFFFFF0,
)


def mutate_words(data: bytes, rng: random.Random) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(8, len(raw) - 4) & ~3
        (old,) = struct.unpack_from("<I", raw, at)
        new = rng.choice((rng.choice(EDGES), old + rng.randint(-8, 8), old ^ 1 << rng.randrange(32), old * 2))
        struct.pack_into("<I", raw, at, new & 0xFFFFFFFF)
    return bytes(raw)


def _fields(value: Any, found: list[tuple[Any, Any]]) -> None:
    if isinstance(value, list):
        items = enumerate(value)
    elif hasattr(value, "__dataclass_fields__"):
        items = ((name, getattr(value, name)) for name in value.__dataclass_fields__)
    else:
        return
    for key, item in items:
        if isinstance(item, (bytes, bytearray)):
            continue
        found.append((value, key))
        _fields(item, found)


def mutate_fields(data: bytes, rng: random.Random) -> bytes:
    from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary, serialize_pte_binary

    file = deserialize_pte_binary(data)
    found: list[tuple[Any, Any]] = []
    _fields(file.program.execution_plan, found)
    for _ in range(rng.choice((1, 1, 2, 3))):
        holder, key = rng.choice(found)
        old = holder[key] if isinstance(holder, list) else getattr(holder, key)
        new = _other(old, rng)
        if isinstance(holder, list):
            if rng.random() < 0.1:
                holder.append(holder[key])
            elif rng.random() < 0.1:
                del holder[key]
                break
            else:
                holder[key] = new
        else:
            setattr(holder, key, new)
    return bytes(serialize_pte_binary(PTEFile(program=file.program)))


def _other(old: Any, rng: random.Random) -> Any:
    if isinstance(old, bool):
        return not old
    if isinstance(old, int) and type(old) is int:
        return rng.choice((0, 1, -1, 2, old + 1, old - 1, old * 2, 1 << 20, 2**31 - 1, -(2**31)))
    if isinstance(old, float):
        return rng.choice((0.0, -1.0, float("nan"), float("inf"), old * 1e9))
    if isinstance(old, str):
        return rng.choice(("", old + "x", "aten::add", "\x1b[2J", "*/ int x; /*", old[:-1]))
    if isinstance(old, list):
        return rng.choice(([], old[:-1], old + old))
    return old


def use(data: bytes) -> str:
    """Everything the public API does with a program; the code of the diagnostic, or `ran`."""
    import numpy as np

    from openneutron.diagnostics import OpenNeutronError
    from openneutron.package.pte import inspect_program
    from openneutron.run.program import load_program

    try:
        for payload in inspect_program(data).payloads():
            assert payload.stamp
        program = load_program(data)
        inputs = [np.ones(s.shape, s.dtype) for s in program.method().inputs if s is not None]
        program.run(inputs)
    except OpenNeutronError as error:
        return error.diagnostic.code
    return "ran"


def changed_program(good: bytes, rng: random.Random) -> bytes:
    """A program with a change, sealed again."""
    from openneutron.package.seal import seal

    try:
        changed = rng.choice((mutate_words, mutate_fields))(good, rng)
    except Exception:  # ExecuTorch's own writer refuses it
        changed = mutate_words(good, rng)
    return seal(changed)


def work(
    seed: int,
    count: int,
    folder: Path,
    change: Callable[[bytes, random.Random], bytes] = changed_program,
    use: Callable[[bytes], str] = use,
) -> None:
    """Try `count` files; the one at hand is in the folder, each result a line of output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    programs = [(folder / name).read_bytes() for name in sorted(os.listdir(folder)) if name.endswith(".good")]
    rng = random.Random(seed)
    for _ in range(count):
        changed = change(rng.choice(programs), rng)
        (folder / "at_hand").write_bytes(changed)
        try:
            result = use(changed)
        except BaseException as error:
            result = f"UNCAUGHT {type(error).__name__}: {str(error)[:100]!r}"
            (folder / f"uncaught_{abs(hash(changed)) % 10**8}.pte").write_bytes(changed)
        print(result, flush=True)


def main(
    count: int,
    seed: int,
    keep: Path | None = None,
    module: str = "tests.hostile.mutate_pte",
    programs: Callable[[], list[bytes]] = small_programs,
) -> int:
    """Mutate `count` files and say what became of them; `module` does the work, in a process of its own."""
    results: Counter[str] = Counter()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i, program in enumerate(programs()):
            (folder / f"{i}.good").write_bytes(program)
        done = 0
        while done < count:
            batch = min(BATCH, count - done)
            command = [
                sys.executable,
                "-m",
                module,
                "work",
                str(seed + done),
                str(batch),
                name,
            ]
            limit = HANG_SECONDS + 5 * batch
            try:
                ended = subprocess.run(command, capture_output=True, text=True, timeout=limit)
                lines, died = ended.stdout.splitlines(), ended.returncode
            except subprocess.TimeoutExpired as late:
                lines, died = (late.stdout or b"").decode().splitlines(), "HANG"
            results.update(lines)
            done += batch
            if died:
                results[f"DIED {died}"] += 1
                if keep:
                    (keep / f"died_{seed + done}.pte").write_bytes((folder / "at_hand").read_bytes())
        for file in folder.glob("uncaught_*") if keep else ():
            (keep / file.name).write_bytes(file.read_bytes())
    print(f"{count} files in {time.monotonic() - start:.0f} s: {dict(sorted(results.items()))}")
    return int(any(r.startswith(("DIED", "UNCAUGHT")) for r in results))


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None))
