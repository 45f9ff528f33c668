"""The C header of the microcode format, written from the Python layouts."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path

from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.docs import DOCS_FILE, docs_text

HEADER_FILE = "runtime/generated/neutron_microcode.h"
_ENUMS: tuple[tuple[type[IntEnum], str], ...] = (
    (mc.IslandOp, "OP"),
    (mc.Reduction, "REDUCE"),
    (mc.OperandForm, "OPERAND"),
    (mc.ResultForm, "RESULT"),
    (mc.RowsReduction, "ROWS"),
)


def struct_name(cls: type) -> str:
    """The C name of a layout."""
    return "Neutron" + cls.__name__ + ("Params" if cls in mc.PARAMS.values() else "")


def _struct(cls: type) -> Iterator[str]:
    name = struct_name(cls)
    doc = (cls.__doc__ or "").strip().splitlines()
    yield "/* " + doc[0].strip() + (" */" if len(doc) == 1 else "")
    yield from (" * " + line.strip() if line.strip() else " *" for line in doc[1:])
    if len(doc) > 1:
        yield " */"
    yield "typedef struct {"
    for field, word in mc.layout(cls):
        if isinstance(word, mc.Word):
            yield f"    {word.c_type} {field}{f'[{word.count}]' if word.count else ''};"
        else:
            yield f"    {struct_name(word)} {field};"
    yield f"}} {name};"
    yield f'static_assert(sizeof({name}) == {mc.format_of(cls).size}u, "layout of {name}");'
    yield ""


def _limit_names(cls: type) -> dict[str, int]:
    """The C names of the limits of a layout."""
    prefix = next((kernel.name for kernel, own in mc.PARAMS.items() if own is cls), cls.__name__.upper())
    return {f"NEUTRON_{prefix}_{limit.name}": limit.most for limit in mc.limits_of(cls)}


Check = tuple[int, int, tuple[int, ...]]
"""The least and the most that words of a record may be, each or their product, and which words, by number."""


def _places(cls: type, path: str = "", at: int = 0) -> Iterator[tuple[str, tuple[int, ...], mc.Range | None]]:
    """The path, the numbers and the range of each word of a record."""
    for field, word in mc.layout(cls):
        if isinstance(word, mc.Word):
            count, allowed = word.count or 1, mc.ranges_of(cls).get(field)
            assert allowed is None or (mc.word_bytes(word), at % 4) == (4, 0), f"{path}{field} is no word"
            yield path + field, tuple(at // 4 + i for i in range(count)), allowed
            at += mc.word_bytes(word) * count
        else:
            yield from _places(word, f"{path}{field}.", at)
            at += mc.format_of(word).size


def _limits(cls: type, path: str = "") -> Iterator[tuple[int, list[str]]]:
    """The limits on products, those of parts first: they bound the factors of the others."""
    for field, word in mc.layout(cls):
        if not isinstance(word, mc.Word):
            yield from _limits(word, f"{path}{field}.")
    yield from ((limit.most, [path + field for field in limit.fields]) for limit in mc.limits_of(cls))


def _checks(cls: type) -> tuple[list[Check], list[Check]]:
    """What single words of a record must be, all of one range together, and then products."""
    places = list(_places(cls))
    ranges: dict[mc.Range, tuple[int, ...]] = {}
    for _, words, allowed in places:
        if allowed is not None:
            ranges[allowed] = (*ranges.get(allowed, ()), *words)
    number = {path: words[0] for path, words, _ in places}
    products = [(0, most, tuple(number[path] for path in paths)) for most, paths in _limits(cls)]
    return [(int(r.low), int(r.high), words) for r, words in ranges.items()], products


def _range_tables() -> Iterator[str]:
    """The ranges that there are, and for each kernel which of its words are in which of them."""
    checks = {cls: _checks(cls) for cls in mc.PARAMS.values()}
    every = [check[:2] for pair in checks.values() for check in (*pair[0], *pair[1])]
    ranges = list(dict.fromkeys(every))
    yield "/* What words of records may be: the least, and how much more at most. */"
    yield from _list("NEUTRON_RANGES", [f"{{{low & 0xFFFFFFFF}u, {high - low}u}}" for low, high in ranges])
    yield "/* Per record, for `neutron_in_range`: how many words, which range, the words; 0 is the end. */"
    yield "#define NEUTRON_PRODUCT 0x80u /* with the range: the product of the words is in it */"
    for cls, (singles, products) in checks.items():
        rows = [(words, ranges.index((low, high))) for low, high, words in singles]
        rows += [(words, 0x80 | ranges.index((low, high))) for low, high, words in products]
        texts = [", ".join(map(str, bytes((len(words), number, *words)))) for words, number in rows]
        yield from _list(f"{struct_name(cls)}_RANGES", [*texts, "0"])


def _list(name: str, items: Sequence[str]) -> Iterator[str]:
    """A macro with items for an array, in lines that are not too long."""
    lines = textwrap.wrap(f"#define {name} " + ", ".join(items), 100, subsequent_indent="    ")
    yield from (line + " \\" for line in lines[:-1])
    yield from (lines[-1], "")


def _limit_defines(cls: type) -> Iterator[str]:
    for name, value in _limit_names(cls).items():
        yield f"#define {name} {value}u"


def _enum(name: str, prefix: str, members: Sequence[tuple[str, int]], doc: str) -> Iterator[str]:
    yield f"/* {doc} */"
    yield f"typedef enum {name} {{"
    for member, value in members:
        yield f"    {prefix}{member} = {value},"
    yield f"}} {name};"
    yield ""


def _targets() -> Iterator[str]:
    """The numbers of the chips, and which of them a runtime takes: one, or on a host all."""
    numbers = {name.upper(): number for number, name in mc.TARGET_NAMES.items()}
    yield from (f"#define NEUTRON_TARGET_{name} {number}u" for name, number in numbers.items())
    yield "#ifdef NEUTRON_TARGET /* firmware is built for one chip */"
    yield "#define NEUTRON_TAKES_TARGET(number) ((number) == NEUTRON_TARGET)"
    yield "#else"
    takes = " || \\\n     ".join(f"(number) == NEUTRON_TARGET_{name}" for name in numbers)
    yield f"#define NEUTRON_TAKES_TARGET(number) \\\n    ({takes})"
    yield "#endif"
    yield ""


def _constants() -> Iterator[str]:
    yield from (
        f"#define NEUTRON_MAGIC 0x{mc.MAGIC:08X}u",
        f"#define NEUTRON_FORMAT_VERSION {mc.FORMAT_VERSION}u",
        f"#define NEUTRON_MAX_RANK {mc.MAX_RANK}u",
        f"#define NEUTRON_MAX_PORTS {mc.MAX_PORTS}u",
        f"#define NEUTRON_MAX_DIM {mc.MAX_DIM}u",
        f"#define NEUTRON_MAX_STAGES {mc.MAX_STAGES}u",
        f"#define NEUTRON_LAST_TOGETHER {mc.LAST_TOGETHER}u",
        f"#define NEUTRON_ALIGNMENT {mc.ALIGNMENT}u",
        f"#define NEUTRON_CRC_OFFSET {mc.CRC_OFFSET}u",
        f"#define NEUTRON_KERNEL_KINDS {len(mc.Kernel)}u",
        f"#define NEUTRON_ISLAND_OPERANDS {mc.ISLAND_OPERANDS}u",
        f"#define NEUTRON_ISLAND_REGISTERS {mc.ISLAND_REGISTERS}u",
        f"#define NEUTRON_ISLAND_CODE {mc.ISLAND_CODE}u",
        f"#define NEUTRON_ISLAND_ELEMENTS {mc.ISLAND_ELEMENTS}u",
        "",
    )


def _macro(doc: str, name: str, rows: Iterable[str]) -> Iterator[str]:
    """A macro of an X(...) for each row."""
    lines = [f"#define {name}(X)", *(f"    X({row})" for row in rows)]
    yield f"/* {doc} */"
    yield from (line + " \\" for line in lines[:-1])
    yield from (lines[-1], "")


def header_text() -> str:
    """The whole header."""
    lines = [
        "/* Generated by `python -m openneutron.compiler.microcode --write`; do not edit. */",
        "#ifndef NEUTRON_MICROCODE_H",
        "#define NEUTRON_MICROCODE_H",
        "",
        "#include <assert.h>  /* static_assert, in C as in C++ */",
        "#include <stdint.h>",
        "",
    ]
    lines += _constants()
    lines += _targets()
    kinds = [(k.name, int(k)) for k in mc.Kernel]
    lines += ["#ifndef NEUTRON_KERNEL_SELECTION /* a kernel-selection file has its own, of what it names */"]
    lines += _enum("NeutronKernelKind", "NEUTRON_KERNEL_", kinds, "Positions in the kernel table.")
    lines[-1:] = ["#endif", ""]
    regions = [(r.name, int(r)) for r in mc.Region]
    lines += _enum("NeutronRegion", "NEUTRON_REGION_", regions, "Where a NeutronRef points.")
    lines += _enum("NeutronDType", "NEUTRON_DTYPE_", [(d.name, int(d)) for d in mc.DType], "Element types.")
    lines += _enum("NeutronForm", "NEUTRON_FORM_", [(f.name, int(f)) for f in mc.Form], "Forms of records.")
    for enum, prefix in _ENUMS:
        members = [(m.name, int(m)) for m in enum]
        doc = (enum.__doc__ or "").strip().splitlines()[0]
        lines += _enum(f"Neutron{enum.__name__}", f"NEUTRON_{prefix}_", members, doc)
    parts = (mc.Ref, mc.View, mc.Window, mc.Broadcast, mc.Step, mc.Move, mc.Operand, mc.Instruction)
    shared = (*parts, mc.Descriptor, mc.State, mc.Header, *mc.FORM_LAYOUTS)
    for cls in (*shared, *(mc.PARAMS[k] for k in mc.Kernel)):
        lines += _struct(cls)
        lines += _limit_defines(cls)
    lines += _range_tables()
    params = [(k, mc.PARAMS[k]) for k in mc.Kernel]
    kernels = (
        f"{k.name}, neutron_{k.name.lower()}, {struct_name(cls)}, {cls.form.name}" for k, cls in params
    )
    doc = "Per kernel: X(KIND, function, parameter struct, form)."
    lines += _macro(doc, "NEUTRON_FOR_EACH_KERNEL", kernels)
    addresses = (
        f"{k.name}, {struct_name(cls)}, {path}" for k, cls in params for path, _ in mc.addresses_of(cls)
    )
    doc = "Every NeutronRef in a record: X(KIND, parameter struct, member)."
    lines += _macro(doc, "NEUTRON_FOR_EACH_ADDRESS", addresses)
    lines += ["#endif", ""]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Write the header and the documentation page, or check that those in the tree are current."""
    files = {HEADER_FILE: header_text(), DOCS_FILE: docs_text()}
    return write_or_check(arguments, files, "python -m openneutron.compiler.microcode")


def defines_text(guard: str, rows: Sequence[str], command: str) -> str:
    """A generated header of these rows alone."""
    head = [f"/* Generated by `{command} --write`; do not edit. */", f"#ifndef {guard}", f"#define {guard}"]
    return "\n".join([*head, "", *rows, "", "#endif", ""])


def write_or_check(arguments: Sequence[str], files: Mapping[str, str], command: str) -> int:
    """Write generated files to the tree, or check that those in it are current."""
    parser = argparse.ArgumentParser(prog=command)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help=f"write {' and '.join(files)}")
    action.add_argument("--check", action="store_true", help="fail if a file differs from the definition")
    options = parser.parse_args(arguments)
    root = Path(__file__).resolve().parents[4]
    stale = 0
    for name, text in files.items():
        path = root / name
        if options.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{name} is out of date: run {command} --write", file=sys.stderr)
            stale = 1
    return stale
