"""Run a compiled program with ExecuTorch's runtime on the simulator; a .tflite is compiled on the way.

Inputs are .npy, .npz or picture files, one --input per program input; without them the inputs are random.
With --board it runs on a board over a serial line, and every output is compared with the host's.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from pathlib import Path
from typing import Any

from openneutron.commands.board import add_board_arguments, check_board_arguments, run_board
from openneutron.commands.seeds import check_seed
from openneutron.diagnostics import fail, printable
from openneutron.files import read_text
from openneutron.target import DEFAULT_TARGET, TARGETS

NAME = "run"
HELP = "run a .pte or .tflite on the simulator"
TOP = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="a .pte or a .tflite")
    parser.add_argument(
        "--input", action="append", default=[], metavar="FILE", help="once per input, in order"
    )
    parser.add_argument("--output-dir", metavar="DIR", help="write output_0.npy, output_1.npy, ...")
    parser.add_argument("--labels", metavar="FILE", help="names of the classes, one a line")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run N times, for the time")
    parser.add_argument("--threads", type=int, metavar="N", help="default: OPENNEUTRON_THREADS, else 1")
    parser.add_argument("--seed", type=int, default=0, help="of random inputs")
    parser.add_argument(
        "--most-work", type=int, default=0, metavar="N",
        help="refuse a program that asks for more than N multiplications (default: 4 * 10^12)",
    )  # fmt: skip
    parser.add_argument(
        "--trust", action="store_true", help="skip the rehearsal in a process of its own (.pte of your own)"
    )
    parser.add_argument("--target", default=DEFAULT_TARGET, help=f"{', '.join(TARGETS)} (default)")
    parser.add_argument(
        "--etdump", metavar="FILE", help="profile: write ExecuTorch's event trace and print it (.pte only)"
    )
    parser.add_argument(
        "--etrecord", metavar="FILE", help="names the nodes of the profile (default: FILE.etrecord if there)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_board_arguments(parser, samples=5, core=True)


def execute(args: argparse.Namespace) -> None:
    """Load, run, print, write."""
    from openneutron.commands.progress import Steps

    path = Path(args.file)
    if args.repeat < 1:
        fail("ON104", "option --repeat", f"must be positive (got {args.repeat})")
    check_seed(args.seed)
    if args.most_work < 0:
        fail("ON104", "option --most-work", f"must not be negative (got {args.most_work})")
    if args.etrecord and not args.etdump:
        fail("ON104", "option --etrecord", "has an effect with --etdump only", "Add --etdump FILE.")
    check_board_arguments(args)
    if args.core and args.board != "qemu":
        fail("ON104", "option --core", "has an effect with --board qemu only", "Leave it out.")
    if args.board is not None:
        for name in ("etdump", "labels", "threads"):
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
    inputs = read_inputs(args, specs)
    times = []
    for _ in range(args.repeat):
        start = time.perf_counter()
        outputs = program.run(inputs)
        times.append(time.perf_counter() - start)
    if args.etdump:
        program.write_etdump(Path(args.etdump))
    profile = _profile(args, program) if args.etdump else None
    files = write_outputs(args.output_dir, outputs) if args.output_dir else []
    _print(args, inputs, outputs, sorted(times), files, profile)


def _profile(args: argparse.Namespace, program: Any) -> Any:
    from openneutron.run.profile import SUFFIX, read_profile
    from openneutron.target import find_target

    beside = Path(args.file).with_suffix(SUFFIX)
    record = Path(args.etrecord) if args.etrecord else beside if beside.exists() else None
    return read_profile(Path(args.etdump), program.method(), find_target(args.target), record)


def _load(path: Path, args: argparse.Namespace) -> tuple[Any, list[tuple[tuple[int, ...], str]]]:
    if path.suffix == ".tflite":
        from openneutron.options import CompileOptions
        from openneutron.run.litert import load_litert

        if args.etdump:
            fail(
                "ON104",
                "option --etdump",
                "a .tflite does not run in ExecuTorch",
                "Compile it to a .pte first.",
            )
        model = load_litert(path, CompileOptions(config=args.target), args.threads, args.most_work)
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
    specs = [(s.shape, s.dtype) for s in program.method().inputs if s is not None]
    return program, specs


def read_inputs(args: argparse.Namespace, specs: list[tuple[tuple[int, ...], str]]) -> list[Any]:
    """The arrays of --input, or random ones."""
    import numpy as np

    from openneutron.commands.samples import IMAGES, read_arrays

    if not args.input:
        generator = np.random.default_rng(args.seed)
        return [_random(generator, shape, np.dtype(dtype)) for shape, dtype in specs]
    arrays: list[np.ndarray] = []
    for name in args.input:
        file = Path(name)
        if file.suffix.lower() in IMAGES:
            from openneutron.models.pictures import DEFAULT

            shape, dtype = specs[min(len(arrays), len(specs) - 1)]
            if dtype != "float32":
                fail("ON605", name, f"a picture cannot be an input of type {dtype}", "Give an .npy file.")
            arrays.append(DEFAULT.read(file, shape))
        else:
            arrays += read_arrays(file)
    if len(arrays) != len(specs):
        listing = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in specs)
        fail("ON514", args.file, f"{len(arrays)} inputs given, it takes {len(specs)}", f"It takes {listing}.")
    # The batch of one is easily forgotten, and adding it cannot be wrong.
    return [a[None] if (1, *a.shape) == shape else a for a, (shape, _) in zip(arrays, specs, strict=True)]


def _random(generator: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    import numpy as np

    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype)
    info = np.iinfo(dtype)
    return generator.integers(max(info.min, -128), min(info.max, 127) + 1, shape).astype(dtype)


def write_outputs(folder: str, outputs: list[Any]) -> list[Path]:
    """Write output_0.npy, output_1.npy, ... into a folder."""
    import numpy as np

    from openneutron.files import write_atomically

    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail("ON601", folder, f"cannot be made: {error.strerror}", "Choose another folder.")
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
        print("inputs are random; give them with --input")
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
        print(f"wrote {file}")


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
