// What the kernels share: how ExecuTorch calls them, how they check, how they address tensors.
//
// A kernel is a plain function whose parameters are those of its schema in operators.yaml; it returns an Error. Boxed
// turns it into what the registry wants and lets nothing through that has another type: a damaged program must not
// abort the process.
#ifndef NEUTRON_CORTEX_M_KERNEL_H
#define NEUTRON_CORTEX_M_KERNEL_H

#include <exception>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <executorch/runtime/core/event_tracer_hooks.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include "fixed_point.h"

// Return InvalidArgument unless the condition holds.
#define CORTEX_M_REQUIRE(condition) ET_CHECK_OR_RETURN_ERROR(condition, InvalidArgument, "Check failed: %s", #condition)

#define CORTEX_M_TRY(expression)    \
  do {                              \
    Error try_error = (expression); \
    if (try_error != Error::Ok)     \
      return try_error;             \
  } while (false)

namespace openneutron::cortex_m {

using executorch::aten::ArrayRef;
using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;
using OptionalTensor = std::optional<Tensor>;
using IntList = ArrayRef<int64_t>;

constexpr size_t kMaxRank = executorch::runtime::kTensorDimensionLimit;

// --- arguments ---

// How a value of the program becomes a parameter of type T; none if it cannot.
template <class T>
struct Argument {
  static std::optional<T> get(const EValue& value) {
    auto result = value.tryTo<T>();
    return result.ok() ? std::optional<T>(*result) : std::nullopt;
  }
};

template <>
struct Argument<double> {
  static std::optional<double> get(const EValue& value) {
    if (value.isInt())
      return static_cast<double>(value.toInt()); // a float that was written without a fraction
    return value.isDouble() ? std::optional<double>(value.toDouble()) : std::nullopt;
  }
};

template <>
struct Argument<OptionalTensor> {
  static std::optional<OptionalTensor> get(const EValue& value) {
    if (value.isNone())
      return OptionalTensor();
    return value.isTensor() ? std::optional<OptionalTensor>(OptionalTensor(value.toTensor())) : std::nullopt;
  }
};

template <class... Parameters, size_t... Index>
void call(const char* name, Error (*kernel)(Parameters...), KernelRuntimeContext& context, Span<EValue*> stack,
          std::index_sequence<Index...>) {
  executorch::runtime::internal::EventTracerProfileOpScope scope(context.internal_event_tracer(), name);
  Error error = Error::InvalidArgument;
  if (stack.size() >= sizeof...(Parameters)) {
    std::tuple<std::optional<Parameters>...> arguments(Argument<Parameters>::get(*stack[Index])...);
    try {
      if ((std::get<Index>(arguments).has_value() && ...))
        error = kernel(*std::get<Index>(arguments)...);
    } catch (const std::exception&) { // of all that a kernel does only a vector throws
      error = Error::MemoryAllocationFailed;
    }
  }
  if (error != Error::Ok) {
    ET_LOG(Error, "%s failed", name);
    context.fail(error);
    return;
  }
  executorch::runtime::internal::event_tracer_log_evalue(context.internal_event_tracer(),
                                                         *stack[sizeof...(Parameters) - 1]);
}

template <const char* name, class Kernel, Kernel kernel>
struct Boxed;

template <const char* name, class... Parameters, Error (*kernel)(Parameters...)>
struct Boxed<name, Error (*)(Parameters...), kernel> {
  static void run(KernelRuntimeContext& context, Span<EValue*> stack) {
    call(name, kernel, context, stack, std::index_sequence_for<Parameters...>());
  }
};

// --- checks ---

inline bool is_int32(int64_t x) {
  return x == static_cast<int32_t>(x);
}

// An exponent of a double that neither vanishes nor overflows.
inline bool is_exponent(int64_t x) {
  return x > -1000 && x < 960;
}

inline bool has_type(const Tensor& tensor, ScalarType type) {
  return tensor.scalar_type() == type && (tensor.numel() == 0 || tensor.const_data_ptr() != nullptr);
}

inline bool has_type(const OptionalTensor& tensor, ScalarType type) {
  return !tensor || has_type(*tensor, type);
}

inline bool has_data(const Tensor& tensor) {
  return tensor.numel() == 0 || tensor.const_data_ptr() != nullptr;
}

inline bool same_shape(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes();
}

// Give `out` this shape: it has it already unless the program's shapes are dynamic.
inline Error shape_output(const Tensor& out, ArrayRef<SizesType> sizes) {
  CORTEX_M_REQUIRE(static_cast<size_t>(out.dim()) == sizes.size());
  return executorch::runtime::resize_tensor(out, sizes);
}

// The reference's rule for a 4-D tensor; where both layouts are the same bytes it says yes.
inline bool is_channels_last(const Tensor& tensor) {
  if (tensor.dim() != 4)
    return false;
  if (tensor.size(1) == 1 || (tensor.size(2) == 1 && tensor.size(3) == 1))
    return true;
  return tensor.dim_order()[0] == 0 && tensor.dim_order()[1] == 2;
}

// --- addressing ---

// Sizes and, for up to three tensors, strides in elements, walked in the order of the dimensions.
template <size_t Tensors>
struct Walk {
  size_t rank = 0;
  int64_t sizes[kMaxRank] = {};
  int64_t strides[Tensors][kMaxRank] = {};

