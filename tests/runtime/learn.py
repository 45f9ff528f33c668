"""Coverage-guided fuzzing of the readers in C: the microcode's (driver and kernels) and the payload's.

    python -m tests.runtime.learn microcode|payload SECONDS [SEED]

Needs clang with libFuzzer (Debian: apt-get install clang libclang-rt-dev). Starts from good files and what
was kept before; at the end the inputs that together reach everything found are kept, smallest first, in
tests/hostile/learnt/<reader>.xz, where the next run finds them. Prints libFuzzer's last line: `cov` counts
edges, `exec/s` executions. A fault is left in build/learn/<reader>/.
"""

from __future__ import annotations

import hashlib
import lzma
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from openneutron.compiler.microcode.format import CRC_OFFSET, Header, format_of, unpack, with_checksum
from openneutron.package.payload import Payload, Port, pack
from tests.native import INCLUDES, ROOT, RUNTIME, portable_sources
from tests.runtime.programs import programs

KEPT = ROOT / "tests" / "hostile" / "learnt"
MOST_BYTES = 8192  # of an input
MOST_KEPT_BYTES = 100_000  # of a reader's file
MOST_SECONDS = 25  # for one input: longer is a hang
FLAGS = (
    "-O1", "-g", "-DFUZZ_COVERAGE", "-D_POSIX_C_SOURCE=200809L", "-DNEUTRON_PATCH_BYTES=64",
    "-DNEUTRON_LEAST_WORK=1", "-ffp-contract=off", "-fsanitize=fuzzer,address,undefined",
    "-fno-sanitize=function", "-fno-sanitize-recover=all",
)  # fmt: skip


HERE = Path(__file__).parent
OWN = {
    "microcode": (HERE / "fuzz.c",),
    "payload": (HERE / "fuzz_payload.cpp", RUNTIME / "executorch" / "payload.cpp"),
}
"""By reader: its fuzz target, and what is not part of the portable runtime."""


def one_program(microcode: bytes, weights: bytes) -> bytes:
    """A program as fuzz.c reads it."""
    return struct.pack("<II", len(microcode), len(weights)) + microcode + weights


def seeds(reader: str) -> list[bytes]:
    """Good files, of which any byte may matter."""
    found = [(m, w) for m, w in programs() if len(m) + len(w) + 100 < MOST_BYTES]
    if reader == "microcode":
        return [one_program(*pair) for pair in found]
    ports = (Port(0), Port(1, 1), Port(2))
    return [pack(Payload(ports[:1], ports[:1], 1, m, w, b"")) for m, w in found[::8]] + [
        pack(Payload(ports[: n % 4], ports[: n // 4], n % 4, m, w, b"kernels"))
        for n, (m, w) in enumerate(found[:8])
    ]


def read_kept(reader: str) -> list[bytes]:
    """What was kept."""
    file = KEPT / f"{reader}.xz"
    raw, found, at = lzma.decompress(file.read_bytes()) if file.exists() else b"", [], 0
    while at < len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        found.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def write_inputs(inputs: list[bytes]) -> bytes:
    """Inputs as one file, in which each follows its size."""
    return b"".join(struct.pack("<I", len(data)) + data for data in inputs)


def as_programs(inputs: list[bytes]) -> bytes:
    """Inputs for the microcode's target as the programs they are: sizes and checksums are right."""
    made = b""
    for data in inputs:
        if len(data) < 8:
            continue
        size = min(struct.unpack_from("<I", data)[0], len(data) - 8)
        code, weights = bytearray(data[8 : 8 + size]), data[8 + size :]
        if size >= format_of(Header).size:
            told = unpack(Header, bytes(code)).microcode_bytes
            end = told if told <= size else size
            code[:end] = with_checksum(bytes(code[:end])) if end > CRC_OFFSET + 4 else code[:end]
        made += one_program(bytes(code), weights)
    return made


def write_kept(reader: str, inputs: list[bytes]) -> Path:
    """Keep these inputs, in an order that does not depend on how they were found; the smallest, if many."""
    KEPT.mkdir(exist_ok=True)
    file = KEPT / f"{reader}.xz"
    few = sorted(set(inputs), key=lambda data: (len(data), data))
    while len(raw := lzma.compress(write_inputs(few), preset=9 | lzma.PRESET_EXTREME)) > MOST_KEPT_BYTES:
        del few[len(few) * 9 // 10 :]  # the largest
    file.write_bytes(raw)
    return file


def build(reader: str, folder: Path) -> Path:
    """The reader with libFuzzer."""
    if shutil.which("clang") is None:
        sys.exit("clang with libFuzzer is needed (Debian: apt-get install clang libclang-rt-dev)")
    target = folder / "fuzz"
    objects = []
    sources = portable_sources()
    for source in [*sources, *OWN[reader]]:
        objects.append(folder / f"{source.stem}.o")
        compiler = ["clang++", "-std=c++17"] if source.suffix == ".cpp" else ["clang", "-std=c11"]
        command = [
            *compiler,
            *FLAGS,
            *INCLUDES,
            f"-I{RUNTIME / 'executorch'}",
            "-c",
            source,
            "-o",
            objects[-1],
        ]
        subprocess.run([str(c) for c in command], check=True)
    subprocess.run([str(c) for c in ("clang++", *FLAGS, *objects, "-o", target)], check=True)
    return target


def learn(
    reader: str, command: list[str], good: list[bytes], most_bytes: int, seconds: int, seed: int
) -> int:
    """Let a fuzzer that is libFuzzer learn from these files, then keep what is new; 1 after a fault."""
    folder = ROOT / "build" / "learn" / reader
    corpus, few = folder / "corpus", folder / "few"
    shutil.rmtree(few, ignore_errors=True)
    for each in (corpus, few):
        each.mkdir(parents=True, exist_ok=True)
    for data in good:
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    options = [
        f"-max_len={most_bytes}",
        f"-timeout={MOST_SECONDS}",
        "-rss_limit_mb=4096",
        f"-artifact_prefix={folder}/",
    ]
    run = [f"-max_total_time={seconds}", f"-seed={seed}", "-use_value_profile=1", "-print_final_stats=1"]
    log = folder / "log"
    with log.open("w") as sink:
        done = subprocess.run([*command, str(corpus), *options, *run], stdout=sink, stderr=sink)
    subprocess.run([*command, "-merge=1", str(few), str(corpus), *options], capture_output=True, check=True)
    file = write_kept(reader, [path.read_bytes() for path in few.iterdir()])
    lines = log.read_text(errors="replace").splitlines()
    print(
        "\n".join(
            [line for line in lines if " cov: " in line][-1:] + [s for s in lines if s.startswith("stat::")]
        )
    )
    print(f"{len(list(few.iterdir()))} inputs kept, {file.stat().st_size} bytes in {file.name}")
    return int(done.returncode != 0)


def main(reader: str, seconds: int, seed: int) -> int:
    """Fuzz for so long, then keep what is new; 1 after a fault."""
    folder = ROOT / "build" / "learn" / reader
    folder.mkdir(parents=True, exist_ok=True)
    program = build(reader, folder)
    good = [*seeds(reader), *read_kept(reader)]
    return learn(reader, [str(program)], good, MOST_BYTES, seconds, seed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1))
