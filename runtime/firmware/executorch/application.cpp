// Loads every method of a program side by side and hands over to an application of the user's.
#include <cstring>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/runtime/platform/runtime.h>

#include "application.h"
#include "board.h"
#include "loaded.h"
#include "neutron_backend.h"

namespace {

using executorch::extension::BufferDataLoader;
using executorch::runtime::Error;
using executorch::runtime::Program;
using executorch::runtime::Result;
using firmware::failed;
using firmware::number;

constexpr size_t kMostMethods = 8;
constexpr uint8_t kAnything = 0xA5; // memory after reset holds anything on a board, but zeros in the emulator

struct Slot {
  firmware::Loaded loaded;
  const char* name = nullptr;
  uint64_t runs = 0, ticks = 0;
};

Slot slots[kMostMethods];
size_t count = 0;

bool load(const Program& program) {
  if (program.num_methods() > kMostMethods) {
    return failed("the program", "it has more methods than this firmware knows");
  }
  if (firmware_temporary_pool.bytes < firmware_lookup_bytes) {
    return firmware::too_small(firmware_temporary_pool, firmware_lookup_bytes);
  }
  for (const FirmwarePool* pool : {&firmware_method_pool, &firmware_planned_pool, &firmware_temporary_pool}) {
    std::memset(pool->data, kAnything, pool->bytes);
  }
  for (; count < program.num_methods(); ++count) {
    const Result<const char*> name = program.get_method_name(count);
    if (!name.ok()) {
      return failed("a method's name", name.error());
    }
    Slot& slot = slots[count];
    slot.name = *name;
    firmware::Loaded* beside = count != 0 ? &slots[0].loaded : nullptr;
    if (slot.loaded.load(program, *name, nullptr, beside) != firmware::LoadStep::kDone) {
      return false;
    }
  }
  return true;
}

Slot* find(int32_t method) {
  return method >= 0 && static_cast<size_t>(method) < count ? &slots[method] : nullptr;
}

void* tensor(const firmware::EValue* value, uint32_t* bytes) {
  *bytes = value != nullptr && value->isTensor() ? static_cast<uint32_t>(value->toTensor().nbytes()) : 0;
  return *bytes != 0 ? value->toTensor().mutable_data_ptr() : nullptr;
}

void report(uint64_t ticks) {
  size_t planned = 0;
  semihosting_text("\n"); // the application's last line may have no end
  for (size_t i = 0; i < count; ++i) {
    const Slot& slot = slots[i];
    semihosting_text("ran ");
    semihosting_text(slot.name);
    number(" ", slot.runs);
    number(" ", slot.ticks);
    semihosting_text("\n");
    ticks -= slot.ticks;
    planned = slot.loaded.planned_bytes > planned ? slot.loaded.planned_bytes : planned;
  }
  number("application ", ticks);
  number("\npools ", slots[0].loaded.memory->peak());
  number(" ", planned);
  number(" ", slots[0].loaded.temporary->peak());
  number(" ", firmware::ports.peak());
  number("\nstack ", board_stack_bytes());
}

bool run() {
  const BufferDataLoader loader(firmware_program, firmware_program_bytes);
  const Result<Program> program = Program::load(const_cast<BufferDataLoader*>(&loader));
  if (!program.ok()) {
    return failed("the program", program.error());
  }
  if (!load(*program)) {
    return false;
  }
  const uint64_t start = board_ticks();
  const bool good = application();
  report(board_ticks() - start);
  return good;
}

} // namespace

int32_t method_find(const char* name) {
  for (size_t i = 0; i < count; ++i) {
    if (std::strcmp(slots[i].name, name) == 0) {
      return static_cast<int32_t>(i);
    }
  }
  return -1;
}

void* method_input(int32_t method, uint32_t index, uint32_t* bytes) {
  Slot* slot = find(method);
  const bool there = slot != nullptr && index < slot->loaded.method->inputs_size();
  return tensor(there ? &firmware::input_of(*slot->loaded.method, index) : nullptr, bytes);
}

const void* method_output(int32_t method, uint32_t index, uint32_t* bytes) {
  Slot* slot = find(method);
  const bool there = slot != nullptr && index < slot->loaded.method->outputs_size();
  return tensor(there ? &slot->loaded.method->get_output(index) : nullptr, bytes);
}

bool method_run(int32_t method) {
  Slot* slot = find(method);
  if (slot == nullptr) {
    return failed("method_run", "there is no such method");
  }
  const uint64_t start = board_ticks();
  const Error error = slot->loaded.method->execute();
  slot->ticks += board_ticks() - start;
  slot->runs += 1;
  return error == Error::Ok || failed(slot->name, error);
}

void methods_reset(void) {
  neutron_backend_reset();
}

int main() {
  board_protect();
  executorch::runtime::runtime_init();
  const bool good = run();
  semihosting_text(good ? "\ndone\n" : "\n");
  return good ? 0 : 1;
}
