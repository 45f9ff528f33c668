// Calls the portable kernel and the one of cpu_kernels with the same arguments and compares what they write, bit for bit;
// only a NaN may be another NaN. Built for a host (a file as argument, results on stdout) and for a Cortex-M under QEMU.
//
// The registrations of both are ExecuTorch's generated ones; those of cpu_kernels are compiled with
// -Dregister_kernels=register_ours and end up here instead of in ExecuTorch's registry.
//
// calls.bin: for each call its bytes (u32), then the name's length (u8) and the name, the number of arguments (u8) and
// these. An argument: 'n' none, 'i' int64, 'd' double, 'b' bool (u8), 'l' a list of int64 (u8 count), 'f' one of doubles, 's' a text (u8 count), 't' a tensor, 'o' one
// that is written, 'O' one in the memory of an argument before it (u8 index), 'T' a list of tensors (u8 count). A tensor:
// type (u8), rank (u8), sizes (i32), order of dimensions (u8 each), padding to 8 bytes from the start of the call, data
// (none for 'o' and 'O'). All little endian.
// A line for each call: "<index> <equal|different|failed> <portable instructions> <ours> <fell back>".
#include <cinttypes>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>

#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>
#include <executorch/runtime/core/memory_allocator.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/runtime.h>

#ifdef __arm__
#include "board.h"
#include "semihosting.h"
#else
// What a kernel checks with ET_CHECK ends the call, not the program.
static std::jmp_buf stopped;
extern "C" void et_pal_abort() {
  std::longjmp(stopped, 1);
}
#endif

extern "C" {
unsigned cpu_kernels_portable_calls = 0;
}

namespace executorch::runtime {
namespace {
const Kernel* ours[16];
size_t our_counts[16], our_lists = 0;
} // namespace
Error register_ours(const Span<const Kernel> kernels) {
  ours[our_lists] = kernels.data();
  our_counts[our_lists++] = kernels.size();
  return Error::Ok;
}
} // namespace executorch::runtime

namespace {

using namespace executorch::runtime;
using executorch::aten::ArrayRef;
using executorch::aten::DimOrderType;
using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::StridesType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;

constexpr size_t kArena = 1 << 21, kGuard = 64, kTemporary = 1 << 16;
constexpr uint8_t kAnything = 0xA5;
#ifdef __arm__
#define PLACE __attribute__((section(".pools")))
#else
#define PLACE
#endif
PLACE alignas(16) uint8_t arena[kArena];
PLACE alignas(16) uint8_t request[kArena];
PLACE alignas(16) uint8_t temporary[kTemporary];
size_t used;

void* take(size_t bytes) {
  void* found = arena + used;
  used += (bytes + 15) / 16 * 16;
  return used <= kArena ? found : nullptr;
}

template <typename T>
T* take(size_t count) {
  return static_cast<T*>(take(sizeof(T) * (count + 1)));
}

struct Output {
  ScalarType type;
  size_t bytes;
  TensorImpl* impl[2];
  uint8_t* data[2];
};

struct Reader {
  const uint8_t* at;
  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
  }
};

// A tensor of the call; of one that is written there are two, with memory around them that must stay as it is.
void tensor(Reader& in, bool written, EValue* first, EValue* second, Output* output) {
  const auto type = static_cast<ScalarType>(in.get<uint8_t>());
  const size_t rank = in.get<uint8_t>();
  auto* sizes = take<SizesType>(rank);
  auto* order = take<DimOrderType>(rank);
  size_t count = 1;
  for (size_t i = 0; i < rank; ++i) {
    sizes[i] = in.get<int32_t>();
    count *= static_cast<size_t>(sizes[i]);
  }
  for (size_t i = 0; i < rank; ++i) {
    order[i] = in.get<uint8_t>();
  }
  in.at = request + (static_cast<size_t>(in.at - request) + 7) / 8 * 8;
  const size_t bytes = count * executorch::runtime::elementSize(type);
  uint8_t* data[2] = {const_cast<uint8_t*>(in.at), nullptr};
  if (written) {
    for (uint8_t*& place : data) {
      place = take<uint8_t>(bytes + 2 * kGuard);
      std::memset(place, kAnything, bytes + 2 * kGuard);
      place += kGuard;
    }
  } else {
    in.at += bytes;
    data[1] = data[0];
  }
  EValue* values[2] = {first, second};
  for (int i = 0; i < 2; ++i) {
    auto* own = take<SizesType>(rank);
    std::memcpy(own, sizes, rank * sizeof *own);
    auto* strides = take<StridesType>(rank);
    size_t step = 1;
    for (size_t d = rank; d-- > 0;) {
      strides[order[d]] = static_cast<StridesType>(step);
      step *= sizes[order[d]] > 0 ? static_cast<size_t>(sizes[order[d]]) : 1;
    }
    auto* impl = new (take<TensorImpl>(1)) TensorImpl(type, static_cast<ssize_t>(rank), own, data[i], order, strides);
    new (values[i]) EValue(Tensor(impl));
    if (output != nullptr) {
      output->impl[i] = impl;
      output->data[i] = data[i];
    }
  }
  if (output != nullptr) {
    output->type = type;
    output->bytes = bytes;
  }
}

