"""Several programs as one: each a method, so that they share memory, kernels and operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openneutron.diagnostics import fail
from openneutron.package.pte import check_program, inspect_program
from openneutron.package.seal import seal


def join_programs(programs: Mapping[str, bytes]) -> bytes:
    """One program with the methods of all: `forward` of a program `a` is `a`, another method `a_other`.

    ExecuTorch runs the methods of a program one after the other, in memory that is as large as the largest
    of them needs.
    """
    from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary, serialize_pte_binary
    from executorch.exir.schema import Buffer, DataLocation

    files = {}
    for name, data in programs.items():
        check_program(data, name)
        inspect_program(data)  # what is damaged is said here
        files[name] = deserialize_pte_binary(data)
    joined = PTEFile(next(iter(files.values())).program)
    whole = joined.program
    plans: list[Any] = []
    delegates: list[Any] = []
    # The first of each stands for tensors that have none.
    constants, initial = [Buffer(storage=b"")], [Buffer(storage=b"")]
    for name, file in files.items():
        if file.named_data is not None and file.named_data.pte_data:
            fail("ON514", name, "it has data by name, as ExecuTorch's own XNNPACK backend makes it",
                 "Compile the model for NeutronBackend and the CPU alone.")  # fmt: skip
        before = len(constants) - 1, len(initial) - 1, len(delegates)
        constants += file.program.constant_buffer[1:]
        initial += (file.mutable_data or [])[1:]
        delegates += file.program.backend_delegate_data
        for plan in file.program.execution_plan:
            plan.name = name if plan.name == "forward" else f"{name}_{plan.name}"
            for value in plan.values:
                tensor = value.val
                if type(tensor).__name__ == "Tensor" and tensor.data_buffer_idx:
                    # A buffer that the program writes to starts from its value; the others are read in place.
                    tensor.data_buffer_idx += before[1] if tensor.allocation_info is not None else before[0]
            for delegate in plan.delegates:
                delegate.processed.location = DataLocation.INLINE
                delegate.processed.index += before[2]
            plans.append(plan)
    names = [plan.name for plan in plans]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        fail("ON514", ", ".join(twice), "two methods would have this name", "Give the programs other names.")
    whole.execution_plan, whole.backend_delegate_data, whole.segments = plans, delegates, []
    whole.constant_buffer, joined.mutable_data = constants, initial if len(initial) > 1 else None
    return seal(bytes(serialize_pte_binary(joined, extract_delegate_segments=True)))
