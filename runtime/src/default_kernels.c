/* The table of all kernels. Weak, and alone in its file: a strong `neutronKernels` in the application replaces
 * it, this object is then not taken from the library, and neither are the kernels only it names. */
#include "neutron.h"

__attribute__((weak)) int32_t (*const neutronKernels[NEUTRON_KERNEL_KINDS])(const struct NeutronMachine *machine,
                                                                            const void *parameters) = {
#define ENTRY(kind, function, parameters_type, form) [NEUTRON_KERNEL_##kind] = function,
    NEUTRON_FOR_EACH_KERNEL(ENTRY)
#undef ENTRY
};