template <typename T>
bool same_floats(const Output& out) {
  for (size_t i = 0; i < out.bytes; i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, out.data[0] + i, sizeof a);
    std::memcpy(&b, out.data[1] + i, sizeof b);
    if (std::memcmp(&a, &b, sizeof a) != 0 && (a == a || b == b)) {
      return false;
    }
  }
  return true;
}

bool same(const Output& out) {
  for (size_t i = 0; i < kGuard; ++i) {
    if (out.data[1][out.bytes + i] != kAnything || out.data[1][i - kGuard] != kAnything) {
      return false;
    }
  }
  for (ssize_t d = 0; d < out.impl[0]->dim(); ++d) {
    if (out.impl[0]->size(d) != out.impl[1]->size(d)) {
      return false;
    }
  }
  switch (out.type) {
    case ScalarType::Float: return same_floats<float>(out);
    case ScalarType::Double: return same_floats<double>(out);
    default: return std::memcmp(out.data[0], out.data[1], out.bytes) == 0;
  }
}

uint64_t now() {
#ifdef __arm__
  return board_ticks();
#else
  return 0;
#endif
}

struct Outcome {
  const char* what;
  uint64_t portable, ours;
  unsigned fell_back;
};

Outcome call() {
  Reader in{request};
  used = 0;
  const size_t length = in.get<uint8_t>();
  char name[256];
  std::memcpy(name, in.at, length);
  name[length] = 0;
  in.at += length;
  const size_t count = in.get<uint8_t>();
  EValue* values[2] = {take<EValue>(count), take<EValue>(count)};
  Output outputs[4];
  size_t written = 0;
  for (size_t i = 0; i < count; ++i) {
    EValue *first = &values[0][i], *second = &values[1][i];
    switch (in.get<uint8_t>()) {
      case 'n': new (first) EValue(); break;
      case 'i': new (first) EValue(in.get<int64_t>()); break;
      case 'd': new (first) EValue(in.get<double>()); break;
      case 'b': new (first) EValue(in.get<uint8_t>() != 0); break;
      case 'l': {
        const size_t n = in.get<uint8_t>();
        auto** wrapped = take<EValue*>(n);
        for (size_t k = 0; k < n; ++k) {
          wrapped[k] = new (take<EValue>(1)) EValue(in.get<int64_t>());
        }
        auto* list = new (take<BoxedEvalueList<int64_t>>(1))
            BoxedEvalueList<int64_t>(wrapped, take<int64_t>(n), static_cast<int>(n));
        new (first) EValue(list);
        break;
      }
      case 'f': {
        const size_t n = in.get<uint8_t>();
        auto* doubles = take<double>(n);
        for (size_t k = 0; k < n; ++k) {
          doubles[k] = in.get<double>();
        }
        new (first) EValue(new (take<ArrayRef<double>>(1)) ArrayRef<double>(doubles, n));
        break;
      }
      case 's': {
        const size_t n = in.get<uint8_t>();
        auto* text = new (take<ArrayRef<char>>(1)) ArrayRef<char>(reinterpret_cast<const char*>(in.at), n);
        in.at += n;
        new (first) EValue(text);
        break;
      }
      case 'T': {
        const size_t n = in.get<uint8_t>();
        auto** wrapped = take<EValue*>(n);
        for (size_t k = 0; k < n; ++k) {
          wrapped[k] = take<EValue>(1);
          tensor(in, false, wrapped[k], take<EValue>(1), nullptr);
        }
        auto* list = new (take<BoxedEvalueList<Tensor>>(1))
            BoxedEvalueList<Tensor>(wrapped, take<Tensor>(n), static_cast<int>(n));
        new (first) EValue(list);
        break;
      }
      case 't': tensor(in, false, first, second, nullptr); continue;
      case 'o': tensor(in, true, first, second, &outputs[written++]); continue;
      case 'O': {
        const size_t index = in.get<uint8_t>();
        const Output& output = outputs[written];
        tensor(in, true, first, second, &outputs[written++]);
        for (int k = 0; k < 2; ++k) {
          TensorImpl* shared = values[k][index].toTensor().unsafeGetTensorImpl();
          std::memcpy(output.data[k], shared->data(), output.bytes);
          shared->set_data(output.data[k]);
        }
        continue;
      }
      default: return {"unreadable", 0, 0, 0};
    }
    new (second) EValue(*first);
  }
  if (used > kArena) {
    return {"large", 0, 0, 0};
  }
  auto* stack = take<EValue*>(count + 1);
  const Result<OpFunction> portable = get_op_function_from_registry(name);
  const Kernel* mine = nullptr;
  for (size_t list = 0; list < our_lists; ++list) {
    for (size_t k = 0; k < our_counts[list]; ++k) {
      mine = std::strcmp(ours[list][k].name_, name) == 0 ? &ours[list][k] : mine;
    }
  }
  if (!portable.ok() || mine == nullptr) {
    return {"unknown", 0, 0, 0};
  }
  Error errors[2];
  uint64_t times[2];
  cpu_kernels_portable_calls = 0;
  for (volatile int turn = 0; turn < 2; turn = turn + 1) {
    const int i = turn;
#ifndef __arm__
    if (setjmp(stopped) != 0) {
      errors[turn] = Error::Internal;
      continue;
    }
#endif
    for (size_t k = 0; k < count; ++k) {
      stack[k] = &values[i][k];
    }
    stack[count] = stack[count - 1]; // what the operator returns
    MemoryAllocator allocator(kTemporary, temporary);
    KernelRuntimeContext context(nullptr, &allocator);
    const uint64_t start = now();
    (i == 0 ? *portable : mine->op_)(context, Span<EValue*>(stack, count + 1));
    times[i] = now() - start;
    errors[i] = context.failure_state();
  }
  bool equal = errors[0] == errors[1];
  for (size_t i = 0; i < written && errors[0] == Error::Ok; ++i) {
    equal = equal && same(outputs[i]);
  }
  const char* what = !equal ? "different" : errors[0] == Error::Ok ? "equal" : "failed";
  return {what, times[0], times[1], cpu_kernels_portable_calls};
}

} // namespace

