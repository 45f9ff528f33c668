"""Writing with a language model: a byte goes in at its position, the scores of the next come out."""

from __future__ import annotations

import argparse
import codecs
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.diagnostics import fail

if TYPE_CHECKING:
    import numpy as np

    from openneutron.package.pte import MethodInfo

BYTES = 256
TOKENS, TEMPERATURE = 200, 0.7
Step = Callable[[int, int], "np.ndarray"]  # a byte and its position: the scores of the next


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    """What a language model is told."""
    parser.add_argument(
        "--generate",
        metavar="TEXT",
        help="go on with a text, by a program that takes a byte and its position",
    )
    parser.add_argument("-n", "--tokens", type=int, metavar="N", help=f"how many bytes (default: {TOKENS})")
    parser.add_argument(
        "--temperature", type=float, metavar="T", help=f"0: always the likeliest (default: {TEMPERATURE})"
    )


def check_generate_arguments(args: argparse.Namespace) -> None:
    """Refuse options that mean nothing together."""
    if args.generate is None:
        for option in ("tokens", "temperature"):
            if getattr(args, option) is not None:
                fail("ON104", f"option --{option}", "has an effect with --generate only", "Leave it out.")
        return
    for option in ("input", "output_dir", "labels", "etdump", "samples"):
        if getattr(args, option):
            name = option.replace("_", "-")
            fail("ON104", f"option --{name}", "has no effect with --generate", "Leave it out.")
    if args.tokens is not None and args.tokens < 1:
        fail("ON104", "option --tokens", f"must be positive (got {args.tokens})")
    if args.temperature is not None and not 0 <= args.temperature < 100:
        fail("ON104", "option --temperature", f"must be from 0 to 100 (got {args.temperature:g})")
    try:
        args.generate.encode()
    except UnicodeEncodeError:
        fail("ON104", "option --generate", "the text is not UTF-8", "Set the terminal to UTF-8.")
    if not args.generate:
        fail("ON104", "option --generate", "there is no text to go on with", "Give at least a letter.")


def run_generate(args: argparse.Namespace) -> None:
    """Load, write as it goes, print what it took."""
    from openneutron.commands.progress import Steps
    from openneutron.run.program import load_program

    path = Path(args.file)
    if path.suffix == ".tflite":
        fail("ON104", "option --generate", "it takes a .pte", "Compile the .tflite first.")
    with Steps().step(f"Loading {path}"):
        program = load_program(
            path, target=args.target, threads=args.threads, trust=args.trust, most_work=args.most_work
        )
    method = program.method()
    context = _context(method, program.index_limits(), args.file)
    if args.board is None:
        _write(args, context, method, lambda arrays: program.run(arrays), program.reset)
    else:
        _on_board(args, path, method, context)


def _context(method: MethodInfo, limits: list[int | None], where: str) -> int:
    """How many positions there are; a program that is no language model over bytes is refused."""
    inputs = [s for s in method.inputs if s is not None]
    whole = all(s.dtype in ("int32", "int64") and set(s.shape) <= {1} for s in inputs)
    scores = method.outputs[0] if method.outputs else None
    writes = scores is not None and scores.dtype == "float32" and scores.shape[-1:] == (BYTES,)
    writes = writes and scores is not None and 0 not in scores.shape
    if len(inputs) != 2 or not whole or not writes or limits[1] is None:
        fail("ON514", where, "it is no language model over bytes: that takes a byte and its position, and "
             f"returns {BYTES} scores", "openneutron compile tiny_lm makes one.")  # fmt: skip
    return limits[1]