  // Call run(offsets, count, steps) for every innermost row.
  template <class Run>
  void rows(Run run) const {
    int64_t index[kMaxRank] = {}, offsets[Tensors] = {}, steps[Tensors] = {};
    for (size_t d = 0; d < rank; ++d) {
      if (sizes[d] == 0)
        return;
    }
    size_t inner = rank == 0 ? 0 : rank - 1;
    for (size_t t = 0; t < Tensors; ++t)
      steps[t] = rank == 0 ? 0 : strides[t][inner];
    while (true) {
      run(offsets, rank == 0 ? 1 : sizes[inner], steps);
      size_t d = inner;
      while (d-- > 0) {
        for (size_t t = 0; t < Tensors; ++t)
          offsets[t] += strides[t][d];
        if (++index[d] < sizes[d])
          break;
        for (size_t t = 0; t < Tensors; ++t)
          offsets[t] -= strides[t][d] * sizes[d];
        index[d] = 0;
      }
      if (d == static_cast<size_t>(-1))
        return;
    }
  }
};

// The strides of a tensor in a walk over `out`, to which it is broadcast.
inline void broadcast_strides(const Tensor& tensor, const Tensor& out, int64_t* strides) {
  for (ssize_t d = 0, skip = out.dim() - tensor.dim(); d < tensor.dim(); ++d) {
    if (tensor.size(d) != 1)
      strides[d + skip] = tensor.strides()[d];
  }
}

// A walk over `out` and the tensors that are broadcast to it; out's strides come first.
template <class... Inputs>
Walk<1 + sizeof...(Inputs)> walk_of(const Tensor& out, const Inputs&... inputs) {
  Walk<1 + sizeof...(Inputs)> walk;
  walk.rank = static_cast<size_t>(out.dim());
  for (size_t d = 0; d < walk.rank; ++d)
    walk.sizes[d] = out.size(d);
  size_t t = 0;
  broadcast_strides(out, out, walk.strides[t++]);
  (broadcast_strides(inputs, out, walk.strides[t++]), ...);
  return walk;
}

// The values of an int8 tensor in the order of its dimensions: its memory, or a copy where that has another order.
class Ordered {
 public:
  explicit Ordered(const Tensor& tensor) : data_(tensor.const_data_ptr<int8_t>()) {
    if (executorch::runtime::is_contiguous_dim_order(tensor.dim_order().data(), tensor.dim_order().size()))
      return;
    copy_.reserve(static_cast<size_t>(tensor.numel()));
    walk_of(tensor).rows([&](const int64_t* at, int64_t count, const int64_t* step) {
      for (int64_t i = 0; i < count; ++i)
        copy_.push_back(data_[at[0] + i * step[0]]);
    });
    data_ = copy_.data();
  }
  Ordered(const Ordered&) = delete;
  const int8_t* operator+(int64_t offset) const {
    return data_ + offset;
  }

 private:
  const int8_t* data_;
  std::vector<int8_t> copy_;
};

} // namespace openneutron::cortex_m

#endif
