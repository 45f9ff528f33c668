"""Run a compiled program with ExecuTorch's runtime on the simulator; a .tflite is compiled on the way.

Inputs are .npy, .npz or image files, one --input per program input; without them the inputs are those that
the program was compiled with, kept in its report (FILE.report.json), else random ones that it takes. Arrays
with one more dimension in front are the frames of a sequence, for a program that remembers.
With --board it runs on a board over a serial line, and every output is compared with the host's.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openneutron.commands.devices.board import add_board_arguments, check_board_arguments, run_board
from openneutron.commands.devices.generate import (
    add_generate_arguments,
    check_generate_arguments,
    run_generate,
)
from openneutron.diagnostics import fail, printable
from openneutron.files import read_text
from openneutron.inputs.seeds import check_seed
from openneutron.targets.table import DEFAULT_TARGET, TARGETS

NAME = "run"
HELP = "run a .pte or .tflite on the simulator"
TOP = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="a .pte or a .tflite")
    parser.add_argument(
        "--input", action="append", default=[], metavar="FILE", help="once per input, in order"
    )
    parser.add_argument("--method", metavar="NAME", help="of a .pte with several (default: forward)")
    parser.add_argument("--output-dir", metavar="DIR", help="write output_0.npy, output_1.npy, ...")
    parser.add_argument("--labels", metavar="FILE", help="names of the classes, one a line")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run N times, for the time")
    parser.add_argument("--threads", type=int, metavar="N", help="default: OPENNEUTRON_THREADS, else 1")
    parser.add_argument("--seed", type=int, help="random inputs, with this seed")
    parser.add_argument(
        "--most-work", type=int, default=0, metavar="N",
        help="refuse a program that asks for more than N multiplications (default: 4 * 10^12)",
    )  # fmt: skip
    parser.add_argument(
        "--trust", action="store_true", help="skip the rehearsal in a process of its own (.pte of your own)"
    )
    parser.add_argument("--target", help=f"{', '.join(TARGETS)} (default: the program's, {DEFAULT_TARGET})")
    parser.add_argument(
        "--etdump", metavar="FILE", help="profile: write ExecuTorch's event trace and print it (.pte only)"
    )
    parser.add_argument(
        "--etrecord", metavar="FILE", help="names the nodes of the profile (default: FILE.etrecord if there)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_generate_arguments(parser)
    add_board_arguments(parser, samples=5, core=True)


def execute(args: argparse.Namespace) -> None:
    """Load, run, print, write."""
    import numpy as np

    from openneutron.commands.progress import Steps

    path = Path(args.file)
    if args.repeat < 1:
        fail("ON104", "option --repeat", f"must be positive (got {args.repeat})")
    check_seed(args.seed or 0)
    if args.most_work < 0:
        fail("ON104", "option --most-work", f"must not be negative (got {args.most_work})")
    if args.etrecord and not args.etdump:
        fail("ON104", "option --etrecord", "has an effect with --etdump only", "Add --etdump FILE.")
    check_board_arguments(args)
    if args.core and args.board != "qemu":
        fail("ON104", "option --core", "has an effect with --board qemu only", "Leave it out.")
    check_generate_arguments(args)
    if args.generate is not None:
        run_generate(args)
        return
    if args.board is not None:
        for name in ("etdump", "labels", "threads", "method"):
            if getattr(args, name) is not None:
                fail("ON104", f"option --{name}", "has no effect with --board", "Leave it out.")
        if args.repeat != 1:
            fail("ON104", "option --repeat", "has no effect with --board", "Use --samples.")
        run_board(args)
        return
    if args.samples is not None:
        fail("ON104", "option --samples", "has an effect with --board only", "Use --repeat, or add --board.")
    with Steps().step(f"Loading {path}"):
        program, specs = _load(path, args)
    inputs = _kept_inputs(path, specs) if not args.input and args.seed is None else None
    args.random = inputs is None and not args.input
    named = {"method": args.method} if args.method else {}
    inputs = inputs or read_inputs(args, specs, program.index_limits(**named) if args.random else ())
    sequence = frames_of_arrays(inputs, specs)
    times = []
    for number in range(args.repeat):
        program.reset() if number else None
        start = time.perf_counter()
        frames = [program.run(frame, **named) for frame in sequence]
        times.append((time.perf_counter() - start) / len(sequence))
    outputs = frames[0] if len(sequence) == 1 else [np.stack(column) for column in zip(*frames, strict=True)]
    if args.etdump:
        program.write_etdump(Path(args.etdump))
    profile = _profile(args, program) if args.etdump else None
    files = write_outputs(args.output_dir, outputs) if args.output_dir else []
    _print(args, inputs, outputs, sorted(times), files, profile)


def _profile(args: argparse.Namespace, program: Any) -> Any:
    from openneutron.run.profile import SUFFIX, read_profile
    from openneutron.targets.table import find_target

    beside = Path(args.file).with_suffix(SUFFIX)
    record = Path(args.etrecord) if args.etrecord else beside if beside.exists() else None
    return read_profile(
        Path(args.etdump),
        program.method(args.method or "forward"),
        find_target(args.target or program.target),
        record,
    )


def _load(path: Path, args: argparse.Namespace) -> tuple[Any, list[tuple[tuple[int, ...], str]]]:
    if path.suffix == ".tflite":
        if args.method:
            fail("ON104", "option --method", "a .tflite has one", "Leave it out.")
        from openneutron.options import CompileOptions
        from openneutron.run.litert import load_litert

        if args.etdump:
            fail(
                "ON104",
                "option --etdump",
                "a .tflite does not run in ExecuTorch",
                "Compile it to a .pte first.",
            )
        model = load_litert(
            path, CompileOptions(config=args.target or DEFAULT_TARGET), args.threads, args.most_work
        )
        return model, [(shape, str(dtype)) for shape, dtype in model.inputs]
    from openneutron.run.program import load_program

    program = load_program(
        path,
        target=args.target,
        etdump=bool(args.etdump),
        threads=args.threads,
        trust=args.trust,
        most_work=args.most_work,
    )
    methods = list(program.info.methods)
    if args.method is None and "forward" not in methods:
        if len(methods) > 1:
            fail(
                "ON515", str(path), "the program has several methods", f"Give --method: {', '.join(methods)}."
            )
        args.method = methods[0]
    specs = [(s.shape, s.dtype) for s in program.method(args.method or "forward").inputs if s is not None]
    return program, specs


def _kept_inputs(path: Path, specs: list[tuple[tuple[int, ...], str]]) -> list[Any] | None:
    """The inputs that a program was compiled with, if they are kept beside it and fit."""
    from openneutron.report.sidecar import kept_inputs

    arrays = kept_inputs(path) if path.suffix != ".tflite" else None
    fits = arrays is not None and [(a.shape, str(a.dtype)) for a in arrays] == specs
    return arrays if fits else None


def frames_of_arrays(inputs: list[Any], specs: list[tuple[tuple[int, ...], str]]) -> list[list[Any]]:
    """The inputs of each run: all of them once, or along a dimension that every array has in front."""
    counts = {len(a) if a.shape[1:] == shape else 0 for a, (shape, _) in zip(inputs, specs, strict=True)}
    if len(counts) != 1 or 0 in counts:
        return [inputs]
    return [[a[i] for a in inputs] for i in range(counts.pop())]


def read_inputs(
    args: argparse.Namespace, specs: list[tuple[tuple[int, ...], str]], limits: Sequence[int | None] = ()
) -> list[Any]:
    """The arrays of --input, or random ones; indices are below their limits."""
    import numpy as np

    from openneutron.inputs.samples import IMAGES, read_arrays

    if not args.input:
        generator = np.random.default_rng(args.seed or 0)
        padded = [*limits, *[None] * (len(specs) - len(limits))]
        return [
            _random(generator, shape, np.dtype(dtype), limit)
            for (shape, dtype), limit in zip(specs, padded, strict=True)
        ]
    arrays: list[np.ndarray] = []
    for name in args.input:
        file = Path(name)
        if file.suffix.lower() in IMAGES:
            from openneutron.models.preprocessing import DEFAULT

            shape, dtype = specs[min(len(arrays), len(specs) - 1)]
            if dtype != "float32":
                fail("ON605", name, f"an image cannot be an input of type {dtype}", "Give an .npy file.")
            arrays.append(DEFAULT.read(file, shape))
        else:
            arrays += read_arrays(file)
    if len(arrays) != len(specs):
        listing = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in specs)
        fail("ON514", args.file, f"{len(arrays)} inputs given, it takes {len(specs)}", f"It takes {listing}.")
    # The batch of one is easily forgotten, and adding it cannot be wrong.
    return [a[None] if (1, *a.shape) == shape else a for a, (shape, _) in zip(arrays, specs, strict=True)]


def _random(generator: Any, shape: tuple[int, ...], dtype: Any, limit: int | None = None) -> Any:
    import numpy as np

    if limit is not None or (dtype.kind in "iu" and dtype.itemsize > 2):
        return generator.integers(0, limit or 2, shape).astype(dtype)  # an index, or it may be one

    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype)
    info = np.iinfo(dtype)
    return generator.integers(max(info.min, -128), min(info.max, 127) + 1, shape).astype(dtype)


def write_outputs(folder: str, outputs: list[Any]) -> list[Path]:
    """Write output_0.npy, output_1.npy, ... into a folder."""
    import numpy as np

    from openneutron.files import make_folder, write_atomically

    make_folder(Path(folder))
    files = []
    for i, output in enumerate(outputs):
        buffer = io.BytesIO()
        np.save(buffer, output)
        files.append(Path(folder) / f"output_{i}.npy")
        write_atomically(files[-1], buffer.getvalue())
    return files


def _print(
    args: argparse.Namespace,
    inputs: list[Any],
    outputs: list[Any],
    times: list[float],
    files: list[Path],
    profile: Any,
) -> None:
    labels = _labels(args.labels)
    data: dict[str, Any] = {
        "inputs": [{"shape": list(a.shape), "dtype": str(a.dtype)} for a in inputs],
        "outputs": [{"shape": list(a.shape), "dtype": str(a.dtype), **_top(a, labels)} for a in outputs],
        "seconds": times[len(times) // 2],
        "runs": len(times),
        "files": [str(f) for f in files],
    }
    if profile is not None:
        data["profile"] = {**profile.as_dict(), "etdump": args.etdump}
    if args.json:
        print(json.dumps(data, indent=2))
        return
    if not args.input:
        what = "random" if args.random else "those the program was compiled with"
        print(f"inputs are {what}; give them with --input")
    for kind in ("inputs", "outputs"):
        for i, entry in enumerate(data[kind]):
            print(f"{kind[:-1]} {i}: {entry['dtype']}{entry['shape']}")
            for rank, place in enumerate(entry.get("top", ()), 1):
                print(f"  {rank}. {place['class']}: {place['score']:g}")
    print(f"time: {data['seconds'] * 1000:.2f} ms on this machine (not the NPU's), median of {data['runs']}")
    if profile is not None:
        from openneutron.report.terminal import make_console, print_profile

        print_profile(make_console(), profile)
    for file in [*files, *([args.etdump] if profile is not None else [])]:
        print(f"wrote {printable(str(file))}")


def _top(array: Any, labels: list[str]) -> dict[str, Any]:
    """The largest scores of what looks like a classifier's result."""
    flat = array.reshape(-1)
    if array.ndim != 2 or array.shape[0] != 1 or flat.size < 2:
        return {}
    order = sorted(range(flat.size), key=lambda i: -float(flat[i]))[:TOP]
    return {
        "top": [{"class": labels[i] if i < len(labels) else str(i), "score": float(flat[i])} for i in order]
    }


def _labels(path: str | None) -> list[str]:
    if path is None:
        return []
    return [printable(line) for line in read_text(Path(path), "ON605").splitlines()]
