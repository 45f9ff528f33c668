// What the adapters share: which calls of ExecuTorch's operators the loops of cpu_kernels.h take.
//
// An adapter has the portable kernel's name and arguments, in the namespace openneutron. It looks at types, sizes and the
// order of dimensions; for anything it is not made for, errors too, it calls the portable kernel.
#pragma once

#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>

#include "cpu_kernels.h"

// Declares the portable kernel of that name.
#define PORTABLE(name, ...)                                                        \
  namespace torch::executor::native {                                              \
  Tensor& name(::executorch::runtime::KernelRuntimeContext& context, __VA_ARGS__); \
  }

#ifdef CPU_KERNELS_COUNT
extern "C" unsigned cpu_kernels_portable_calls; // of the tests: how often an adapter did not take a call
#define FALL_BACK(name) (++cpu_kernels_portable_calls, torch::executor::native::name)
#else
#define FALL_BACK(name) torch::executor::native::name
#endif

namespace openneutron::native {

using ::executorch::aten::ArrayRef;
using ::executorch::aten::Scalar;
using ::executorch::aten::ScalarType;
using ::executorch::aten::Tensor;
using Context = ::executorch::runtime::KernelRuntimeContext;

inline bool same_sizes(const Tensor& a, const Tensor& b) {
  if (a.dim() != b.dim()) {
    return false;
  }
  for (ssize_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) != b.size(i)) {
      return false;
    }
  }
  return true;
}

} // namespace openneutron::native
