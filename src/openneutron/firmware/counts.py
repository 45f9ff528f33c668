"""Counted instructions beside the cost model's estimates, step by step."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openneutron.compiler.microcode.cost import costs_of
from openneutron.compiler.microcode.format import decode
from openneutron.estimate.cpu_cost import Operator, are_floats, cpu_cycles
from openneutron.files import COUNTS, write_atomically
from openneutron.firmware.whole import WholeFirmware, WholeProgram
from openneutron.firmware.whole_run import StepCount, WholeRun
from openneutron.run.program_steps import ProgramStep, program_steps
from openneutron.targets.table import find_target


@dataclass(frozen=True)
class CountedStep:
    """One instruction of a method: what it took on the emulated core, and what the model says of the chip."""

    count: StepCount
    estimated_cycles: int  # of the NPU for a delegate, of the Cortex-M33 for an operator

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        step = self.count
        return {
            "method": step.method,
            "instruction": step.number,
            "operator": step.operator,
            "instructions": step.instructions,
            "estimated_cycles": self.estimated_cycles,
            "kernels": dict(step.kernels),
            "border": step.border,
        }


def counted_steps(program: WholeProgram, run: WholeRun) -> list[CountedStep]:
    """The steps of a run with their estimates."""
    payloads = {name: [d.payload() for d in m.delegates] for name, m in program.info.methods.items()}
    arguments = {name: [p.input_args for p in parts] for name, parts in payloads.items()}
    steps = program_steps(program.data, arguments, program.name)
    target = find_target(program.target)

    def estimate(method: str, step: ProgramStep) -> int:
        if step.delegate is not None:
            calls = decode(payloads[method][step.delegate].microcode).calls
            return sum(cost.cycles for cost in costs_of(calls, target))
        shapes = tuple(tensor.spec.shape for tensor in step.inputs)
        is_float = are_floats(t.spec.dtype for t in (*step.inputs, *step.outputs[:1]))
        op = Operator(step.operator, shapes, step.outputs[0].spec.shape, is_float=is_float)
        return cpu_cycles(op, target)

    counted = []
    for count in run.steps:
        planned = steps[count.method].steps
        same = count.number < len(planned) and planned[count.number].outputs
        cycles = estimate(count.method, planned[count.number]) if same else 0
        counted.append(CountedStep(count, cycles))
    return counted


def write_counts(firmware: WholeFirmware, steps: list[CountedStep]) -> Path:
    """Write what every step of every method took into the firmware's folder."""
    digest = hashlib.sha256(firmware.program.data).hexdigest()
    data = {"core": firmware.core.name, "program": digest, "steps": [step.as_data() for step in steps]}
    path = firmware.folder / COUNTS
    write_atomically(path, (json.dumps(data, indent=1) + "\n").encode())
    return path
