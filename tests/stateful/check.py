"""Random networks that remember: the program is what LiteRT's reference computes, bit for bit, step by step.

It is also compared with the quantized PyTorch model, from which it may differ by rounding. A few networks
run with the tests; many are a command, which prints every one that fails with its seed:

    python -m tests.stateful.check --count 200 --steps 1000
    python -m tests.stateful.check --count 10 --steps 200 --qemu    # on both emulated cores, as on the host
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from openneutron.accuracy import verify
from openneutron.firmware.build import build_firmware
from openneutron.firmware.cores import CORES
from openneutron.firmware.emulator import run_firmware_sequence
from openneutron.firmware.program import read_firmware_program
from openneutron.fx import op_name
from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model, quantize_model
from openneutron.quantize.sequences import outputs_over
from openneutron.run.native import NativeModel
from openneutron.run.program import load_program
from tests.programs import assert_same, reference_of
from tests.stateful.networks import frames, random_network

BOTH = (CompileOptions(optimise="performance"), CompileOptions(optimise="size"))


@dataclass
class Found:
    """What came out for one network."""

    steps: int = 0
    equal: int = 0  # steps whose outputs are the quantized PyTorch model's, bit for bit
    states: int = 0  # in the delegate


def check_network(module: torch.nn.Module, steps: int, threads: tuple[int, ...] = (1, 2)) -> Found:
    """Quantize, compile in both memory modes, run on one and on two threads, and compare."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    sequences = [frames(32, seed) for seed in range(5)]
    given = frames(steps, 99)
    found = Found(steps)
    quantized = quantize_model(module, sequences, accuracy="fast")
    wanted = [[x.numpy() for x in step] for step in outputs_over(quantized, given)]
    first: list[list[np.ndarray]] | None = None
    for options in BOTH:
        compiled = compile_model(quantized, given[0], options=options)
        conversions = [n for n in compiled.edge.graph.nodes if "quantize" in op_name(n)]
        assert len(conversions) == 2, f"{conversions}: only the input and the output are converted"
        assert len(compiled.partitions) == 1
        found.states = len(compiled.states)
        reference = reference_of(compiled)
        expected = [reference.outputs(frame) for frame in given]
        for count in threads:
            program = load_program(compiled.pte, threads=count)
            actual = [program.run(frame) for frame in given]
            for got, want in zip(actual, expected, strict=True):
                assert_same(got, want)
        if first is None:
            first = actual
            program.reset()
            again = load_program(compiled.pte)  # another instance, run in turns with the first
            for frame, want in zip(given[:20], expected, strict=False):
                assert_same(program.run(frame), want)
                assert_same(again.run(frame), want)
        for got, want in zip(actual, first, strict=True):
            assert_same(got, want)
        if options is BOTH[0]:
            verify._compare(program, {"forward": quantized}, [("forward", frame) for frame in given[:100]])
    assert first is not None
    found.equal = sum(all(map(np.array_equal, got, want)) for got, want in zip(first, wanted, strict=True))
    after = module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items()), (
        "the caller's module changed"
    )
    return found


def check_on_cores(module: torch.nn.Module, steps: int) -> Found:
    """Compile, and compare sequences on both emulated cores with the host's."""
    sequences = [frames(32, seed) for seed in range(5)]
    found = Found()
    for options in BOTH:
        compiled = compile_model(
            module, sequences[0][0], calibration=sequences, options=options, accuracy="fast"
        )
        program = read_firmware_program(compiled.pte)
        (delegate,), rng = program.delegates, np.random.default_rng(0)
        ((shape, dtype),) = delegate.inputs
        given = [[[rng.integers(-128, 128, shape).astype(dtype)]] for _ in range(steps)]
        host = NativeModel(delegate.microcode, delegate.weights)
        expected = [host.run(frame[0]) for frame in given]
        for core in CORES.values():
            with tempfile.TemporaryDirectory() as folder:
                outputs = run_firmware_sequence(build_firmware(program, Path(folder), core=core), given)
            for got, want in zip(outputs, expected, strict=True):
                assert_same(got[0], want)
            found.steps += steps
        found.states = len(compiled.states)
    found.equal = found.steps
    return found


def main() -> int:
    """Check many networks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--qemu", action="store_true")
    options = parser.parse_args()
    check = check_on_cores if options.qemu else check_network
    warnings.simplefilter("ignore")
    failed, equal, steps, states, start = [], 0, 0, 0, time.process_time()
    for seed in range(options.first, options.first + options.count):
        try:
            found = check(random_network(seed), options.steps)
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
            traceback.print_exc(limit=-1)
            continue
        equal, steps, states = equal + found.equal, steps + found.steps, states + found.states
    print(f"{options.count} networks, {len(failed)} failed {failed}; {states} states in delegates")
    seconds = time.process_time() - start
    other = "the host" if options.qemu else "the quantized PyTorch model"
    print(f"{steps} steps, {equal} as {other} bit for bit; {seconds:.0f} s of CPU time")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
