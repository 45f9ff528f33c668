// Runs every method of a program in ExecuTorch's runtime: inputs from inputs.bin, outputs to outputs.bin, a report as
// text that openneutron.firmware.emulator reads.
//
// inputs.bin has, for every method in the program's order, how many runs there are (four bytes) and then the inputs of
// each, one after the other; outputs.bin gets the outputs likewise, without the counts.
#include <cstring>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/runtime/platform/runtime.h>

#include "board.h"
#include "loaded.h"
#include "neutron_backend.h"

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
using executorch::runtime::Method;
using executorch::runtime::Program;
using executorch::runtime::Result;
using firmware::failed;
using firmware::input_of;
using firmware::number;
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
    int64_t raw = 0;
    const bool good = value.isTensor()
                          ? semihosting_read(file, value.toTensor().mutable_data_ptr(), value.toTensor().nbytes())
                          : semihosting_read(file, &raw, sizeof(raw));
    if (!good) {
      return false;
    }
    firmware::set_number(value, raw);
  }
  return true;
}

bool write_outputs(const Method& method, int32_t file) {
  for (size_t i = 0; i < method.outputs_size(); ++i) {
    const EValue& value = method.get_output(i);
    const int64_t raw = firmware::number_of(value);
    const bool good = value.isTensor()
                          ? semihosting_write(file, value.toTensor().const_data_ptr(), value.toTensor().nbytes())
                          : semihosting_write(file, &raw, sizeof(raw));
    if (!good) {
      return false;
    }
  }
  return true;
}

// --- methods ---

firmware::Loaded loaded;
size_t method_peak = 0, temporary_peak = 0;

bool run_method(const Program& program, size_t index, int32_t from, int32_t to) {
  const Result<const char*> found = program.get_method_name(index);
  if (!found.ok()) {
    return failed("a method's name", found.error());
  }
  const char* name = *found;
  semihosting_text("method ");
  semihosting_text(name);
  semihosting_text("\n");
  if (firmware_temporary_pool.bytes < firmware_lookup_bytes) {
    return too_small(firmware_temporary_pool, firmware_lookup_bytes);
  }
  loaded.method.reset(); // the last one's memory is what is overwritten here
  std::memset(firmware_method_pool.data, kAnything, firmware_method_pool.bytes);
  std::memset(firmware_planned_pool.data, kAnything, firmware_planned_pool.bytes);
  std::memset(firmware_temporary_pool.data, kAnything, firmware_temporary_pool.bytes);
  if (loaded.load(program, name, &tracer) != firmware::LoadStep::kDone) {
    return false;
  }
  Method& method = *loaded.method;
  uint32_t runs = 0;
  if (!semihosting_read(from, &runs, sizeof(runs))) {
    return failed(name, "inputs.bin is missing or too short");
  }
  for (uint32_t run = 0; run < runs; ++run) {
    if (!read_inputs(method, from)) {
      return failed(name, "inputs.bin is missing or too short");
    }
    tracer.on = run == 0;
    const Error error = method.execute();
    tracer.on = false;
    if (error != Error::Ok) {
      return failed(name, error);
    }
    if (!write_outputs(method, to)) {
      return failed(name, "outputs.bin cannot be written");
    }
  }
  method_peak = loaded.memory->peak() > method_peak ? loaded.memory->peak() : method_peak;
  temporary_peak = loaded.temporary->peak() > temporary_peak ? loaded.temporary->peak() : temporary_peak;
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
  bool good = true;
  for (size_t i = 0; good && i < program->num_methods(); ++i) {
    good = run_method(*program, i, from, to);
  }
  semihosting_close(to);
  number("pools ", method_peak);
  number(" ", loaded.planned_bytes);
  number(" ", temporary_peak);
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
