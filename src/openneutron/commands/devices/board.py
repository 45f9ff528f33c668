"""`run --board`: a program on a board, or on an emulated one, compared with the host."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.diagnostics import OpenNeutronError, fail, printable

if TYPE_CHECKING:
    from openneutron.board.arrays import Comparison
    from openneutron.board.session import Board, BoardRun
    from openneutron.package.pte import MethodInfo, ProgramInfo

QEMU = "qemu"
BAUD, TIMEOUT = 115200, 30.0


def add_board_arguments(
    parser: argparse.ArgumentParser, samples: int | None = None, core: bool = False
) -> None:
    """Declare --board and what belongs to it; a command that compiles has a --core of its own."""
    from openneutron.firmware.cores import CORES, DEFAULT

    add = parser.add_argument_group("on a board").add_argument
    add("--board", metavar="PORT", help="/dev/ttyACM0, COM5, socket://host:port, a pyserial URL, or qemu")
    add_line_arguments(add, BAUD, TIMEOUT)
    if samples is not None:
        add("--samples", type=int, metavar="N", help=f"random inputs for the board (default: {samples})")
    if not core:
        return
    add("--core", metavar="CORE", help=f"of --board qemu: {', '.join(CORES)} (default: {DEFAULT.name})")


def add_line_arguments(add: Any, baud: int | None, timeout: float | None) -> None:
    """Declare what is known of the line to a board, with these defaults."""
    add("--baud", type=int, default=baud, metavar="N", help=f"of the serial line (default: {BAUD})")
    add("--timeout", type=float, default=timeout, metavar="S",
        help=f"seconds a board may be silent (default: {TIMEOUT:g})")  # fmt: skip


def check_line(baud: float, timeout: float) -> None:
    """Refuse values that make no sense."""
    if not (isinstance(baud, int) and 1 <= baud < 1 << 31):
        fail("ON104", "option --baud", f"must be a positive number of bits a second (got {baud})")
    if not 0 < timeout < 1e6:
        fail("ON104", "option --timeout", f"must be a positive number of seconds (got {timeout})")


def check_board_arguments(args: argparse.Namespace) -> None:
    """Refuse values that make no sense, and options that have no effect."""
    check_line(args.baud, args.timeout)
    if args.board is not None and not args.board.strip():
        fail("ON104", "option --board", "is empty", "Give a port, for example /dev/ttyACM0, or qemu.")
    samples = getattr(args, "samples", None)
    if samples is not None and samples < 1:
        fail("ON104", "option --samples", f"must be positive (got {samples})")


@contextmanager
def board_for(
    args: argparse.Namespace, operators: tuple[str, ...], target: str, steps: Any
) -> Iterator[Board]:
    """The board that --board names; an emulated one, of that chip, is started for these CPU operators."""
    from openneutron.board.session import connect, open_board

    if args.board != QEMU:
        with steps.step(f"Looking for a board at {args.board}"):
            board = open_board(args.board, baud=args.baud, timeout=args.timeout)
        with board:
            yield board
        return
    from openneutron.firmware.cores import find_firmware_core
    from openneutron.firmware.serve import build_server, emulated_line

    core = find_firmware_core(args.core, target)
    with steps.step("Building the firmware for QEMU"):
        image = build_server(core, operators)
    # An emulator has no line to wait for, but it may share the machine: it gets more time.
    with (
        emulated_line(core, image) as port,
        connect(port, QEMU, baud=10**6, timeout=args.timeout * 4) as board,
    ):
        yield board


def run_board(args: argparse.Namespace) -> None:
    """Upload, run, compare, print."""
    from openneutron.accuracy.reference import read_reference
    from openneutron.board.arrays import Comparison
    from openneutron.commands.progress import Steps
    from openneutron.package.pte import inspect_program, read_program

    path, steps = Path(args.file), Steps()
    if path.suffix == ".tflite":
        fail("ON104", "option --board", "a board takes a .pte", "Compile the .tflite first.")
    data, _ = read_program(path)
    method = first_method(inspect_program(path), str(path))
    cases = [] if args.input or not _is_stock(method) else read_reference(path, data)
    inputs = board_inputs(args, method)
    if cases:  # as many as were asked for, again and again
        cases = [cases[n % len(cases)] for n in range(args.samples or 5)]
        inputs = [case.inputs for case in cases]
    _, _, run = measure_file(args, path, inputs, steps, keep=False)
    if cases:
        places = [f"{path}: input {n}" for n in range(len(cases))]
        trios = zip(cases, run.outputs, places, strict=True)
        worst = max(case.check(outputs, place) for case, outputs, place in trios)
        comparison, against = Comparison(), f"the quantized model: {worst:.0%} of what rounding explains"
    else:
        comparison, against = compare_with_host(path, data, method, inputs, run)
    result = _result(args, path, data, run, comparison, against)
    if args.output_dir:
        from openneutron.commands.devices.run import write_outputs

        result["files"] = [str(f) for f in write_outputs(args.output_dir, run.outputs[-1])]
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        _print(result, given=bool(args.input))


def measure_file(
    args: argparse.Namespace, path: Path, inputs: list[list[Any]] | None, steps: Any, keep: bool = True
) -> tuple[MethodInfo, list[list[Any]], BoardRun]:
    """Upload a program, run it on these inputs (else random ones), and keep the times beside it."""
    from openneutron.board.measurements import add_measurement
    from openneutron.package.pte import inspect_program, read_program

    data, _ = read_program(path)
    info = inspect_program(path)
    method = first_method(info, str(path))
    if inputs is None:
        inputs = random_inputs(method, 5, 0)
    operators = tuple(sorted({op for m in info.methods.values() for op in m.operators}))
    with board_for(args, operators, _target(info, str(path)), steps) as board:
        check_board_core(data, board, str(path))
        with steps.step(f"Uploading {len(data):,} bytes", bar=True) as advance:
            board.load(data, info, method, str(path), advance)
        with steps.step(f"Running {len(inputs)} input(s) on the board", bar=True) as advance:
            run = board.run(method, inputs, advance)
    if keep:
        add_measurement(path, data, run)
    return method, inputs, run


def _target(info: ProgramInfo, where: str) -> str:
    """The chip a program was compiled for, as far as it says that."""
    from openneutron.package.payload import check_one_target

    payloads = [d.known_payload() for d in info.delegates if d.is_neutron]
    return check_one_target([p for p in payloads if p is not None and p.is_open], where)


def _is_stock(method: MethodInfo) -> bool:
    """Whether only NXP's NPU can run it."""
    payloads = [d.known_payload() for d in method.delegates]
    return any(payload is None or not payload.is_open for payload in payloads)


