"""What a board's firmware can take, and whether a program fits, said before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass

from openneutron.board.frames import DTYPES, Hello, result_bytes
from openneutron.compiler.microcode.format import FORMAT_VERSION
from openneutron.diagnostics import fail
from openneutron.package.pte import MethodInfo, ProgramInfo, numpy_dtype, tensor_bytes

KIB = 1024
_ATEN = """
add addmm _softmax constant_pad_nd convolution max_pool2d_with_indices avg_pool2d permute_copy sub
mul div relu sigmoid tanh leaky_relu gelu native_layer_norm _native_batch_norm_legit view_copy
squeeze_copy.dim_ unsqueeze_copy transpose_copy.int_ cat stack split_copy.Tensor_ slice_copy.Tensor_
select_copy.int_ expand_copy clone _to_copy mean sum.IntList_ amax amin argmax clamp embedding
arange.start_ scalar_tensor
""".split()  # noqa: SIM905
_QUANTIZED = ("quantize_per_tensor", "dequantize_per_tensor", "dequantize_per_channel")
# The list of the modelrunner's documentation, as a program names the operators.
MODELRUNNER_OPERATORS = frozenset(
    [f"aten::{name}out" if "." in name else f"aten::{name}.out" for name in _ATEN]
    + [f"quantized_decomposed::{name}.out" for name in _QUANTIZED]
    + ["dim_order_ops::_clone_dim_order.out"]
)
_PRIM = "executorch_prim::"  # views and numbers: part of ExecuTorch's library itself


@dataclass(frozen=True)
class BoardFirmware:
    """A firmware that takes programs over a line; sizes are in bytes."""

    name: str
    ours: bool
    program_bytes: int
    memory_bytes: int  # planned memory, with the method's own where they share a pool
    temporary_bytes: int
    input_bytes: int
    result_bytes: int
    operators: frozenset[str]
    instructions_per_microsecond: int = 0  # of an emulator: its times are counted instructions
    core: str = ""  # of ours: the processor it is built for


MODELRUNNER = BoardFirmware(
    name="NXP's executorch_modelrunner",
    ours=False,
    program_bytes=384 * KIB,
    memory_bytes=1216 * KIB,
    temporary_bytes=96 * KIB,
    input_bytes=256 * KIB,
    result_bytes=260 * KIB,
    operators=MODELRUNNER_OPERATORS,
)


def own_firmware(hello: Hello, operators: list[str]) -> BoardFirmware:
    """OpenNeutron's firmware, as it describes itself."""
    return BoardFirmware(
        name=f"OpenNeutron's firmware ({hello.core})",
        ours=True,
        program_bytes=hello.program_bytes,
        memory_bytes=hello.planned_bytes,
        temporary_bytes=hello.temporary_bytes,
        input_bytes=hello.planned_bytes + hello.io_bytes,
        result_bytes=0xFFFFFFFF,
        operators=frozenset(operators),
        instructions_per_microsecond=hello.instructions_per_microsecond,
        core=hello.core,
    )


@dataclass(frozen=True)
class Problem:
    """Why a program does not run on a firmware, and what to do about it."""

    problem: str
    hint: str


def find_problems(info: ProgramInfo, method: MethodInfo, firmware: BoardFirmware) -> list[Problem]:
    """All that keeps a method from running there."""
    return [*_converter(method, firmware), *_sizes(info, method, firmware), *_ports(method, firmware),
            *_operators(method, firmware)]  # fmt: skip


def check_fits_board(info: ProgramInfo, method: MethodInfo, firmware: BoardFirmware, where: str) -> None:
    """Refuse a program that cannot run on a firmware."""
    if problems := find_problems(info, method, firmware):
        sentences, hints = (p.problem for p in problems), (p.hint for p in problems)
        fail("ON725", where, f"does not run on {firmware.name}: {'; '.join(sentences)}",
             " ".join(dict.fromkeys(hints)))  # fmt: skip


def check_microcode(hello: Hello, where: str) -> None:
    """Refuse firmware that runs another format than this version compiles."""
    if hello.microcode != FORMAT_VERSION:
        fail("ON725", where, f"its firmware runs microcode format {hello.microcode}; this openneutron writes "
             f"{FORMAT_VERSION}", "Build it again: openneutron firmware --serve.")  # fmt: skip


