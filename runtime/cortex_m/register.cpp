// Brings the kernels into ExecuTorch's registry when the library is loaded.
#include <cstring>

#include "operators.h"

namespace openneutron::cortex_m {

namespace {

using executorch::runtime::Kernel;

#define CORTEX_M_OPERATORS(X)        \
  X(quantize_per_tensor)             \
  X(dequantize_per_tensor)           \
  X(quantized_add)                   \
  X(quantized_mul)                   \
  X(quantized_div)                   \
  X(quantized_activation)            \
  X(minimum)                         \
  X(maximum)                         \
  X(quantized_linear)                \
  X(softmax)                         \
  X(transpose)                       \
  X(pad)                             \
  X(quantized_conv2d)                \
  X(quantized_conv2d_nhwc)           \
  X(quantized_depthwise_conv2d)      \
  X(quantized_depthwise_conv2d_nhwc) \
  X(quantized_transpose_conv2d)      \
  X(quantized_transpose_conv2d_nhwc) \
  X(quantized_avg_pool2d)            \
  X(quantized_avg_pool2d_nhwc)       \
  X(quantized_max_pool2d)            \
  X(quantized_max_pool2d_nhwc)       \
  X(quantized_batch_matmul)

#define CORTEX_M_NAME(op) constexpr char op##_name[] = "cortex_m::" #op ".out";
CORTEX_M_OPERATORS(CORTEX_M_NAME)

#define CORTEX_M_KERNEL(op) Kernel(op##_name, Boxed<op##_name, decltype(&op##_out), &op##_out>::run),
constexpr Kernel kKernels[] = {CORTEX_M_OPERATORS(CORTEX_M_KERNEL)};

bool is_registered(const char* name) {
  for (const Kernel& kernel : executorch::runtime::get_registered_kernels()) {
    if (std::strcmp(kernel.name_, name) == 0)
      return true;
  }
  return false;
}

// Registering a name twice aborts the process: where another library was first, its kernel stays.
Error register_absent() {
  for (const Kernel& kernel : kKernels) {
    if (is_registered(kernel.name_))
      continue;
    Error error = executorch::runtime::register_kernel(kernel);
    if (error != Error::Ok)
      return error;
  }
  return Error::Ok;
}

[[maybe_unused]] const Error registered = register_absent();

} // namespace

} // namespace openneutron::cortex_m