def _on_board(args: argparse.Namespace, path: Path, method: MethodInfo, context: int) -> None:
    from openneutron.commands.devices.board import board_for, check_board_core
    from openneutron.commands.progress import Steps
    from openneutron.package.pte import inspect_program, read_program
    from openneutron.run.program import load_program

    steps, info = Steps(), inspect_program(path)
    data, _ = read_program(path)
    with board_for(args, tuple(sorted(method.operators)), load_program(data).target, steps) as board:
        check_board_core(data, board, str(path))
        with steps.step(f"Uploading {len(data):,} bytes", bar=True) as advance:
            board.load(data, info, method, str(path), advance)
        counts: list[int] = []

        def run(arrays: list[Any]) -> list[Any]:
            reply = board.run(method, [arrays], lambda part: None)
            counts.extend(reply.microseconds)
            return reply.outputs[0]

        board.reset_state()
        _write(args, context, method, run, board.reset_state)
        scale = board.firmware.instructions_per_microsecond
        each = sum(counts) / len(counts) * (scale or 1)
        what = "instructions counted by the emulator" if scale else "microseconds measured on the board"
        if not args.json:
            print(f"a byte: {each:,.0f} {what}")


def _write(
    args: argparse.Namespace,
    context: int,
    method: MethodInfo,
    run: Callable[[list[Any]], list[Any]],
    reset: Callable[[], None],
) -> None:
    import numpy as np

    kinds = [(s.shape, s.dtype) for s in method.inputs if s is not None]
    seconds = [0.0]

    def step(byte: int, position: int) -> np.ndarray:
        values = zip(kinds, (byte, position), strict=True)
        arrays = [np.full(shape, value, dtype) for (shape, dtype), value in values]
        start = time.perf_counter()
        scores = run(arrays)[0]
        seconds[0] += time.perf_counter() - start
        last = np.asarray(scores, np.float64).reshape(-1, BYTES)[-1]
        if not np.isfinite(last).all():
            fail("ON514", args.file, f"its scores at position {position} are not numbers",
                 "It cannot go on with a text: compile the model again.")  # fmt: skip
        return last

    count, fed = args.tokens or TOKENS, [0]
    decoder, written = codecs.getincrementaldecoder("utf-8")("replace"), []
    prompt = args.generate.encode()
    temperature = TEMPERATURE if args.temperature is None else args.temperature
    if not args.json:
        print(args.generate, end="", flush=True)
    for byte in _bytes(prompt, count, context, temperature, args.seed or 0, step, reset, fed):
        text = decoder.decode(bytes([byte]))
        written.append(text)
        if not args.json:
            print(_shown(text), end="", flush=True)
    rate = fed[0] / seconds[0] if seconds[0] else 0.0
    if args.json:
        data = {"prompt": args.generate, "text": "".join(written), "tokens": count, "tokens_fed": fed[0],
                "tokens_per_second": rate, "estimated_tokens_per_second": _estimated(args.file)}  # fmt: skip
        print(json.dumps(data, indent=2))
        return
    print()
    where = "this machine" if args.board is None else "the board, the line included"
    print(f"{count} bytes written, {fed[0]} read: {rate:,.1f} a second on {where}")
    if (estimated := _estimated(args.file)) is not None:
        print(f"the chip: {estimated:,.1f} a second, estimated")


def _bytes(
    prompt: bytes, count: int, context: int, temperature: float, seed: int, step: Step,
    reset: Callable[[], None], fed: list[int],
) -> Iterator[int]:  # fmt: skip
    """Bytes that go on with a text. When there is no position left, it begins anew with the last half."""
    import numpy as np

    generator, text, position = np.random.default_rng(seed), bytearray(prompt), 0
    waiting = text[-context:]
    for _ in range(count):
        if position + len(waiting) > context:
            waiting, position = text[-context // 2 :], 0
            reset()
        for byte in waiting:
            scores = step(byte, position)
            position += 1
            fed[0] += 1
        chosen = int(scores.argmax())
        if temperature:
            chances = np.exp((scores - scores.max()) / temperature)
            chosen = int(generator.choice(BYTES, p=chances / chances.sum()))
        waiting = bytearray([chosen])
        text.append(chosen)
        yield chosen


def _shown(text: str) -> str:
    """Text for a terminal: what is neither printable nor a new line is shown as a question mark."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _estimated(file: str) -> float | None:
    """Bytes a second on the chip, by the estimate that the report beside the program has."""
    from openneutron.report.sidecar import report_of_program

    microseconds = report_of_program(Path(file))["summary"].get("time_us_estimated")
    return 1e6 / microseconds if microseconds else None
