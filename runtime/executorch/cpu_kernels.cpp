// The kernels of runtime/cpu_kernels for the ExecuTorch of this process: they take the place of those in its registry that
// compute the same bits and more slowly, which stay for the calls ours are not made for. ExecuTorch's optimized kernels, and
// those that call the C library, whose vectors have bits of their own, stay what they are.
#include <cstdlib>
#include <string_view>
#include <tuple>

#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>

#include "executorch/adapt.h"

namespace openneutron {
thread_local bool refused = false;

namespace native {
using Dims = std::optional<ArrayRef<int64_t>>;
using Ints = ArrayRef<int64_t>;
using Number = std::optional<int64_t>;
using Type = std::optional<ScalarType>;

Tensor& addmm_out(Context&, const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&, Tensor&);
Tensor& avg_pool2d_out(Context&, const Tensor&, Ints, Ints, Ints, bool, bool, Number, Tensor&);
Tensor& cat_out(Context&, ArrayRef<Tensor>, int64_t, Tensor&);
Tensor& clamp_out(Context&, const Tensor&, const std::optional<Scalar>&, const std::optional<Scalar>&, Tensor&);
Tensor& convolution_out(Context&, const Tensor&, const Tensor&, const std::optional<Tensor>&, Ints, Ints, Ints, bool,
                        Ints, int64_t, Tensor&);
Tensor& expand_copy_out(Context&, const Tensor&, Ints, bool, Tensor&);
Tensor& hardtanh_out(Context&, const Tensor&, const Scalar&, const Scalar&, Tensor&);
std::tuple<Tensor&, Tensor&> max_pool2d_with_indices_out(Context&, const Tensor&, Ints, Ints, Ints, Ints, bool, Tensor&,
                                                         Tensor&);
Tensor& maximum_out(Context&, const Tensor&, const Tensor&, Tensor&);
Tensor& mean_dim_out(Context&, const Tensor&, Dims, bool, Type, Tensor&);
Tensor& minimum_out(Context&, const Tensor&, const Tensor&, Tensor&);
Tensor& permute_copy_out(Context&, const Tensor&, Ints, Tensor&);
Tensor& select_copy_int_out(Context&, const Tensor&, int64_t, int64_t, Tensor&);
Tensor& slice_copy_Tensor_out(Context&, const Tensor&, int64_t, Number, Number, int64_t, Tensor&);
Tensor& transpose_copy_int_out(Context&, const Tensor&, int64_t, int64_t, Tensor&);
Tensor& where_out(Context&, const Tensor&, const Tensor&, const Tensor&, Tensor&);
#define COMPARISON(name)                                                      \
  Tensor& name##_tensor_out(Context&, const Tensor&, const Tensor&, Tensor&); \
  Tensor& name##_scalar_out(Context&, const Tensor&, const Scalar&, Tensor&);
COMPARISON(eq)
COMPARISON(ne)
COMPARISON(lt)
COMPARISON(le)
COMPARISON(gt)
COMPARISON(ge)
#undef COMPARISON
Tensor& _to_dim_order_copy_out(Context&, const Tensor&, bool, Dims, Tensor&);
Tensor& _clone_dim_order_out(Context&, const Tensor&, bool, Dims, Tensor&);
Tensor& quantize_per_tensor_out(Context&, const Tensor&, double, int64_t, int64_t, int64_t, ScalarType, Tensor&);
Tensor& quantize_per_channel_out(Context&, const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, int64_t,
                                 ScalarType, Tensor&);
Tensor& dequantize_per_tensor_out(Context&, const Tensor&, double, int64_t, int64_t, int64_t, ScalarType, Type,
                                  Tensor&);
Tensor& dequantize_per_channel_out(Context&, const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t,
                                   int64_t, int64_t, ScalarType, Type, Tensor&);
} // namespace native

namespace {

using executorch::runtime::EValue;
using executorch::runtime::Kernel;
using executorch::runtime::OpFunction;
using executorch::runtime::Span;
using native::Context;

template <class R, class... Arguments, size_t... I>
void unbox(R (*function)(Context&, Arguments...), Context& context, Span<EValue*> stack, std::index_sequence<I...>) {
  using namespace executorch::extension::kernel_util_internal;
  function(context, evalue_to_arg<typename decay_if_not_tensor<Arguments>::type>::call(*stack[I])...);
}

template <class R, class... Arguments>
void unbox(R (*function)(Context&, Arguments...), Context& context, Span<EValue*> stack) {
  unbox(function, context, stack, std::make_index_sequence<sizeof...(Arguments)>());
}

// Ours, then the one it replaces if ours does not take the call.
template <auto Function>
struct Replaced {
  static inline OpFunction before = nullptr;
  static inline const char* name = "";

