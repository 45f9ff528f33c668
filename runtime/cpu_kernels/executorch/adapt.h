// What the adapters share: which calls of ExecuTorch's operators the loops of cpu_kernels.h take.
//
// An adapter has the portable kernel's name and arguments, in the namespace openneutron. It looks at types, sizes and the
// order of dimensions; for anything it is not made for, errors too, it calls the portable kernel.
#pragma once

#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>

#include "cpu_kernels.h"

// Declare the portable kernel of that name, and the Cortex-M dialect's.
#define DECLARE(space, name, ...)                                                  \
  namespace space::native {                                                        \
  Tensor& name(::executorch::runtime::KernelRuntimeContext& context, __VA_ARGS__); \
  }
#define PORTABLE(name, ...) DECLARE(torch::executor, name, __VA_ARGS__)
#define CORTEX_M(name, ...) DECLARE(cortex_m, name, __VA_ARGS__)

// CMSIS-NN and the Cortex-M dialect have vectors where a core has them.
#if defined(__ARM_FEATURE_MVE)
#define VECTORS 1
#else
#define VECTORS 0
#endif

// A core with an FPU for double precision computes in it as fast as our integers do.
#if defined(__arm__) && defined(__ARM_FP) && (__ARM_FP & 8)
#define DOUBLES 1
#else
#define DOUBLES 0
#endif

#if defined(CPU_KERNELS_REFUSE) // who includes the kernels calls the portable one
#include <tuple>
namespace openneutron {
extern thread_local bool refused;

template <class Function>
struct Refuse;
template <class... Arguments>
struct Refuse<::executorch::aten::Tensor& (*)(Arguments...)> {
  ::executorch::aten::Tensor& operator()(Arguments... arguments) const {
    refused = true;
    return std::get<sizeof...(Arguments) - 1>(std::tie(arguments...));
  }
};
template <class... Tensors, class... Arguments>
struct Refuse<std::tuple<Tensors...> (*)(Arguments...)> {
  std::tuple<Tensors...> operator()(Arguments... arguments) const {
    refused = true;
    return last(std::tie(arguments...), std::make_index_sequence<sizeof...(Tensors)>());
  }
  template <class All, size_t... I>
  static std::tuple<Tensors...> last(All all, std::index_sequence<I...>) {
    return {std::get<sizeof...(Arguments) - sizeof...(I) + I>(all)...};
  }
};
} // namespace openneutron
#define FALL_BACK_IN(space, name) ::openneutron::Refuse<decltype(&::space::native::name)>()
#elif defined(CPU_KERNELS_COUNT)
extern "C" unsigned cpu_kernels_portable_calls; // of the tests: how often an adapter did not take a call
#define FALL_BACK_IN(space, name) (++cpu_kernels_portable_calls, ::space::native::name)
#else
#define FALL_BACK_IN(space, name) ::space::native::name
#endif
#define FALL_BACK(name) FALL_BACK_IN(torch::executor, name)
#define FALL_BACK_CORTEX_M(name) FALL_BACK_IN(cortex_m, name)

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

inline bool is_plain(const Tensor& tensor) {
  return ::executorch::runtime::is_contiguous_dim_order(tensor.dim_order().data(), tensor.dim_order().size());
}

template <typename... Tensors>
bool are_floats(const Tensors&... tensors) {
  return ((tensors.scalar_type() == ScalarType::Float) && ...);
}

template <typename... Tensors>
bool are_plain_floats(const Tensors&... tensors) {
  return ((tensors.scalar_type() == ScalarType::Float && is_plain(tensors)) && ...);
}

inline const float* floats(const Tensor& tensor) {
  return static_cast<const float*>(tensor.const_data_ptr());
}

inline float* floats_of(Tensor& tensor) {
  return static_cast<float*>(tensor.mutable_data_ptr());
}

inline size_t count_of(const Tensor& tensor) {
  return static_cast<size_t>(tensor.numel());
}

// A number as a float; false for a boolean, and for what a float has no place for, which the portable kernels may refuse.
inline bool number(const Scalar& scalar, float* value) {
  if (scalar.isFloatingPoint()) {
    const double given = scalar.to<double>();
    *value = static_cast<float>(given);
    return !(*value - *value != 0.0f) || given - given != 0.0;
  }
  if (scalar.isIntegral(/*includeBool=*/false)) {
    *value = static_cast<float>(scalar.to<int64_t>());
    return true;
  }
  return false;
}

} // namespace openneutron::native

namespace torch::executor {
using ::executorch::aten::ArrayRef;
using ::executorch::aten::Scalar;
using ::executorch::aten::ScalarType;
using ::executorch::aten::Tensor;
} // namespace torch::executor

namespace cortex_m {
using ::executorch::aten::ScalarType;
using ::executorch::aten::Tensor;
} // namespace cortex_m
