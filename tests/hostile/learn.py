"""Coverage-guided fuzzing of the readers in Python: LiteRT's, ONNX's and ExecuTorch's files.

    python -m tests.hostile.learn tflite|onnx|pte SECONDS [SEED]

Needs atheris (pip install atheris), which is libFuzzer with the coverage of Python's bytecode. Starts from
good files and what was kept before; half of the changes are libFuzzer's own, half leave a file readable. At
the end the inputs that together reach everything found are kept in tests/hostile/learnt/<reader>.xz. Prints
libFuzzer's last line. A file that gets no diagnostic, but an exception, a death or a hang, is left in
build/learn/<reader>/.
"""

from __future__ import annotations

import gc
import hashlib
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

from tests.native import ROOT

MOST_BYTES = {"tflite": 8192, "onnx": 4096, "pte": 32768}
# The modules whose coverage counts.
COVERED = {
    "tflite": ("openneutron.litert", "openneutron.compiler"),
    "onnx": ("openneutron.onnx",),
    "pte": ("openneutron.package", "openneutron.compiler.microcode", "executorch.exir._serialize"),
}


def use_tflite(data: bytes) -> None:
    """Read a LiteRT model and compile it for the NPU; what the compiler makes, the driver accepts."""
    from openneutron.converter.open import OpenConverter
    from openneutron.options import CompileOptions
    from openneutron.targets.table import find_target

    OpenConverter().convert(data, CompileOptions(), find_target("imxrt700"))


def use_onnx(data: bytes) -> None:
    """Read an ONNX model as a torch module."""
    from openneutron.onnx.file import parse_onnx
    from openneutron.onnx.importer import import_model

    import_model(parse_onnx(data, Path("model.onnx")), {}, {}, True)


def use_pte(data: bytes) -> None:
    """Read a program, sealed again, and the microcode in it, without running either."""
    from openneutron.compiler.microcode.format import decode
    from openneutron.package.pte import inspect_program
    from openneutron.package.seal import seal

    for payload in inspect_program(seal(data)).payloads():
        decode(payload.microcode)


USES: dict[str, Callable[[bytes], None]] = {"tflite": use_tflite, "onnx": use_onnx, "pte": use_pte}


def seeds(reader: str) -> list[bytes]:
    """Good files."""
    if reader == "tflite":
        from tests.hostile.mutate_tflite import small_models

        return small_models()
    if reader == "onnx":
        from tests.onnx.fuzz import seeds as models

        return [made.SerializeToString() for made in models()]
    from tests.hostile.mutate_pte import small_programs

    return small_programs()


def change(reader: str, data: bytes, rng: random.Random) -> bytes:
    """A file changed so that it may still be read."""
    if reader == "onnx":
        from tests.onnx.fuzz import mutate

        return mutate(data, rng)
    from tests.hostile.mutate_pte import changed_program, mutate_words

    return changed_program(data, rng) if reader == "pte" else mutate_words(data, rng)


def outcome(reader: str, data: bytes) -> str:
    """The code of the diagnostic that a file gets, or `read`; any other exception is a fault, and raised."""
    from openneutron.diagnostics import OpenNeutronError

    try:
        USES[reader](data)
    except OpenNeutronError as error:
        if error.diagnostic.code == "ON404":  # the compiler's own fault
            raise AssertionError(error) from error
        return error.diagnostic.code
    return "read"


def work(reader: str) -> None:
    """Be the fuzzer: libFuzzer's options are in sys.argv."""
    import atheris

    import openneutron.compiler.compile
    import openneutron.converter.open
    import openneutron.onnx.importer
    import openneutron.package.pte  # noqa: F401

    # Not atheris.instrument_imports: an editable installation has a loader of its own, which it cannot wrap.
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and (each.__module__ or "").startswith(COVERED[reader]):
            atheris.instrument_func(each)
    warnings.simplefilter("ignore")

    def custom_mutator(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        changed = data
        if rng.random() < 0.5:
            try:
                changed = change(reader, bytes(data), rng)
            except Exception:  # too damaged to be changed by name
                changed = data
        return changed if changed != data and len(changed) <= most else atheris.Mutate(data, most)

    def try_file(data: bytes) -> None:
        try:
            outcome(reader, data)
        except Exception:
            name = f"fault-{hashlib.sha1(data).hexdigest()}"
            (ROOT / "build" / "learn" / reader / name).write_bytes(data)
            raise

    atheris.Setup(sys.argv, try_file, custom_mutator=custom_mutator)
    atheris.Fuzz()


def main(reader: str, seconds: int, seed: int) -> int:
    """Fuzz for so long, then keep what is new; 1 after a fault."""
    from tests.runtime.learn import learn, read_kept

    command = [sys.executable, "-m", "tests.hostile.learn", "work", reader]
    good = [*seeds(reader), *read_kept(reader)]
    return learn(reader, command, good, MOST_BYTES[reader], seconds, seed)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        reader = sys.argv[2]
        # libFuzzer starts itself again to merge, by this name and a shell.
        sys.argv[:3] = [f"{sys.executable} -m tests.hostile.learn work {reader}"]
        work(reader)
    else:
        sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1))