  static void call(Context& context, Span<EValue*> stack) {
    using namespace executorch::runtime::internal;
    refused = false;
    {
      EventTracerProfileOpScope scope(context.internal_event_tracer(), name);
      unbox(Function, context, stack);
    }
    if (refused) {
      before(context, stack);
    } else {
      event_tracer_log_evalue(context.internal_event_tracer(), *stack[stack.size() - 1]); // what the call returns
    }
  }
};

template <auto Function>
int replace(const char* name) {
  using Mine = Replaced<Function>;
  int replaced = 0;
  for (const Kernel& kernel : executorch::runtime::get_registered_kernels()) {
    if (std::string_view(kernel.name_) == name && kernel.op_ != Mine::call && Mine::before == nullptr) {
      Mine::before = kernel.op_;
      Mine::name = kernel.name_;
      const_cast<Kernel&>(kernel).op_ = Mine::call; // the registry refuses a second kernel of a name
      ++replaced;
    }
  }
  return replaced;
}

} // namespace
} // namespace openneutron

// Puts ours in; programs that are loaded later call them. Returns how many; a second call finds nothing to do, and so does
// one in a process that asks for ExecuTorch's own.
extern "C" __attribute__((visibility("default"))) int neutron_use_cpu_kernels() {
  using namespace openneutron;
  using namespace openneutron::native;
  if (const char* own = std::getenv("OPENNEUTRON_PORTABLE_KERNELS"); own != nullptr && *own != 0) {
    return 0;
  }
#define NAME(name, overload) "aten::" #name "." #overload
#define COMPARISON(name) \
  (replace<name##_tensor_out>(NAME(name, Tensor_out)) + replace<name##_scalar_out>(NAME(name, Scalar_out)))
  return replace<addmm_out>("aten::addmm.out") + replace<avg_pool2d_out>("aten::avg_pool2d.out") +
         replace<cat_out>("aten::cat.out") + replace<clamp_out>("aten::clamp.out") +
         replace<convolution_out>("aten::convolution.out") + replace<expand_copy_out>("aten::expand_copy.out") +
         replace<hardtanh_out>("aten::hardtanh.out") +
         replace<max_pool2d_with_indices_out>("aten::max_pool2d_with_indices.out") +
         replace<maximum_out>("aten::maximum.out") + replace<mean_dim_out>("aten::mean.out") +
         replace<minimum_out>("aten::minimum.out") + replace<permute_copy_out>("aten::permute_copy.out") +
         replace<select_copy_int_out>("aten::select_copy.int_out") +
         replace<slice_copy_Tensor_out>("aten::slice_copy.Tensor_out") +
         replace<transpose_copy_int_out>("aten::transpose_copy.int_out") + replace<where_out>("aten::where.self_out") +
         COMPARISON(eq) + COMPARISON(ne) + COMPARISON(lt) + COMPARISON(le) + COMPARISON(gt) + COMPARISON(ge) +
         replace<_to_dim_order_copy_out>("dim_order_ops::_to_dim_order_copy.out") +
         replace<_clone_dim_order_out>("dim_order_ops::_clone_dim_order.out") +
         replace<quantize_per_tensor_out>("quantized_decomposed::quantize_per_tensor.out") +
         replace<quantize_per_channel_out>("quantized_decomposed::quantize_per_channel.out") +
         replace<dequantize_per_tensor_out>("quantized_decomposed::dequantize_per_tensor.out") +
         replace<dequantize_per_channel_out>("quantized_decomposed::dequantize_per_channel.out");
}
