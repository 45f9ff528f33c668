"""The kernel-selection file: C source with a kernel table that names only the kernels a program needs.

Compiled into the application it replaces the runtime's weak table of all kernels, and the linker drops the
rest. Deterministic: the kernels and the format version decide every byte.
"""

from __future__ import annotations

from collections.abc import Iterable

from openneutron.compiler.microcode import FORMAT_VERSION, Kernel


def kernel_selection_code(kernels: Iterable[Kernel], converter: str) -> str:
    """C source that links these kernels only."""
    names = [kernel.name for kernel in sorted(set(kernels))]
    entries = "\n".join(f"    [NEUTRON_KERNEL_{name}] = neutron_{name.lower()}," for name in names)
    return f"""\
/* Kernels for OpenNeutron's firmware, selected by {converter}, microcode format {FORMAT_VERSION}. Generated.
 * Link this file with the runtime library: kernels that are not named here are left out of the image. */
#include "neutron.h"

#if NEUTRON_FORMAT_VERSION != {FORMAT_VERSION}
#error "this kernel selection is for microcode format {FORMAT_VERSION}; the runtime has another"
#endif

int32_t (*const neutronKernels[NEUTRON_KERNEL_KINDS])(const struct NeutronMachine *machine,
                                                      const void *parameters) = {{
{entries}
}};
"""
