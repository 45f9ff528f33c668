"""Int8 against float on trained networks, on inputs that calibration has not seen.

    python benchmarks/bench_accuracy.py [NETWORK ...] [--rows] [--ablation] [--ladder]

Networks are yolo, detector, recogniser, silero, efficientnet: those of others, with calibration and test
inputs from different sources (`trained_networks` says what to install). One that cannot be had here is one
line, and the others go on. Without an option all three tables are printed:

--rows       Every network by `openneutron compile` as a user types it, the program run on the simulator;
             beside it ExecuTorch's XNNPACK quantizer and onnxruntime's static quantization (QDQ, minimum and
             maximum), both per channel and as they come.
--ablation   Every step left out by itself, so that one sees what it is worth:
%(steps)s
--ladder     8, 16, 32 and 64 calibration samples: more should never be worse.

"said" is the error at the outputs that the command prints, "found" the same on the test inputs: both in
decibel, of the worst output. CPU seconds of ours are of the whole command, of the others and in the other
tables of quantizing alone.

More parts, by name: `failing` (a small MobileNetV2 with channels rescaled by up to 100), `zoo` (small
networks in both recipes), `observing` (the time of the observers).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import accuracy_small as small
import torch
from accuracy_ways import STEPS, WAYS, Made, command, ours, without
from trained_networks import TASKS, Missing, Run, Sample, Task, decibel

from openneutron.quantize.plan import LEVELS

SMALL = ("failing", "zoo", "observing")
COUNTS = (8, 16, 32, 64)  # samples of the ladder
_WORSE = 0.5  # decibel that more samples may cost
_STEPWISE = 256  # inputs of a stream that are judged one by one


@dataclass(frozen=True)
class Judged:
    """A quantized network on the test inputs."""

    score: float
    also: float | None
    said: float
    found: float
    seconds: float


class Judge:
    """A network's float answers, which quantized ones are compared with."""

    def __init__(self, task: Task):
        self.task = task
        self.inputs: list[Sample] = []
        self.exact = task.run(_recorded(task.module, self.inputs))

    def __call__(self, make: Callable[..., Made], *args: Any) -> Judged:
        start = time.process_time()
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            made = make(self.task, *args)
        seconds = time.process_time() - start if made.seconds is None else made.seconds
        seen: list[Sample] = []
        found = self.task.run(_recorded(made.run, seen))
        also = None if self.task.also is None else self.task.also[1](self.exact, found)
        score = self.task.score(self.exact, found)
        return Judged(score, also, made.said, self._unseen(made.run, seen, found), seconds)

    def _unseen(self, model: Run, seen: list[Sample], found: list[list[torch.Tensor]]) -> float:
        """The error of the worst output; of a stream on what float's reads, so that nothing adds up."""
        exact = self.exact
        same = all(torch.equal(a, b) for one, other in zip(self.inputs, seen, strict=True)
                   for a, b in zip(one, other, strict=True))  # fmt: skip
        if not same:
            chosen = range(0, len(self.inputs), max(1, len(self.inputs) // _STEPWISE))
            with torch.no_grad():
                found = [list(model(*self.inputs[i])) for i in chosen]
            exact = [exact[i] for i in chosen]
        count = len(exact[0]) if same else len(found[0])
        return min(decibel([[e[i]] for e in exact], [[f[i]] for f in found]) for i in range(count))


def _recorded(model: Run, inputs: list[Sample]) -> Run:
    """The model, which notes what it is given."""

    def run(*sample: torch.Tensor) -> Any:
        inputs.append(sample)
        return model(*sample)

    return run


def judges(names: Sequence[str]) -> Iterator[Judge]:
    """The networks that can be had here; of the others a line says why not."""
    for name in names:
        try:
            with redirect_stdout(sys.stderr):
                judge = Judge(TASKS[name]())
        except Missing as error:
            print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
            continue
        yield judge


# --------------------------------------------------------------------------------------------------
# The tables


def rows(names: Sequence[str], ways: Sequence[str]) -> None:
    """Every network by the default command, and by others."""
    print("| network | quantized by | figure | | wanted | said dB | found dB | CPU s |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for judge in judges(names):
        task = judge.task
        made: list[tuple[str, str, tuple[Any, ...]]] = [(way, f"{task.bar:g}", (WAYS[way],)) for way in ways]
        if task.per_tensor is not None and "ours" in ways:
            made.insert(1, ("ours, `--per-tensor`", f"{task.per_tensor:g}", (command, "--per-tensor")))
        for way, bar, make in made:
            own = way.startswith("ours")
            try:
                it = judge(*make)
            except Exception as error:
                if own:
                    raise
                # Another tool cannot quantize the network, or is not installed.
                print(f"| {task.name} | {way} | fails: {_line(error)} | | | | | |", flush=True)
                continue
            print(f"| {task.name} | {way} | {task.figure} | {it.score:.3f} | {bar if own else ''} | "
                  f"{_db(it.said)} | {_db(it.found)} | {it.seconds:.0f} |", flush=True)  # fmt: skip
            if task.also is not None:
                print(f"| | {way} | {task.also[0]} | {it.also:.3f} | | | | |", flush=True)


def ablation(names: Sequence[str], steps: Sequence[str]) -> None:
    """Every step left out by itself: the figure and the error that remain, and what the step was worth."""
    print("| network | left out | figure | | said dB | found dB | worth dB |")
    print("|---|---|---|---:|---:|---:|---:|")
    for judge in judges(names):
        task = judge.task
        whole = judge(ours)
        print(f"| {task.name} | nothing | {task.figure} | {whole.score:.3f} | {_db(whole.said)} | "
              f"{_db(whole.found)} | |", flush=True)  # fmt: skip
        for step in steps:
            it = judge(without, step)
            print(f"| | {STEPS[step].text} | | {it.score:.3f} | {_db(it.said)} | {_db(it.found)} | "
                  f"{whole.found - it.found:+.1f} |", flush=True)  # fmt: skip


def ladder(names: Sequence[str], counts: Sequence[int]) -> None:
    """More and more calibration samples: each step within half a decibel of the best before it."""
    columns = " | ".join(f"{count} samples: said / found dB" for count in counts)
    print(f"| network | {columns} | the most any step loses, dB |\n|---|{'---:|' * (len(counts) + 1)}")
    for judge in judges(names):
        task, found = judge.task, []
        pool = task.given(max(counts))
        for count in counts:
            samples = pool[:: len(pool) // count][:count]
            found.append(judge(ours, samples))
            print(f"{task.name}, {count}: {_db(found[-1].found)} dB", file=sys.stderr, flush=True)
        best, lost = found[0].found, 0.0
        for it in found[1:]:
            best, lost = max(best, it.found), max(lost, best - it.found)
        cells = " | ".join(f"{_db(it.said)} / {_db(it.found)}" for it in found)
        print(
            f"| {task.name} | {cells} | {lost:.1f}{'' if lost <= _WORSE else ' (more than 0.5)'} |",
            flush=True,
        )


def _db(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:80]}" if text else type(error).__name__


def _names(text: str, known: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no '{unknown[0]}': {', '.join(known)}")
    return names


def main() -> None:
    """Print the tables."""
    steps = "\n".join(f"               {name}: {left.text}" for name, left in STEPS.items())
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__ % {"steps": steps}, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="NETWORK", help=", ".join((*TASKS, *SMALL)))
    for part in ("rows", "ablation", "ladder"):
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--only", default=",".join(WAYS), help="ways to quantize of --rows (default: all)")
    parser.add_argument("--steps", default=",".join(STEPS), help="of --ablation (default: all)")
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)), help="of --ladder")
    parser.add_argument("--plans", default="fast,balanced,best", help="of failing and zoo")
    parser.add_argument("--epochs", type=int, default=20, help="of failing")
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    ways, left = _names(args.only, list(WAYS), parser), _names(args.steps, list(STEPS), parser)
    counts = [int(count) for count in args.counts.split(",")]
    parts, plans = args.parts or list(TASKS), args.plans.split(",")
    _names(",".join(parts), (*TASKS, *SMALL), parser)
    every = not (args.rows or args.ablation or args.ladder)
    if names := [part for part in parts if part in TASKS]:
        if args.rows or every:
            rows(names, ways)
        if args.ablation or every:
            ablation(names, left)
        if args.ladder or every:
            ladder(names, counts)
    if "failing" in parts:
        small.rescaled(plans, args.epochs)
    if "zoo" in parts:
        small.zoo([plan for plan in plans if plan in LEVELS])
    if "observing" in parts:
        small.observing()


if __name__ == "__main__":
    main()