#ifdef __arm__

int main() {
  runtime_init();
  const int32_t file = semihosting_open("calls.bin", SEMIHOSTING_READ);
  uint32_t bytes;
  for (unsigned i = 0; file >= 0 && semihosting_read(file, &bytes, sizeof bytes); ++i) {
    if (bytes > kArena || !semihosting_read(file, request, bytes)) {
      semihosting_exit(false);
    }
    const Outcome outcome = call();
    semihosting_number(i);
    semihosting_text(" ");
    semihosting_text(outcome.what);
    for (uint64_t number : {outcome.portable, outcome.ours, uint64_t{outcome.fell_back}}) {
      semihosting_text(" ");
      semihosting_number(number);
    }
    semihosting_text("\n");
  }
  semihosting_exit(true);
}

#else

int main(int argc, char** argv) {
  runtime_init();
  FILE* file = argc == 2 ? std::fopen(argv[1], "rb") : nullptr;
  if (file == nullptr) {
    return 2;
  }
  uint32_t bytes;
  for (unsigned i = 0; std::fread(&bytes, sizeof bytes, 1, file) == 1; ++i) {
    if (bytes > kArena || std::fread(request, bytes, 1, file) != 1) {
      return 2;
    }
    const Outcome outcome = call();
    std::printf("%u %s %" PRIu64 " %" PRIu64 " %u\n", i, outcome.what, outcome.portable, outcome.ours,
                outcome.fell_back);
    std::fflush(stdout);
  }
  return 0;
}

#endif
