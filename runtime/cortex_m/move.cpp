// transpose, pad: elements change places, not values.
#include "operators.h"

namespace openneutron::cortex_m {

namespace {

template <class T>
void copy(const Walk<2>& walk, const Tensor& input, int64_t input_start, const Tensor& out, int64_t out_start) {
  const T* in = static_cast<const T*>(input.const_data_ptr()) + input_start;
  T* to = static_cast<T*>(out.mutable_data_ptr()) + out_start;
  walk.rows([&](const int64_t* at, int64_t count, const int64_t* step) {
    for (int64_t i = 0; i < count; ++i)
      to[at[0] + i * step[0]] = in[at[1] + i * step[1]];
  });
}

Error copy_bytes(const Walk<2>& walk, const Tensor& input, int64_t input_start, const Tensor& out, int64_t out_start) {
  switch (input.element_size()) {
    case 1: copy<uint8_t>(walk, input, input_start, out, out_start); return Error::Ok;
    case 2: copy<uint16_t>(walk, input, input_start, out, out_start); return Error::Ok;
    case 4: copy<uint32_t>(walk, input, input_start, out, out_start); return Error::Ok;
    case 8: copy<uint64_t>(walk, input, input_start, out, out_start); return Error::Ok;
    default: CORTEX_M_REQUIRE(!"an element of 1, 2, 4 or 8 bytes");
  }
}

template <class T>
Error fill(const Tensor& out, int64_t value) {
  CORTEX_M_REQUIRE(static_cast<int64_t>(static_cast<T>(value)) == value);
  T* to = out.mutable_data_ptr<T>();
  for (ssize_t i = 0; i < out.numel(); ++i)
    to[i] = static_cast<T>(value);
  return Error::Ok;
}

Error fill(const Tensor& out, int64_t value) {
  switch (out.scalar_type()) {
    case ScalarType::Byte: return fill<uint8_t>(out, value);
    case ScalarType::Char: return fill<int8_t>(out, value);
    case ScalarType::Short: return fill<int16_t>(out, value);
    case ScalarType::Int: return fill<int32_t>(out, value);
    case ScalarType::Long: return fill<int64_t>(out, value);
    case ScalarType::Float:
      for (ssize_t i = 0; i < out.numel(); ++i)
        out.mutable_data_ptr<float>()[i] = static_cast<float>(value);
      return Error::Ok;
    default: CORTEX_M_REQUIRE(!"a type pad takes");
  }
}

} // namespace

Error transpose_out(Tensor input, IntList perm, Tensor out) {
  const int64_t rank = input.dim();
  CORTEX_M_REQUIRE(static_cast<int64_t>(perm.size()) == rank && has_data(input) && has_type(out, input.scalar_type()));
  Walk<2> walk;
  walk.rank = static_cast<size_t>(rank);
  SizesType sizes[kMaxRank] = {};
  uint32_t seen = 0;
  for (int64_t d = 0; d < rank; ++d) {
    CORTEX_M_REQUIRE(perm[d] >= -rank && perm[d] < rank);
    const int64_t from = perm[d] < 0 ? perm[d] + rank : perm[d];
    CORTEX_M_REQUIRE(!(seen >> from & 1u));
    seen |= 1u << from;
    sizes[d] = static_cast<SizesType>(input.size(from));
    walk.sizes[d] = input.size(from);
    walk.strides[1][d] = input.strides()[from];
  }
  CORTEX_M_TRY(shape_output(out, {sizes, static_cast<size_t>(rank)}));
  for (int64_t d = 0; d < rank; ++d)
    walk.strides[0][d] = out.strides()[d];
  return copy_bytes(walk, input, 0, out, 0);
}

Error pad_out(Tensor input, IntList pre_pad, IntList post_pad, int64_t pad_value, Tensor out) {
  const int64_t rank = input.dim();
  CORTEX_M_REQUIRE(rank >= 1 && rank <= 4 && pre_pad.size() == 4 && post_pad.size() == 4);
  CORTEX_M_REQUIRE(has_data(input) && has_type(out, input.scalar_type()));
  // Padding is given for four dimensions in the order of memory: N, H, W, C if the tensor is channels-last.
  static constexpr size_t kChannelsLast[4] = {0, 3, 1, 2};
  SizesType sizes[kMaxRank] = {};
  int64_t before[kMaxRank] = {};
  Walk<2> walk;
  walk.rank = static_cast<size_t>(rank);
  for (int64_t d = 0; d < rank; ++d) {
    const size_t i = is_channels_last(input) ? kChannelsLast[d] : static_cast<size_t>(4 - rank + d);
    CORTEX_M_REQUIRE(is_int32(pre_pad[i]) && is_int32(post_pad[i]));
    const int64_t size = input.size(d) + pre_pad[i] + post_pad[i];
    CORTEX_M_REQUIRE(size >= 0 && is_int32(size));
    sizes[d] = static_cast<SizesType>(size);
    before[d] = pre_pad[i];
  }
  CORTEX_M_TRY(shape_output(out, {sizes, static_cast<size_t>(rank)}));
  CORTEX_M_TRY(fill(out, pad_value));
  int64_t input_start = 0, out_start = 0;
  for (int64_t d = 0; d < rank; ++d) {
    // Negative padding cuts: the walk is over the part that both have.
    const int64_t first = before[d] > 0 ? before[d] : 0;
    const int64_t end = before[d] + input.size(d) < sizes[d] ? before[d] + input.size(d) : sizes[d];
    walk.sizes[d] = end > first ? end - first : 0;
    walk.strides[0][d] = out.strides()[d];
    walk.strides[1][d] = input.strides()[d];
    out_start += first * out.strides()[d];
    input_start += (first - before[d]) * input.strides()[d];
  }
  for (int64_t d = 0; d < rank; ++d) {
    if (walk.sizes[d] == 0)
      return Error::Ok;
  }
  return copy_bytes(walk, input, input_start, out, out_start);
}

} // namespace openneutron::cortex_m