def check_board_core(data: bytes, board: Board, where: str) -> None:
    """Refuse a program whose cortex_m operators were compiled for another core than the board has."""
    from openneutron.firmware.core_check import check_core
    from openneutron.firmware.cores import CORES

    if board.firmware.core in CORES:
        check_core(data, board.firmware.core, where)


def first_method(info: ProgramInfo, where: str) -> MethodInfo:
    """`forward`, or the first of a program that has none."""
    if not info.methods:
        fail("ON515", where, "the program has no method", "Compile it again.")
    return info.methods.get("forward") or next(iter(info.methods.values()))


def board_inputs(args: argparse.Namespace, method: MethodInfo) -> list[list[Any]]:
    """The given inputs, or random ones."""
    import numpy as np

    from openneutron.commands.devices.run import read_inputs
    from openneutron.package.pte import numpy_dtype

    specs = [((), "int64") if s is None else (s.shape, s.dtype) for s in method.inputs]
    for number, spec in enumerate(method.inputs):
        if spec is not None and numpy_dtype(spec) is None:
            fail(
                "ON725",
                args.file,
                f"input {number} has the type {spec.dtype}",
                "Convert it inside the model.",
            )
    if args.input:
        if args.samples not in (None, 1):
            fail("ON104", "option --samples", "counts random inputs; --input gives one", "Leave out either.")
        arrays = [np.asarray(a) for a in read_inputs(args, specs)]
        for i, (array, (shape, dtype)) in enumerate(zip(arrays, specs, strict=True)):
            if array.shape != shape or array.dtype != np.dtype(dtype):
                fail("ON514", args.file, f"input {i} is {array.dtype}{list(array.shape)}, it takes "
                     f"{dtype}{list(shape)}", "Convert it.")  # fmt: skip
        return [arrays]
    return random_inputs(method, args.samples or 5, args.seed or 0)


