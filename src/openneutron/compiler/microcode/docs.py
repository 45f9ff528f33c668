"""The documentation page of the microcode format, written from the Python layouts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import IntEnum

from openneutron.compiler.microcode import format as mc

DOCS_FILE = "docs/microcode.md"

_INTRODUCTION = """\
# The microcode format

Written by `python -m openneutron.compiler.microcode --write` from the Python definition; do not edit.

A microcode is what the open converter makes of a LiteRT graph and what OpenNeutron's firmware runs, on the
host and on a microcontroller. It is not for NXP's runtime, which refuses its magic. All words are little
endian:

    Header | Descriptor x (inputs + outputs) | State x states | Call, Call, ... | zeros to a multiple of 16

A call is one word, `kernel | size << 16` (the size in bytes, this word included), and the parameters of that
kernel. The stages of a CASCADE and the body of a LOOP are the calls behind it, and are counted like all
others. `openneutron disasm FILE.pte` prints a microcode as text.
"""

_ENUMS: tuple[tuple[str, type[IntEnum]], ...] = (
    ("Instructions of an island", mc.IslandOp),
    ("Its reductions", mc.Reduction),
    ("Its operands' forms", mc.OperandForm),
    ("Its result's forms", mc.ResultForm),
    ("Reductions of rows", mc.RowsReduction),
)


def _table(cls: type) -> Iterator[str]:
    yield "| offset | field | type |"
    yield "|---:|---|---|"
    at = 0
    for name, word in mc.layout(cls):
        if isinstance(word, mc.Word):
            one = mc.word_bytes(word)
            count = f"[{word.count}]" if word.count else ""
            yield f"| {at} | {name} | {word.c_type}{count} |"
            at += one * (word.count or 1)
        else:
            yield f"| {at} | {name} | [{word.__name__}](#{word.__name__.lower()}) |"
            at += mc.format_of(word).size
    if (tail := mc.tail_of(cls)) is not None:
        name, item = tail
        yield f"| {at} | {name} | any number of [{item.__name__}](#{item.__name__.lower()}) |"
    yield ""


def _section(title: str, cls: type) -> Iterator[str]:
    yield f"### {title}"
    yield ""
    yield inspect.cleandoc(cls.__doc__ or "")
    yield ""
    yield from _table(cls)


def docs_text() -> str:
    """The whole page."""
    lines = [_INTRODUCTION, f"Format version {mc.FORMAT_VERSION}, magic `0x{mc.MAGIC:08X}`.", ""]
    lines += ["## Parts", ""]
    for cls in (
        mc.Header,
        mc.Descriptor,
        mc.State,
        mc.Ref,
        mc.View,
        mc.Window,
        mc.Broadcast,
        mc.Step,
        mc.Operand,
        mc.Instruction,
    ):
        lines += _section(cls.__name__, cls)
    lines += ["Regions: " + ", ".join(f"{r.name} {int(r)}" for r in mc.Region) + "."]
    lines += ["Element types: " + ", ".join(f"{d.name} {int(d)}" for d in mc.DType) + ".", ""]
    for title, enum in _ENUMS:
        lines += [f"{title}: " + ", ".join(f"{m.name} {int(m)}" for m in enum) + ".", ""]
    lines += ["## Kernels", ""]
    for kernel in mc.Kernel:
        record = mc.PARAMS[kernel]
        section = list(_section(f"{int(kernel)} {kernel.name}", record))
        if record.form is not mc.Form.WHOLE:
            section.insert(-1, f"Form: {record.form.name}.")
            section.insert(-2, "")
        lines += section
    return "\n".join(lines).rstrip() + "\n"
