"""What 500 random networks compile to, as digests: whether a change leaves programs as they were.

`python -m tests.digests graphs FOLDER` writes the networks, once. `python -m tests.digests programs FOLDER`,
in the tree before the change and in the one after it, prints a line for each: in performance and in size
mode, and with weights prefetched. `diff` says the rest. Files that are added to the folder are compiled too.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

NETWORKS = 500


def write_graphs(folder: Path) -> None:
    """As LiteRT files, which every version reads."""
    from openneutron.litert.file import write
    from tests.compiler.graphs import random_graph

    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(NETWORKS):
        (folder / f"{seed:03}.tflite").write_bytes(write(random_graph(seed, 14)))


def print_programs(folder: Path) -> None:
    """The digests of microcode and weights in the three modes, or the code of the refusal."""
    from openneutron.compiler.compile import compile_graph
    from openneutron.diagnostics import OpenNeutronError
    from openneutron.litert.file import read
    from openneutron.options import CompileOptions
    from openneutron.targets.table import find_target

    modes = {
        "performance": CompileOptions(),
        "size": CompileOptions(optimise="size", cycle_budget=2.0),
        "prefetch": CompileOptions(fetch_constants_to_sram=True),
    }
    for file in sorted(folder.glob("*.tflite")):
        words = [file.stem]
        for name, options in modes.items():
            try:
                made = compile_graph(read(file.read_bytes()), find_target("imxrt700"), options)
                digest = hashlib.sha256(made.microcode + b"|" + made.weights).hexdigest()[:12]
            except OpenNeutronError as error:
                digest = error.diagnostic.code
            words += [name, digest]
        print(*words, flush=True)


if __name__ == "__main__":
    {"graphs": write_graphs, "programs": print_programs}[sys.argv[1]](Path(sys.argv[2]))