def random_inputs(method: MethodInfo, count: int, seed: int) -> list[list[Any]]:
    """Random inputs of a method."""
    import numpy as np

    from openneutron.firmware.emulator import random_array

    specs = [((), "int64") if s is None else (s.shape, s.dtype) for s in method.inputs]
    generator = np.random.default_rng(seed)
    return [[random_array(generator, shape, np.dtype(dtype)) for shape, dtype in specs] for _ in range(count)]


def compare_with_host(
    path: Path, data: bytes, method: MethodInfo, inputs: list[list[Any]], run: BoardRun
) -> tuple[Comparison, str]:
    """Every output beside the host's; what the host cannot run is not compared, and why is said."""
    from openneutron.board.arrays import Comparison

    host = host_outputs(data, method, inputs)
    if isinstance(host, str):
        return Comparison(), f"nothing: {host}"
    return check_outputs(str(path), run.outputs, host), "the host"


def host_outputs(data: bytes, method: MethodInfo, inputs: list[list[Any]]) -> list[list[Any]] | str:
    """What the host computes for these inputs, or why it cannot."""
    from openneutron.run.program import load_program

    if _is_stock(method):
        return "the host cannot run NXP's microcode"
    try:
        loaded = load_program(data)
    except OpenNeutronError as error:
        if error.diagnostic.code != "ON513":
            raise
        return error.diagnostic.problem
    return [list(loaded.run(arrays, method.name)) for arrays in inputs]


def check_outputs(where: str, board: list[list[Any]], host: list[list[Any]]) -> Comparison:
    """Fail at the first output of the board that is not the host's."""
    import numpy as np

    from openneutron.board.arrays import Comparison, compare_arrays

    comparison = Comparison()
    for n, (ours, theirs) in enumerate(zip(board, host, strict=True)):
        for o, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            place = f"{where}: input {n}, output {o}"
            comparison += compare_arrays(np.asarray(one), np.asarray(two), place, "ON726",
                                    "Please report it with the program and the firmware.")  # fmt: skip
    return comparison


def _result(
    args: argparse.Namespace, path: Path, data: bytes, run: BoardRun, found: Comparison, against: str
) -> dict[str, Any]:
    from openneutron.board.measurements import add_measurement, measured_path
    from openneutron.report.sidecar import report_of_program

    summary = report_of_program(path)["summary"]
    row = add_measurement(path, data, run)
    scale = run.firmware.instructions_per_microsecond or 1
    return {
        "program": str(path),
        "board": args.board,
        "firmware": run.firmware.name,
        "compared_with": against,
        "values": found.values,
        "equal": found.equal,
        "largest_difference": found.worst,
        "time": row,
        "times": [value * scale for value in run.microseconds],
        "time_us_estimated": summary.get("time_us_estimated") if summary.get("cycles_estimated") else None,
        "estimate_label": summary.get("estimate_label"),
        "measurements": str(measured_path(path)),
    }


def _print(data: dict[str, Any], given: bool) -> None:
    time, unit = data["time"], data["time"]["unit"]
    what = "counted instructions, not a time" if unit == "instructions" else "measured on the board"
    print(f"firmware: {data['firmware']}")
    for number, value in enumerate(data["times"][:10]):
        print(f"inference {number}: {value:,} {unit}")
    if len(data["times"]) > 10:
        print(f"... and {len(data['times']) - 10} more")
    print(
        f"median {time['median']:,.0f}, mean {time['mean']:,.1f}, {time['minimum']:,} to {time['maximum']:,} "
        f"{unit} ({what})"
    )
    if data["time_us_estimated"] is None:
        print("estimate: none, the converter tells nothing of its calls")
    else:
        print(
            f"estimate for the chip: {data['time_us_estimated']:,.1f} microseconds ({data['estimate_label']})"
        )
    kind = "the given input" if given else f"{len(data['times'])} random input(s)"
    if data["values"]:
        rest = f", the others within {data['largest_difference']:.1e} of the largest"
        print(f"{kind}: {data['equal']:,} of {data['values']:,} values equal those of {data['compared_with']}"
              + (rest if data["equal"] != data["values"] else ""))  # fmt: skip
    else:
        print(f"{kind}: compared with {data['compared_with']}")
    for file in [*data.get("files", ()), data["measurements"]]:
        print(f"wrote {printable(str(file))}")
