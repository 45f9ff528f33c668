"""What a .pte does when it runs: its instructions in order, with the tensors they read and write."""

from __future__ import annotations

from dataclasses import dataclass

from openneutron.diagnostics import fail
from openneutron.package.pte import TensorSpec, read_tensor


@dataclass(frozen=True)
class ProgramTensor:
    """A tensor of a method; views of the same memory have the same `place`."""

    number: int
    place: tuple[int, ...]
    spec: TensorSpec
    constant: bool  # it lies in the file


@dataclass(frozen=True)
class ProgramStep:
    """One instruction: a call of an operator, or of the method's delegate of that number."""

    operator: str
    delegate: int | None
    inputs: tuple[ProgramTensor, ...]
    outputs: tuple[ProgramTensor, ...]


@dataclass(frozen=True)
class MethodSteps:
    """The instructions of one method; jumps are not followed, each instruction is there once."""

    inputs: tuple[ProgramTensor, ...]
    outputs: tuple[ProgramTensor, ...]
    steps: tuple[ProgramStep, ...]


def program_steps(data: bytes, input_args: dict[str, list[int]], where: str) -> dict[str, MethodSteps]:
    """The instructions of every method; `input_args` has how many arguments of each delegate are inputs."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    try:
        plans = deserialize_pte_binary(data).program.execution_plan
        return {p.name: _method(p, input_args[p.name]) for p in plans if p.name in input_args}
    except Exception as error:  # a damaged flatbuffer fails in as many ways as it has bytes
        problem = f"the instructions cannot be read ({type(error).__name__})"
        fail("ON512", where, problem, "Copy or compile it again.")


# ExecuTorch has no types here that mypy could follow.
def _method(plan, input_args) -> MethodSteps:  # type: ignore[no-untyped-def]
    def tensors(numbers) -> tuple[ProgramTensor, ...]:  # type: ignore[no-untyped-def]
        tensors = []
        for number in dict.fromkeys(numbers):
            value = plan.values[number]
            items = value.val.items if type(value.val).__name__ == "TensorList" else [number]
            for item in items:
                if (spec := read_tensor(plan.values[item])) is not None:
                    tensor = plan.values[item].val
                    tensors.append(
                        ProgramTensor(item, _place(item, tensor), spec, tensor.data_buffer_idx > 0)
                    )
        return tuple(tensors)

    steps = []
    for instruction in (i for chain in plan.chains for i in chain.instructions):
        call = instruction.instr_args
        kind = type(call).__name__
        if kind == "DelegateCall":
            count = input_args[call.delegate_index]
            ins, outs = tensors(call.args[:count]), tensors(call.args[count:])
            steps.append(ProgramStep(plan.delegates[call.delegate_index].id, call.delegate_index, ins, outs))
        elif kind == "KernelCall":
            op = plan.operators[call.op_index]
            outs = tensors(call.args[-1:])
            written = {t.number for t in outs}
            ins = tuple(t for t in tensors(call.args) if t.number not in written)
            name = f"{op.name}.{op.overload}" if op.overload else op.name
            steps.append(ProgramStep(name, None, ins, outs))
    return MethodSteps(tensors(plan.inputs), tensors(plan.outputs), tuple(steps))


def _place(number, tensor) -> tuple[int, ...]:  # type: ignore[no-untyped-def]
    """Memory and offset planned for a tensor; those of constants and of the caller are their own."""
    plan = tensor.allocation_info
    if plan is None or tensor.data_buffer_idx > 0:
        return (number,)
    return plan.memory_id, plan.memory_offset_low, plan.memory_offset_high
