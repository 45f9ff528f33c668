// Runs every method of a program in ExecuTorch's runtime: inputs from inputs.bin, outputs to outputs.bin, a report as
// text that openneutron.firmware.emulator reads.
//
// inputs.bin has, for every method in the program's order, how many runs there are (four bytes) and then the inputs of
// each, one after the other; outputs.bin gets the outputs likewise, without the counts.
#include <cstring>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

#include "allocator.h"
#include "board.h"
#include "neutron_backend.h"
#include "pools.h"
#include "ports.h"
#include "semihosting.h"
#include "tracer.h"

// Programs without delegates are linked without the delegate.
extern "C" __attribute__((weak)) void neutron_backend_set_hooks(const NeutronBackendHooks* hooks);

// A watchdog's interrupt may write to this: the delegate that runs ends, and the method with an error.
extern "C" {
volatile uint32_t firmware_stop = 0;
}

namespace {

using executorch::aten::Tensor;
using executorch::extension::BufferDataLoader;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::Method;
using executorch::runtime::MethodMeta;
using executorch::runtime::Program;
using executorch::runtime::Result;
using executorch::runtime::Span;
using firmware::failed;
using firmware::input_of;
using firmware::kMostBuffers;
using firmware::memory_of;
using firmware::number;
using firmware::place_outputs;
using firmware::plan;
using firmware::ports;
using firmware::too_small;

constexpr uint8_t kAnything = 0xA5; // memory after reset holds anything on a board, but zeros in the emulator

firmware::Tracer tracer;

// --- memory protection of prefetched weights ---

#ifndef FIRMWARE_CLOSE_WEIGHTS
#define FIRMWARE_CLOSE_WEIGHTS(model) ((model)->prefetch_bytes != 0)
#endif

const NeutronModel* running = nullptr;

void close_weights() {
  if (running != nullptr && FIRMWARE_CLOSE_WEIGHTS(running)) {
    board_close_flash(running->weights, running->weights_bytes);
  }
}

void enter(void*, const NeutronModel* model) {
  running = model;
  close_weights();
}

void leave(void*, const NeutronModel*) {
  running = nullptr;
  board_open_flash();
}

int32_t copy(void*, void* destination, const void* source, size_t bytes, uint32_t) {
  board_open_flash();
  std::memcpy(destination, source, bytes);
  close_weights();
  return 0;
}

const NeutronBackendHooks hooks = {nullptr, &copy, nullptr, &enter, &leave, &firmware_stop, 0};

// --- inputs and outputs ---

bool read_inputs(Method& method, int32_t file) {
  for (size_t i = 0; i < method.inputs_size(); ++i) {
    EValue& value = input_of(method, i);
    if (value.isTensor()) {
      const Tensor& tensor = value.toTensor();
      void* memory = memory_of(tensor);
      if ((memory == nullptr && tensor.nbytes() != 0) || !semihosting_read(file, memory, tensor.nbytes())) {
        return false;
      }
      continue;
    }
    int64_t raw = 0; // a number: its eight bytes
    if (!semihosting_read(file, &raw, sizeof(raw))) {
      return false;
    }
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
  return true;
}

bool write_outputs(const Method& method, int32_t file) {
  for (size_t i = 0; i < method.outputs_size(); ++i) {
    const EValue& value = method.get_output(i);
    bool good = false;
    if (value.isTensor()) {
      const Tensor& tensor = value.toTensor();
      good = semihosting_write(file, tensor.const_data_ptr(), tensor.nbytes());
    } else {
      int64_t raw = value.isInt() ? value.toInt() : value.isBool() ? static_cast<int64_t>(value.toBool()) : 0;
      if (value.isDouble()) {
        const double real = value.toDouble();
        std::memcpy(&raw, &real, sizeof(raw));
      }
      good = semihosting_write(file, &raw, sizeof(raw));
    }
    if (!good) {
      return false;
    }
  }
  return true;
}

// --- methods ---

struct Peaks {
  size_t method = 0, planned = 0, temporary = 0;
};

bool run_method(const Program& program, size_t index, int32_t from, int32_t to, Peaks* peaks) {
  const Result<const char*> found = program.get_method_name(index);
  if (!found.ok()) {
    return failed("a method's name", found.error());
  }
  const char* name = *found;
  semihosting_text("method ");
  semihosting_text(name);
  semihosting_text("\n");
  const Result<MethodMeta> meta = program.method_meta(name);
  if (!meta.ok()) {
    return failed(name, meta.error());
  }
  Span<uint8_t> spans[kMostBuffers];
  size_t count = 0;
  if (!plan(*meta, spans, &count, &peaks->planned)) {
    return false;
  }
  if (firmware_temporary_pool.bytes < firmware_lookup_bytes) {
    return too_small(firmware_temporary_pool, firmware_lookup_bytes);
  }
  std::memset(firmware_method_pool.data, kAnything, firmware_method_pool.bytes);
  std::memset(firmware_planned_pool.data, kAnything, firmware_planned_pool.bytes);
  std::memset(firmware_temporary_pool.data, kAnything, firmware_temporary_pool.bytes);
  HierarchicalAllocator planned({spans, count});
  firmware::PoolAllocator memory(firmware_method_pool), temporary(firmware_temporary_pool);
  MemoryManager manager(&memory, &planned, &temporary);
  Result<Method> method = program.load_method(name, &manager, &tracer);
  if (!method.ok()) {
    return failed(name, method.error());
  }
  uint32_t runs = 0;
  if (!semihosting_read(from, &runs, sizeof(runs))) {
    return failed(name, "inputs.bin is missing or too short");
  }
  ports.reset();
  if (!place_outputs(*method)) {
    return failed(name, "an output has no memory");
  }
  for (uint32_t run = 0; run < runs; ++run) {
    if (!read_inputs(*method, from)) {
      return failed(name, "inputs.bin is missing or too short");
    }
    tracer.on = run == 0;
    const Error error = method->execute();
    tracer.on = false;
    if (error != Error::Ok) {
      return failed(name, error);
    }
    if (!write_outputs(*method, to)) {
      return failed(name, "outputs.bin cannot be written");
    }
  }
  peaks->method = memory.peak() > peaks->method ? memory.peak() : peaks->method;
  peaks->temporary = temporary.peak() > peaks->temporary ? temporary.peak() : peaks->temporary;
  return true;
}

bool run_program() {
  const BufferDataLoader loader(firmware_program, firmware_program_bytes);
  const Result<Program> program = Program::load(const_cast<BufferDataLoader*>(&loader));
  if (!program.ok()) {
    return failed("the program", program.error());
  }
  const int32_t from = semihosting_open("inputs.bin", SEMIHOSTING_READ);
  const int32_t to = semihosting_open("outputs.bin", SEMIHOSTING_WRITE);
  if (from < 0 || to < 0) {
    return failed("files", "inputs.bin or outputs.bin cannot be opened");
  }
  Peaks peaks;
  bool good = true;
  for (size_t i = 0; good && i < program->num_methods(); ++i) {
    good = run_method(*program, i, from, to, &peaks);
  }
  semihosting_close(to);
  number("pools ", peaks.method);
  number(" ", peaks.planned);
  number(" ", peaks.temporary);
  number(" ", ports.peak());
  semihosting_text("\n");
  return good;
}

} // namespace

int main() {
  board_protect();
  if (neutron_backend_set_hooks != nullptr) {
    neutron_backend_set_hooks(&hooks);
  }
  executorch::runtime::runtime_init();
  const bool good = run_program();
  number("stack ", board_stack_bytes());
  semihosting_text(good ? "\ndone\n" : "\n");
  return good ? 0 : 1;
}
