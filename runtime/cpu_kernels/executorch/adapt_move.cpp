// Operators that move values: transposes, expansions, copies into another order of dimensions. (cat, slice, select,
// embedding and plain clones are copies of whole rows in the portable kernels too.)
#include "adapt.h"

#include <cstring>

namespace torch::executor {
using Order = ::executorch::aten::OptionalArrayRef<int64_t>;
} // namespace torch::executor

PORTABLE(permute_copy_out, const Tensor&, ArrayRef<int64_t>, Tensor&)
PORTABLE(transpose_copy_int_out, const Tensor&, int64_t, int64_t, Tensor&)
PORTABLE(expand_copy_out, const Tensor&, ArrayRef<int64_t>, bool, Tensor&)
PORTABLE(_to_dim_order_copy_out, const Tensor&, bool, Order, Tensor&)
PORTABLE(_clone_dim_order_out, const Tensor&, bool, Order, Tensor&)

namespace openneutron::native {
namespace {

using Order = ::executorch::aten::OptionalArrayRef<int64_t>;

bool movable(const Tensor& in, const Tensor& out) {
  const auto bytes = in.element_size();
  return in.scalar_type() == out.scalar_type() && in.dim() <= CPU_RANK && out.dim() <= CPU_RANK &&
         (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8);
}

void gather(const CpuWalk& walk, const Tensor& in, Tensor& out) {
  if (out.numel() > 0) {
    cpu_gather(&walk, in.const_data_ptr(), out.mutable_data_ptr(), static_cast<size_t>(in.element_size()));
  }
}

bool permute(const Tensor& in, ArrayRef<int64_t> dims, Tensor& out) {
  const auto rank = static_cast<size_t>(in.dim());
  if (!movable(in, out) || !is_plain(in) || !is_plain(out) || dims.size() != rank ||
      static_cast<size_t>(out.dim()) != rank) {
    return false;
  }
  uint32_t seen = 0;
  CpuWalk walk{};
  for (size_t i = 0; i < rank; ++i) {
    const int64_t d = dims[i] < 0 ? dims[i] + in.dim() : dims[i];
    if (d < 0 || d >= in.dim() || (seen >> d & 1) != 0 || out.size(static_cast<ssize_t>(i)) != in.size(d)) {
      return false;
    }
    seen |= 1u << d;
    cpu_walk_add(&walk, static_cast<size_t>(in.size(d)), static_cast<size_t>(in.strides()[static_cast<size_t>(d)]), 0);
  }
  gather(walk, in, out);
  return true;
}

// From one order of dimensions to another, in the order in which the output lies in memory.
bool reorder(const Tensor& in, bool non_blocking, const Order& order, Tensor& out) {
  if (non_blocking || !movable(in, out) || !same_sizes(in, out)) {
    return false;
  }
  const auto wanted = out.dim_order(), given = in.dim_order();
  if (order.has_value() && order->size() != wanted.size()) {
    return false;
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] != (order.has_value() ? (*order)[i] : given[i])) {
      return false;
    }
  }
  const auto known = [](const Tensor& tensor) {
    return is_plain(tensor) ||
           ::executorch::runtime::is_channels_last_dim_order(tensor.dim_order().data(), tensor.dim_order().size());
  };
  if (!known(in) || !known(out)) {
    return false;
  }
  CpuWalk walk{};
  for (const auto d : wanted) {
    cpu_walk_add(&walk, static_cast<size_t>(in.size(d)), static_cast<size_t>(in.strides()[d]), 0);
  }
  gather(walk, in, out);
  return true;
}

} // namespace

Tensor& permute_copy_out(Context& context, const Tensor& in, ArrayRef<int64_t> dims, Tensor& out) {
  return permute(in, dims, out) ? out : FALL_BACK(permute_copy_out)(context, in, dims, out);
}

Tensor& transpose_copy_int_out(Context& context, const Tensor& in, int64_t dim0, int64_t dim1, Tensor& out) {
  int64_t dims[CPU_RANK];
  const int64_t rank = in.dim();
  const int64_t first = dim0 < 0 ? dim0 + rank : dim0, second = dim1 < 0 ? dim1 + rank : dim1;
  bool taken = rank <= CPU_RANK && first >= 0 && first < rank && second >= 0 && second < rank;
  if (taken) {
    for (int64_t d = 0; d < rank; ++d) {
      dims[d] = d == first ? second : d == second ? first : d;
    }
    taken = permute(in, {dims, static_cast<size_t>(rank)}, out);
  }
  return taken ? out : FALL_BACK(transpose_copy_int_out)(context, in, dim0, dim1, out);
}

Tensor& expand_copy_out(Context& context, const Tensor& in, ArrayRef<int64_t> sizes, bool implicit, Tensor& out) {
  bool taken = !implicit && movable(in, out) && is_plain(in) && is_plain(out) &&
               static_cast<size_t>(out.dim()) == sizes.size() && in.dim() <= out.dim();
  CpuWalk walk{};
  for (ssize_t d = 0; taken && d < out.dim(); ++d) {
    const ssize_t own = d - (out.dim() - in.dim());
    const int64_t size = own < 0 ? 1 : in.size(own), wanted = sizes[static_cast<size_t>(d)];
    const int64_t to = out.size(d);
    taken = to > 0 && (size == to || size == 1) && (wanted == to || (wanted == -1 && own >= 0 && size == to));
    const size_t step = size == 1 ? 0 : static_cast<size_t>(in.strides()[static_cast<size_t>(own)]);
    cpu_walk_add(&walk, static_cast<size_t>(to), step, 0);
  }
  if (!taken) {
    return FALL_BACK(expand_copy_out)(context, in, sizes, implicit, out);
  }
  gather(walk, in, out);
  return out;
}

Tensor& _to_dim_order_copy_out(Context& context, const Tensor& in, bool non_blocking, Order order, Tensor& out) {
  return reorder(in, non_blocking, order, out)
             ? out
             : FALL_BACK(_to_dim_order_copy_out)(context, in, non_blocking, order, out);
}

Tensor& _clone_dim_order_out(Context& context, const Tensor& in, bool non_blocking, Order order, Tensor& out) {
  return reorder(in, non_blocking, order, out) ? out
                                               : FALL_BACK(_clone_dim_order_out)(context, in, non_blocking, order, out);
}

} // namespace openneutron::native
