// The memory of a method's inputs, outputs and tensors, and what is printed when there is not enough of it.
#pragma once

#include <cstring>

#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>

#include "pools.h"
#include "semihosting.h"

namespace firmware {

using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Method;
using executorch::runtime::MethodMeta;
using executorch::runtime::Span;

constexpr size_t kMostBuffers = 16;

inline void number(const char* text, uint64_t value) {
  semihosting_text(text);
  semihosting_number(value);
}

inline bool failed(const char* what, const char* why) {
  semihosting_text("error ");
  semihosting_text(what);
  semihosting_text(": ");
  semihosting_text(why);
  semihosting_text("\n");
  return false;
}

inline bool failed(const char* what, Error error) {
  semihosting_text("error ");
  semihosting_text(what);
  number(": ExecuTorch's error ", static_cast<uint64_t>(error));
  semihosting_text("\n");
  return false;
}

inline bool too_small(const FirmwarePool& pool, size_t needed) {
  semihosting_text("error pool ");
  semihosting_text(pool.name);
  number(" is too small: ", needed);
  semihosting_text(" bytes or more are needed\n");
  return false;
}

inline size_t padded(size_t bytes) {
  return (bytes + 15u) & ~static_cast<size_t>(15u);
}

// Inputs and outputs that the program planned no memory for lie here, one after the other.
class Ports {
 public:
  void* take(size_t bytes) {
    const size_t from = at_;
    at_ += padded(bytes);
    peak_ = at_ > peak_ ? at_ : peak_;
    if (at_ > firmware_io_pool.bytes) {
      too_small(firmware_io_pool, at_);
      return nullptr;
    }
    return firmware_io_pool.data + from;
  }
  void reset() {
    at_ = 0;
  }
  size_t peak() const {
    return peak_;
  }

 private:
  size_t at_ = 0, peak_ = 0;
};

inline Ports ports;

// The memory behind a tensor of the method; one without gets some.
inline void* memory_of(const Tensor& tensor) {
  if (tensor.const_data_ptr() == nullptr && tensor.nbytes() != 0) {
    void* memory = ports.take(tensor.nbytes());
    if (memory == nullptr ||
        executorch::runtime::internal::set_tensor_data(tensor, memory, tensor.nbytes()) != Error::Ok) {
      return nullptr;
    }
  }
  return tensor.mutable_data_ptr();
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" // get_inputs would want an array of unknown length
inline EValue& input_of(Method& method, size_t index) {
  return method.mutable_input(index);
}
#pragma GCC diagnostic pop

inline bool has_memory(const EValue& value) {
  return !value.isTensor() || value.toTensor().nbytes() == 0 || memory_of(value.toTensor()) != nullptr;
}

inline bool place_all(Method& method) {
  bool good = true;
  for (size_t i = 0; good && i < method.inputs_size(); ++i) {
    good = has_memory(input_of(method, i));
  }
  for (size_t i = 0; good && i < method.outputs_size(); ++i) {
    good = has_memory(method.get_output(i));
  }
  return good;
}

// What is no tensor is a number of eight bytes.
inline int64_t number_of(const EValue& value) {
  int64_t raw = value.isInt() ? value.toInt() : value.isBool() ? static_cast<int64_t>(value.toBool()) : 0;
  if (value.isDouble()) {
    const double real = value.toDouble();
    std::memcpy(&raw, &real, sizeof(raw));
  }
  return raw;
}

inline void set_number(EValue& value, int64_t raw) {
  double real;
  std::memcpy(&real, &raw, sizeof(real));
  if (value.isInt()) {
    value = EValue(raw);
  } else if (value.isDouble()) {
    value = EValue(real);
  } else if (value.isBool()) {
    value = EValue(raw != 0);
  }
}

inline bool plan(const MethodMeta& meta, Span<uint8_t>* spans, size_t* count, size_t* most) {
  *count = meta.num_memory_planned_buffers();
  if (*count > kMostBuffers) {
    return failed(meta.name(), "it has more memory-planned buffers than this firmware knows");
  }
  size_t at = 0;
  for (size_t i = *count; i-- > 0;) { // the last first: what methods share, in one place for all of them
    const size_t bytes = static_cast<size_t>(meta.memory_planned_buffer_size(i).get());
    spans[i] = {firmware_planned_pool.data + at, bytes};
    at += i != 0 ? padded(bytes) : bytes;
  }
  *most = at > *most ? at : *most;
  if (at > firmware_planned_pool.bytes) {
    return too_small(firmware_planned_pool, at);
  }
  return true;
}

} // namespace firmware
