"""A .pte in words, whoever made it: methods, delegates, CPU operators, what a board would say."""

from __future__ import annotations

from openneutron.board.limits import MODELRUNNER, find_problems
from openneutron.package.payload import CHANNELS_LAST, Payload
from openneutron.package.pte import Delegate, MethodInfo, ProgramInfo, TensorSpec, tensor_bytes
from openneutron.run.program_steps import MethodSteps, ProgramTensor, program_steps

UNKNOWN_CALLS = (
    "NXP's microcode is not public: which kernels it calls, in which order and for how long cannot be known. "
    "--litert FILE.tflite, the graph it was made of, gives an estimate."
)
UNKNOWN_PAYLOAD = (
    "The payload is in a form this version does not know: its sizes, formats and kernels cannot be known."
)


def describe_program(data: bytes, info: ProgramInfo, where: str) -> list[str]:
    """Lines for a reader; indented by what they belong to."""
    arguments = {name: [_input_args(d) for d in m.delegates] for name, m in info.methods.items()}
    steps = program_steps(data, arguments, where)
    sealed = "with OpenNeutron's seal" if info.sealed else "without a seal: another flow wrote it"
    lines = [f"{info.bytes:,} bytes, {sealed}"]
    for name, method in info.methods.items():
        lines += _method(info, method, steps[name])
    return lines


def unknown_parts(info: ProgramInfo) -> list[str]:
    """A sentence for everything of a program that cannot be known."""
    unknown = []
    for delegate in info.delegates:
        payload = delegate.known_payload()
        if not delegate.is_neutron:
            unknown.append(f"What the backend {delegate.backend} does: its format is its own.")
        elif payload is None:
            unknown.append(UNKNOWN_PAYLOAD)
        elif not payload.is_open:
            unknown.append(UNKNOWN_CALLS)
    return list(dict.fromkeys(unknown))


def _input_args(delegate: Delegate) -> int:
    payload = delegate.known_payload()
    return 0 if payload is None else payload.input_args


def _method(info: ProgramInfo, method: MethodInfo, steps: MethodSteps) -> list[str]:
    given, returned = (", ".join(map(_spec, specs)) for specs in (method.inputs, method.outputs))
    lines = [f"method {method.name}: {given or 'nothing'} -> {returned or 'nothing'}",
             f"  planned memory: {method.planned_bytes:,} bytes"]  # fmt: skip
    calls = {step.delegate: step for step in steps.steps if step.delegate is not None}
    for number, delegate in enumerate(method.delegates):
        call = calls.get(number)
        ins, outs = (call.inputs, call.outputs) if call is not None else ((), ())
        lines += [f"  {line}" for line in _delegate(number, delegate, ins, outs)]
    if not method.delegates:
        lines.append("  no delegate: the CPU computes everything")
    for op in sorted(set(method.operators)):
        has_kernel = op in MODELRUNNER.operators or op.startswith("executorch_prim::")
        lines.append(f"  CPU operator {op}{'' if has_kernel else ': not in ' + MODELRUNNER.name}")
    problems = find_problems(info, method, MODELRUNNER)
    lines += [f"  not for {MODELRUNNER.name}: {p.problem}" for p in problems]
    if not problems:
        lines.append(f"  fits {MODELRUNNER.name}")
    return lines


def _spec(spec: TensorSpec | None) -> str:
    if spec is None:
        return "a number"
    last = tuple(range(len(spec.shape)))
    return f"{spec}{'' if spec.dim_order == last else f' in the order {list(spec.dim_order)}'}"


def _delegate(
    number: int, delegate: Delegate, inputs: tuple[ProgramTensor, ...], outputs: tuple[ProgramTensor, ...]
) -> list[str]:
    title = f"delegate {number}: {delegate.backend}, {len(delegate.raw):,} bytes"
    payload = delegate.known_payload()
    if payload is None:
        why = UNKNOWN_PAYLOAD if delegate.is_neutron else "Its format is the backend's own."
        return [title, f"  {why}"]
    words, stamp = payload.words, payload.stamp
    parts = ((payload.microcode, "microcode"), (payload.weights, "weights"), (payload.kernels, "kernels"))
    lines = [
        f"{title}, made by {stamp.converter}, runs on {stamp.runs_on}",
        "  " + ", ".join(f"{name} {len(part):,}" for part, name in parts)
        + f"; scratch {words.scratch_bytes:,}, prefetched {words.prefetch_bytes:,}"
        + (f"; profile {words.profile_bytes:,}, debug {words.debug_bytes:,}" if words.profile_bytes else ""),
    ]  # fmt: skip
    lines += [f"  {line}" for line in _ports(payload, inputs, outputs)]
    return lines if payload.is_open else [*lines, f"  {UNKNOWN_CALLS}"]


def _ports(
    payload: Payload, inputs: tuple[ProgramTensor, ...], outputs: tuple[ProgramTensor, ...]
) -> list[str]:
    lines = []
    # The arguments of a call are its inputs and then its outputs; an output's number counts from the first.
    for kind, ports, tensors in (("input", payload.inputs, inputs), ("output", payload.outputs, outputs)):
        for number, port in enumerate(ports):
            is_planned = port.argument < len(tensors)
            what = _spec(tensors[port.argument].spec) if is_planned else f"argument {port.argument}"
            way = "transposed to channels last" if kind == "input" else "transposed from channels last"
            form = f"{way} by the runtime" if port.format == CHANNELS_LAST else "as it lies in memory"
            lines.append(
                f"{kind} {number}: {what}, {form}{_padding(tensors[port.argument]) if is_planned else ''}"
            )
    return lines


def _padding(tensor: ProgramTensor) -> str:
    """Buffers begin at multiples of 16 bytes: what is left behind a tensor."""
    rest = -tensor_bytes(tensor.spec) % 16
    return f", {rest} bytes short of the next 16" if rest else ""
