"""The kernel-selection file: C source with a kernel table that names only the kernels a program needs.

Compiled into the application it replaces the runtime's weak table of all kernels, and the linker drops the
rest. Deterministic: converter, target, kernels and the format version decide every byte, so that a file that
is read back can be compared with what it should be, line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from openneutron.compiler.microcode.format import FORMAT_VERSION, Kernel
from openneutron.diagnostics import fail
from openneutron.targets.table import DEFAULT_TARGET

SUFFIX = "_kernel_selection.c"
_FIELD = re.compile(r" \* (converter|target): ([\w.+-][\w .+-]*?)\s*$")
_ENTRY = re.compile(r"\s*\[NEUTRON_KERNEL_(\w+)\] = \w+,")
_AGAIN = "Write it again: openneutron compile MODEL --dump_kernel_selection_code."


@dataclass(frozen=True)
class KernelSelection:
    """Which kernels an application needs, and the versions they must come from."""

    converter: str  # with its version, as in "openneutron 0.1.0"
    target: str
    kernels: frozenset[Kernel]

    def code(self) -> str:
        """The C file."""
        names = [(kernel.name, int(kernel)) for kernel in sorted(self.kernels)]
        kinds = "\n".join(f"    NEUTRON_KERNEL_{name} = {number}," for name, number in names)
        entries = "\n".join(f"    [NEUTRON_KERNEL_{name}] = neutron_{name.lower()}," for name, _ in names)
        return f"""\
/* The kernels an application of OpenNeutron's firmware needs. Generated; do not edit.
 *
 * converter: {self.converter}
 * target: {self.target}
 * microcode format: {FORMAT_VERSION}
 *
 * Link this file with the runtime library: its table takes the place of the library's weak one, and with
 * --gc-sections kernels that are not named here are left out of the image. An application has one such file;
 * `openneutron merge-kernels` makes one of several. */
#define NEUTRON_KERNEL_SELECTION /* the header leaves NeutronKernelKind to this file */
#include "neutron.h"

#if NEUTRON_FORMAT_VERSION != {FORMAT_VERSION} || NEUTRON_KERNEL_KINDS != {len(Kernel)}
#error "this selection is for microcode format {FORMAT_VERSION}, {len(Kernel)} kernels; the runtime differs"
#endif

typedef enum NeutronKernelKind {{
{kinds}
}} NeutronKernelKind;

#define neutronKernels const neutronKernels /* the table stays in flash */
int32_t (*neutronKernels[NEUTRON_KERNEL_KINDS])(const struct NeutronMachine *machine,
                                                const void *parameters) = {{
{entries}
}};
"""


def kernel_selection_code(kernels: Iterable[Kernel], converter: str, target: str = DEFAULT_TARGET) -> str:
    """C source that links these kernels only."""
    return KernelSelection(converter, target, frozenset(kernels)).code()


def merge_selections(named: Sequence[tuple[str, KernelSelection]]) -> KernelSelection:
    """All kernels of these selections, each with the name of its file; versions and targets must agree."""
    first_name, first = named[0]
    for name, selection in named[1:]:
        for what in ("converter", "target"):
            ours, theirs = getattr(first, what), getattr(selection, what)
            if ours != theirs:
                fail(
                    "ON423",
                    "kernel selections",
                    f"{first_name} is for {what} {ours}, {name} for {what} {theirs}",
                    "Compile all models of an application with one version, for one target.",
                )
    return KernelSelection(
        first.converter, first.target, frozenset().union(*(selection.kernels for _, selection in named))
    )


def read_selection(text: str, where: str) -> KernelSelection:
    """The selection a file holds, as far as it can be read; `check_unedited` tells whether it is whole."""
    lines = text.splitlines()
    fields = {match[1]: match[2] for match in map(_FIELD.match, lines[:8]) if match}
    if set(fields) != {"converter", "target"}:
        shown = lines[0].strip()[:60] if lines else ""
        fail(
            "ON422",
            f"{where}:1",
            f"not a kernel-selection file of OpenNeutron (the line is '{shown}')",
            "Files of NXP's converter go with NXP's firmware and are merged by NXP's own tool.",
        )
    kernels = set()
    for number, line in enumerate(lines, 1):
        if match := _ENTRY.match(line):
            if match[1] not in Kernel.__members__:
                fail("ON422", f"{where}:{number}", f"this version knows no kernel {match[1]}", _AGAIN)
            kernels.add(Kernel[match[1]])
    return KernelSelection(fields["converter"], fields["target"], frozenset(kernels))


def check_unedited(text: str, selection: KernelSelection, where: str) -> None:
    """Refuse a file that is not, line by line, what this version writes for the selection in it."""
    pairs = zip_longest(text.splitlines(), selection.code().splitlines())
    for number, (line, wanted) in enumerate(pairs, 1):
        if line is None or wanted is None or line.rstrip() != wanted.rstrip():
            difference = "the file ends here" if line is None else f"'{line.strip()}'"
            expected = "nothing more" if wanted is None else f"'{wanted.strip()}'"
            fail(
                "ON422",
                f"{where}:{number}",
                f"edited by hand, or written by another version: {difference}, expected {expected}",
                _AGAIN,
            )