def temporary_need(method: MethodInfo) -> int:
    """What the delegate with the most takes from the temporary allocator."""
    payloads = [(d, d.known_payload()) for d in method.delegates]
    return max((d.temporary_bytes + p.words.prefetch_bytes for d, p in payloads if p is not None), default=0)


def result_need(method: MethodInfo) -> int:
    """The size of a RESULT of the method."""
    return result_bytes([(0 if s is None else len(s.shape), tensor_bytes(s)) for s in method.outputs])


def _converter(method: MethodInfo, firmware: BoardFirmware) -> list[Problem]:
    others = sorted({d.backend for d in method.delegates if not d.is_neutron})
    if others:
        return [Problem(f"there is no backend {', '.join(others)}", "Compile it for NeutronBackend.")]
    payloads = [d.known_payload() for d in method.delegates]
    if None in payloads:
        return [Problem("a payload is in a form this version does not know", "Is it made by a newer SDK?")]
    own = [payload is not None and payload.is_open for payload in payloads]
    if any(own) and not firmware.ours:
        return [Problem("its microcode is the open converter's, which NXP's NPU does not run",
                        "Compile with --converter eiq for NXP's firmware, or flash OpenNeutron's: "
                        "openneutron firmware --serve.")]  # fmt: skip
    if own and not all(own) and firmware.ours:
        return [Problem("its microcode is NXP's, which OpenNeutron's firmware does not run",
                        "Compile with --converter open.")]  # fmt: skip
    return []


def _sizes(info: ProgramInfo, method: MethodInfo, firmware: BoardFirmware) -> list[Problem]:
    planned, inputs = method.planned_bytes, max((tensor_bytes(s) for s in method.inputs), default=0)
    smaller = "Use a smaller model or input"
    rows = (
        ("the program has", info.bytes, firmware.program_bytes, f"{smaller}, or --weight_sharing off."),
        ("it plans", planned, firmware.memory_bytes, "Compile with --optimise size, or a smaller --sram."),
        ("its delegates take", temporary_need(method), firmware.temporary_bytes,
         "Compile with --optimise size, or a smaller --sram."),
        ("an input has", inputs, firmware.input_bytes, "Compile with -r: int8 inputs have a quarter."),
        ("its result has", result_need(method), firmware.result_bytes,
         "Compile with -r (int8 outputs), or return fewer outputs."),
    )  # fmt: skip
    own = "" if firmware.ours else " OpenNeutron's firmware (openneutron firmware --serve) takes more."
    return [
        Problem(f"{what} {have:,} bytes, and it takes {room:,}", hint + own)
        for what, have, room, hint in rows
        if have > room
    ]


def _ports(method: MethodInfo, firmware: BoardFirmware) -> list[Problem]:
    problems = []
    if len(method.inputs) != 1 and not firmware.ours:
        problems.append(Problem(f"it takes one input, not {len(method.inputs)}",
                             "Give the model one input that is split inside, or use OpenNeutron's firmware: "
                             "openneutron firmware --serve."))  # fmt: skip
    for kind, specs in (("input", method.inputs), ("output", method.outputs)):
        for i, spec in enumerate(specs):
            if spec is None and not firmware.ours:
                problems.append(
                    Problem(f"{kind} {i} is a number, not a tensor", "Make it a tensor of one element.")
                )
            elif spec is not None and (numpy_dtype(spec) is None or spec.dtype not in DTYPES.values()):
                problems.append(
                    Problem(f"{kind} {i} has the type {spec.dtype}", "Convert it inside the model.")
                )
    return problems


def _operators(method: MethodInfo, firmware: BoardFirmware) -> list[Problem]:
    missing = sorted(
        op for op in set(method.operators) - firmware.operators if not op.startswith(_PRIM) or firmware.ours
    )
    if not missing:
        return []
    hint = "Compile so that the NPU computes them"
    if all("quantize" in op for op in missing):
        hint = "Compile with -r, without quantize and dequantize steps"
    if any(op.startswith("cortex_m::") for op in missing):
        hint = "Compile with --recipe neutron, whose CPU operators are ExecuTorch's portable ones"
    own = "; or build firmware that has them: openneutron firmware --serve FILE.pte."
    return [Problem(f"it has no kernel for {', '.join(missing)}", hint + own)]
