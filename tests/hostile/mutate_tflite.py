"""LiteRT files changed at random, compiled through the public API.

    python -m tests.hostile.mutate_tflite COUNT SEED [KEEP]

As `mutate_pte`; a table of bytes is computed by LiteRT itself, which asserts on what it does not expect.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.hostile import mutate_pte


def small_models() -> list[bytes]:
    """Random int8 graphs."""
    from openneutron.litert.file import write
    from tests.compiler.graphs import RandomGraph

    return [write(RandomGraph(seed, 3 + seed % 9).graph()) for seed in range(40)]


def use(data: bytes) -> str:
    """Compile a model; the code of the diagnostic, or `compiled`."""
    from openneutron.diagnostics import OpenNeutronError
    from openneutron.pipeline import compile_litert

    try:
        compile_litert(data)
    except OpenNeutronError as error:
        return error.diagnostic.code
    return "compiled"


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work = int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
        mutate_pte.work(*work, mutate_pte.mutate_words, use)
    else:
        keep = Path(sys.argv[3]) if len(sys.argv) > 3 else None
        count, seed = int(sys.argv[1]), int(sys.argv[2])
        sys.exit(mutate_pte.main(count, seed, keep, "tests.hostile.mutate_tflite", small_models))
