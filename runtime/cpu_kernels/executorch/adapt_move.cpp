// Operators that move values: transposes, expansions, copies into another order of dimensions, parts of a tensor, and what is
// put together from rows. (Plain clones and embeddings are copies of whole rows in the portable kernels too.)
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
PORTABLE(slice_copy_Tensor_out, const Tensor&, int64_t, std::optional<int64_t>, std::optional<int64_t>, int64_t,
         Tensor&)
PORTABLE(select_copy_int_out, const Tensor&, int64_t, int64_t, Tensor&)
PORTABLE(flip_out, const Tensor&, ArrayRef<int64_t>, Tensor&)
PORTABLE(cat_out, ArrayRef<Tensor>, int64_t, Tensor&)

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
    cpu_walk_add(&walk, static_cast<size_t>(in.size(d)), static_cast<size_t>(in.strides()[static_cast<size_t>(d)]), 0,
                 0);
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
    cpu_walk_add(&walk, static_cast<size_t>(in.size(d)), static_cast<size_t>(in.strides()[d]), 0, 0);
  }
  gather(walk, in, out);
  return true;
}

bool are_plain(const Tensor& in, const Tensor& out) {
  return movable(in, out) && is_plain(in) && is_plain(out);
}

// The number of elements from dimension `from` to before `to`.
size_t elements(const Tensor& tensor, int64_t from, int64_t to) {
  size_t count = 1;
  for (int64_t d = from; d < to; ++d) {
    count *= static_cast<size_t>(tensor.size(d));
  }
  return count;
}

// `count` of a dimension's indexes, every `step`-th from `first` on.
void take(const Tensor& in, int64_t dim, int64_t first, size_t count, size_t step, Tensor& out) {
  const size_t size = static_cast<size_t>(in.size(dim)), inner = elements(in, dim + 1, in.dim());
  const auto bytes = static_cast<size_t>(in.element_size());
  CpuWalk walk{};
  cpu_walk_add(&walk, elements(in, 0, dim), size * inner, 0, 0);
  cpu_walk_add(&walk, count, step * inner, 0, 0);
  cpu_walk_add(&walk, inner, 1, 0, 0);
  if (out.numel() > 0) {
    const char* from = static_cast<const char*>(in.const_data_ptr()) + static_cast<size_t>(first) * inner * bytes;
    cpu_gather(&walk, from, out.mutable_data_ptr(), bytes);
  }
}

bool slice(const Tensor& in, int64_t dim, const std::optional<int64_t>& start, const std::optional<int64_t>& end,
           int64_t step, Tensor& out) {
  const int64_t rank = in.dim();
  if (!are_plain(in, out) || rank == 0 || out.dim() != rank || dim < -rank || dim >= rank || step < 1) {
    return false;
  }
  dim += dim < 0 ? rank : 0;
  const int64_t size = in.size(dim);
  const auto place = [size](int64_t given) {
    given += given < 0 ? size : 0;
    return given < 0 ? 0 : given > size ? size : given;
  };
  const int64_t first = place(start.value_or(0)), last = place(end.value_or(size));
  const int64_t count = first < last ? (last - 1 - first) / step + 1 : 0;
  for (int64_t d = 0; d < rank; ++d) {
    if (out.size(d) != (d == dim ? count : in.size(d))) {
      return false;
    }
  }
  take(in, dim, first, static_cast<size_t>(count), static_cast<size_t>(count > 1 ? step : 1), out);
  return true;
}

bool select(const Tensor& in, int64_t dim, int64_t index, Tensor& out) {
  const int64_t rank = in.dim();
  if (!are_plain(in, out) || rank == 0 || out.dim() != rank - 1 || dim < -rank || dim >= rank || in.numel() == 0) {
    return false;
  }
  dim += dim < 0 ? rank : 0;
  index += index < 0 ? in.size(dim) : 0;
  if (index < 0 || index >= in.size(dim)) {
    return false;
  }
  for (int64_t d = 0; d < rank - 1; ++d) {
    if (out.size(d) != in.size(d < dim ? d : d + 1)) {
      return false;
    }
  }
  take(in, dim, index, 1, 1, out);
  return true;
}

bool flip(const Tensor& in, ArrayRef<int64_t> dims, Tensor& out) {
  const int64_t rank = in.dim();
  if (!are_plain(in, out) || !same_sizes(in, out) || rank == 0) {
    return false;
  }
  uint32_t flipped = 0;
  for (const int64_t given : dims) {
    const int64_t d = given < 0 ? given + rank : given;
    if (d < 0 || d >= rank || (flipped >> d & 1) != 0) {
      return false;
    }
    flipped |= 1u << d;
  }
  CpuWalk walk{};
  size_t first = 0;
  for (int64_t d = 0; d < rank; ++d) {
    const auto size = static_cast<size_t>(in.size(d)), step = elements(in, d + 1, rank);
    const bool backwards = (flipped >> d & 1) != 0;
    first += backwards && size > 0 ? (size - 1) * step : 0;
    cpu_walk_add(&walk, size, backwards ? 0 - step : step, 0, 0);
  }
  if (out.numel() > 0) {
    const auto bytes = static_cast<size_t>(in.element_size());
    cpu_gather(&walk, static_cast<const char*>(in.const_data_ptr()) + first * bytes, out.mutable_data_ptr(), bytes);
  }
  return true;
}

bool concatenate(ArrayRef<Tensor> tensors, int64_t dim, Tensor& out) {
  const int64_t rank = out.dim();
  dim += dim < 0 ? rank : 0;
  if (tensors.empty() || dim < 0 || dim >= rank) {
    return false;
  }
  int64_t total = 0;
  for (const Tensor& in : tensors) {
    if (!are_plain(in, out) || in.dim() != rank) {
      return false;
    }
    for (int64_t d = 0; d < rank; ++d) {
      if (d != dim && in.size(d) != out.size(d)) {
        return false;
      }
    }
    total += in.size(dim);
  }
  if (total != out.size(dim) || out.numel() == 0) {
    return false;
  }
  const size_t rows = elements(out, 0, dim);
  const size_t each = elements(out, dim + 1, rank) * static_cast<size_t>(out.element_size());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  for (const Tensor& in : tensors) {
    const size_t bytes = static_cast<size_t>(in.size(dim)) * each;
    if (bytes > 0) {
      cpu_copy_rows(in.const_data_ptr(), to, rows, bytes, bytes, static_cast<size_t>(total) * each);
    }
    to += bytes;
  }
  return true;
}

} // namespace

Tensor& slice_copy_Tensor_out(Context& context, const Tensor& in, int64_t dim, std::optional<int64_t> start,
                              std::optional<int64_t> end, int64_t step, Tensor& out) {
  return slice(in, dim, start, end, step, out)
             ? out
             : FALL_BACK(slice_copy_Tensor_out)(context, in, dim, start, end, step, out);
}

Tensor& select_copy_int_out(Context& context, const Tensor& in, int64_t dim, int64_t index, Tensor& out) {
  return select(in, dim, index, out) ? out : FALL_BACK(select_copy_int_out)(context, in, dim, index, out);
}

Tensor& flip_out(Context& context, const Tensor& in, ArrayRef<int64_t> dims, Tensor& out) {
  return flip(in, dims, out) ? out : FALL_BACK(flip_out)(context, in, dims, out);
}

Tensor& cat_out(Context& context, ArrayRef<Tensor> tensors, int64_t dim, Tensor& out) {
  return concatenate(tensors, dim, out) ? out : FALL_BACK(cat_out)(context, tensors, dim, out);
}

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
    cpu_walk_add(&walk, static_cast<size_t>(to), step, 0, 0);
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
