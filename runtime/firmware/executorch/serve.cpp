// Takes any program over a serial line and runs it: the protocol of NXP's executorch_modelrunner, with extensions that
// its clients never see. neutron_board.h has the numbers, openneutron/board/frames.py describes the frames.
//
// A program that makes the processor fault, or ExecuTorch give up, resets the processor; the answer is sent after it.
#include <cstring>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/runtime.h>

#include "board.h"
#include "console.h"
#include "loaded.h"
#include "neutron_board.h"
#include "neutron_microcode.h"
#include "uart.h"

extern "C" uint8_t firmware_upload[];

namespace {

using executorch::aten::Tensor;
using executorch::extension::BufferDataLoader;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Method;
using executorch::runtime::Program;
using executorch::runtime::Result;

constexpr size_t kMostInputs = 256, kMostText = 160, kMostName = 128;
constexpr uint32_t kSilence = 500u * 1000u; // microseconds without a byte, after which a frame has broken off

// --- the line ---

uint16_t checksum;

void add(uint8_t byte) {
  checksum = static_cast<uint16_t>(checksum ^ byte << 8);
  for (int bit = 0; bit < 8; ++bit) {
    checksum = static_cast<uint16_t>((checksum & 0x8000u) != 0 ? checksum << 1 ^ 0x1021 : checksum << 1);
  }
}

bool broken; // the frame that is being received

uint8_t take() {
  uint8_t byte = 0;
  if (broken) {
    return 0;
  }
  uint64_t began = 0;
  for (uint32_t round = 1; !uart_get(&byte); ++round) {
    if (round % 256u != 0) {
      continue;
    }
    const uint64_t now = board_ticks() / board_ticks_per_microsecond();
    began = began == 0 ? now : began;
    if (now - began > kSilence) {
      broken = true;
      return 0;
    }
  }
  add(byte);
  return byte;
}

uint32_t take_word() {
  uint32_t value = 0;
  for (unsigned i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(take()) << 8 * i;
  }
  return value;
}

// The rest of a payload: `bytes` of it, of which those are kept that there is room for.
void take_all(void* to, size_t room, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes && !broken; ++i) {
    const uint8_t byte = take();
    if (i < room) {
      static_cast<uint8_t*>(to)[i] = byte;
    }
  }
}

void put(uint8_t byte) {
  add(byte);
  uart_put(byte);
}

void put_number(uint64_t value, unsigned bytes) {
  for (unsigned i = 0; i < bytes; ++i) {
    put(static_cast<uint8_t>(value >> 8 * i));
  }
}

void put_all(const void* from, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    put(static_cast<const uint8_t*>(from)[i]);
  }
}

void begin(uint8_t status, uint32_t bytes) {
  uart_put(NEUTRON_BOARD_SYNC_0);
  uart_put(NEUTRON_BOARD_SYNC_1);
  checksum = 0xFFFF;
  put(status);
  put_number(bytes, 4);
}

void end() {
  const uint16_t found = checksum;
  put_number(found, 2);
}

void answer_ok() {
  begin(NEUTRON_BOARD_STATUS_OK, 0);
  end();
}

// With what was printed since the question, which says why.
void answer_error(uint8_t code) {
  uint32_t bytes = 0;
  const char* text = console_text(&bytes);
  const uint32_t shown = bytes < kMostText ? bytes : kMostText;
  begin(NEUTRON_BOARD_STATUS_ERROR, 1 + shown);
  put(code);
  put_all(text, shown);
  end();
}

void answer_error(uint8_t code, const char* why) {
  console_clear();
  semihosting_text(why);
  answer_error(code);
}

// The checksum of a question; whether there is anything to answer.
bool received() {
  const uint16_t found = checksum;
  const uint32_t low = take(), said = low | static_cast<uint32_t>(take()) << 8;
  if (broken) {
    return false; // whoever asked has gone
  }
  if (said != found) {
    answer_error(NEUTRON_BOARD_CODE_CRC, "wrong checksum");
    return false;
  }
  return true;
}

// --- the program ---

firmware::Tracer tracer;
std::optional<BufferDataLoader> loader;
std::optional<Program> program;
firmware::Loaded loaded;
std::optional<Method>& method = loaded.method;
char method_name[kMostName];
bool given[kMostInputs];

void unload_method() {
  method.reset();
  std::memset(given, 0, sizeof(given));
}

void unload() {
  unload_method();
  program.reset();
  loader.reset();
}

// 0, or the code of the error; why was printed.
uint8_t load_method(const char* name) {
  unload_method();
  switch (loaded.load(*program, name, &tracer)) {
    case firmware::LoadStep::kDone: break;
    case firmware::LoadStep::kMeta: return NEUTRON_BOARD_CODE_METHOD_META;
    case firmware::LoadStep::kPlan: return NEUTRON_BOARD_CODE_PLANNED_BUFFERS;
    case firmware::LoadStep::kMethod: return NEUTRON_BOARD_CODE_LOAD_METHOD;
  }
  std::strncpy(method_name, name, sizeof(method_name) - 1);
  return method->inputs_size() <= kMostInputs ? 0 : NEUTRON_BOARD_CODE_PLANNED_BUFFERS;
}

uint8_t load(uint32_t bytes) {
  loader.emplace(firmware_upload, bytes);
  Result<Program> found = Program::load(&*loader, Program::Verification::InternalConsistency);
  if (!found.ok()) {
    firmware::failed("the program", found.error());
    return NEUTRON_BOARD_CODE_PROGRAM;
  }
  program.emplace(std::move(*found));
  const Result<const char*> name = program->get_method_name(0);
  if (!name.ok() || std::strlen(*name) >= kMostName) {
    firmware::failed("the program", "its first method has no name, or a long one");
    return NEUTRON_BOARD_CODE_METHOD_NAME;
  }
  return load_method(*name);
}

// --- what a method takes and returns ---

size_t rank_of(const EValue& value) {
  return value.isTensor() ? static_cast<size_t>(value.toTensor().dim()) : 0;
}

size_t bytes_of(const EValue& value) {
  return value.isTensor() ? value.toTensor().nbytes() : sizeof(int64_t);
}

constexpr uint8_t kLong = 4; // ScalarType

void put_shape(const EValue& value, bool with_order) {
  const size_t rank = rank_of(value);
  put(value.isTensor() ? static_cast<uint8_t>(value.toTensor().scalar_type()) : kLong);
  put(static_cast<uint8_t>(rank));
  for (size_t i = 0; i < rank; ++i) {
    put_number(static_cast<uint32_t>(value.toTensor().sizes()[i]), 4);
  }
  for (size_t i = 0; with_order && i < rank; ++i) {
    put(value.toTensor().dim_order()[i]);
  }
  put_number(bytes_of(value), 4);
}

void answer_info() {
  if (!method) {
    begin(NEUTRON_BOARD_STATUS_INFO, 0);
    end();
    return;
  }
  const size_t inputs = method->inputs_size(), outputs = method->outputs_size();
  size_t bytes = 2;
  for (size_t i = 0; i < inputs; ++i) {
    bytes += 6 + 5 * rank_of(firmware::input_of(*method, i));
  }
  for (size_t i = 0; i < outputs; ++i) {
    bytes += 6 + 5 * rank_of(method->get_output(i));
  }
  begin(NEUTRON_BOARD_STATUS_INFO, static_cast<uint32_t>(bytes));
  put(static_cast<uint8_t>(inputs));
  for (size_t i = 0; i < inputs; ++i) {
    put_shape(firmware::input_of(*method, i), true);
  }
  put(static_cast<uint8_t>(outputs));
  for (size_t i = 0; i < outputs; ++i) {
    put_shape(method->get_output(i), true);
  }
  end();
}

void answer_result(uint64_t microseconds) {
  const size_t outputs = method->outputs_size();
  size_t bytes = 9;
  for (size_t i = 0; i < outputs; ++i) {
    const EValue& value = method->get_output(i);
    bytes += 6 + 4 * rank_of(value) + bytes_of(value);
  }
  begin(NEUTRON_BOARD_STATUS_RESULT, static_cast<uint32_t>(bytes));
  put_number(microseconds, 8);
  put(static_cast<uint8_t>(outputs));
  for (size_t i = 0; i < outputs; ++i) {
    const EValue& value = method->get_output(i);
    put_shape(value, false);
    if (value.isTensor()) {
      put_all(value.toTensor().const_data_ptr(), value.toTensor().nbytes());
    } else {
      put_number(static_cast<uint64_t>(firmware::number_of(value)), 8);
    }
  }
  end();
}

void put_line(const char* text) {
  put_all(text, std::strlen(text));
  put('\n');
}

void answer_operators() {
  const auto kernels = executorch::runtime::get_registered_kernels();
  size_t bytes = 0;
  for (const auto& kernel : kernels) {
    bytes += std::strlen(kernel.name_) + 1;
  }
  begin(NEUTRON_BOARD_STATUS_TEXT, static_cast<uint32_t>(bytes));
  for (const auto& kernel : kernels) {
    put_line(kernel.name_);
  }
  end();
}

void answer_methods() {
  size_t bytes = 0;
  for (size_t i = 0; program && i < program->num_methods(); ++i) {
    bytes += std::strlen(*program->get_method_name(i)) + 1;
  }
  begin(NEUTRON_BOARD_STATUS_TEXT, static_cast<uint32_t>(bytes));
  for (size_t i = 0; program && i < program->num_methods(); ++i) {
    put_line(*program->get_method_name(i));
  }
  end();
}

void answer_hello() {
  const size_t length = std::strlen(FIRMWARE_CORE);
  begin(NEUTRON_BOARD_STATUS_HELLO, NEUTRON_BOARD_HELLO_BYTES + static_cast<uint32_t>(length));
  put(NEUTRON_BOARD_HELLO_VERSION);
  put(NEUTRON_FORMAT_VERSION);
  put_number(FIRMWARE_INSTRUCTIONS_PER_MICROSECOND, 4);
  put_number(FIRMWARE_UPLOAD_BYTES, 4);
  put_number(firmware_planned_pool.bytes, 4);
  put_number(firmware_method_pool.bytes, 4);
  put_number(firmware_temporary_pool.bytes, 4);
  put_number(firmware_io_pool.bytes, 4);
  put_all(FIRMWARE_CORE, length);
  end();
}

void answer_steps() {
  uint32_t bytes = 0;
  const char* text = console_text(&bytes);
  begin(NEUTRON_BOARD_STATUS_TEXT, bytes);
  put_all(text, bytes);
  end();
}

// --- questions ---

void answer_loaded(uint8_t code) {
  if (code != 0) {
    unload_method();
    answer_error(code);
  } else {
    answer_ok();
  }
}

void on_model(uint32_t bytes) {
  unload();
  board_write_flash(true);
  take_all(firmware_upload, FIRMWARE_UPLOAD_BYTES, bytes);
  board_write_flash(false);
  if (!received()) {
    return;
  }
  if (bytes > FIRMWARE_UPLOAD_BYTES) {
    answer_error(NEUTRON_BOARD_CODE_MODEL_TOO_BIG, "the program is too large");
    return;
  }
  console_set_doing(NEUTRON_BOARD_CODE_LOAD_METHOD);
  const uint8_t code = load(bytes);
  if (code != 0) {
    unload();
  }
  answer_loaded(code);
}

void on_input(size_t index, uint32_t bytes) {
  const bool known = method && index < method->inputs_size() && index < kMostInputs;
  EValue* value = known ? &firmware::input_of(*method, index) : nullptr;
  int64_t raw = 0;
  const bool fits = known && bytes == bytes_of(*value);
  void* to = fits && value->isTensor() ? value->toTensor().mutable_data_ptr() : &raw;
  take_all(to, fits ? bytes : 0, bytes);
  if (known) {
    given[index] = false;
  }
  if (!received()) {
    return;
  }
  if (!method) {
    answer_error(NEUTRON_BOARD_CODE_NO_MODEL, "no program is loaded");
  } else if (!fits) {
    answer_error(NEUTRON_BOARD_CODE_INPUT_SIZE, known ? "the input has another size" : "there is no such input");
  } else {
    if (!value->isTensor()) {
      firmware::set_number(*value, raw);
    }
    given[index] = true;
    answer_ok();
  }
}

void on_run(bool traced) {
  if (!method) {
    answer_error(NEUTRON_BOARD_CODE_NO_MODEL, "no program is loaded");
    return;
  }
  for (size_t i = 0; i < method->inputs_size(); ++i) {
    if (!given[i]) {
      answer_error(NEUTRON_BOARD_CODE_NO_MODEL, "an input is not loaded");
      return;
    }
  }
  std::memset(given, 0, sizeof(given));
  console_set_doing(NEUTRON_BOARD_CODE_EXECUTE);
  tracer.on = traced;
  const uint64_t began = board_ticks();
  const Error error = method->execute();
  const uint64_t ticks = board_ticks() - began;
  tracer.on = false;
  if (error != Error::Ok) {
    firmware::failed(method_name, error);
    answer_error(NEUTRON_BOARD_CODE_EXECUTE);
    return;
  }
  answer_result(ticks / board_ticks_per_microsecond());
}

void on_select(uint32_t bytes) {
  char name[kMostName] = {};
  take_all(name, sizeof(name) - 1, bytes);
  if (!received()) {
    return;
  }
  if (!program) {
    answer_error(NEUTRON_BOARD_CODE_NO_MODEL, "no program is loaded");
    return;
  }
  console_set_doing(NEUTRON_BOARD_CODE_LOAD_METHOD);
  answer_loaded(load_method(name));
}

void on_reset() {
  if (!method) {
    answer_error(NEUTRON_BOARD_CODE_NO_MODEL, "no program is loaded");
    return;
  }
  char name[kMostName];
  std::memcpy(name, method_name, sizeof(name));
  console_set_doing(NEUTRON_BOARD_CODE_LOAD_METHOD);
  answer_loaded(load_method(name));
}

void serve_one() {
  uint8_t byte = 0, before = 0;
  for (;; before = byte) { // wait for a frame, for as long as it takes
    while (!uart_get(&byte)) {}
    if (before == NEUTRON_BOARD_SYNC_0 && byte == NEUTRON_BOARD_SYNC_1) {
      break;
    }
  }
  broken = false;
  checksum = 0xFFFF;
  const uint8_t command = take();
  const uint32_t bytes = take_word();
  if (broken) {
    return;
  }
  if (command != NEUTRON_BOARD_COMMAND_STEPS && command != NEUTRON_BOARD_COMMAND_GET_INFO) {
    console_clear(); // the steps of a run are there until the next question about something else
  }
  if (command == NEUTRON_BOARD_COMMAND_LOAD_MODEL) {
    on_model(bytes);
  } else if (command == NEUTRON_BOARD_COMMAND_LOAD_INPUT) {
    on_input(0, bytes);
  } else if (command == NEUTRON_BOARD_COMMAND_LOAD_INPUT_AT && bytes != 0) {
    const uint8_t index = take();
    on_input(index, bytes - 1);
  } else if (command == NEUTRON_BOARD_COMMAND_SELECT) {
    on_select(bytes);
  } else {
    uint8_t option = 0;
    take_all(&option, 1, bytes);
    if (!received()) {
      return;
    }
    switch (command) {
      case NEUTRON_BOARD_COMMAND_RUN: return on_run(option != 0);
      case NEUTRON_BOARD_COMMAND_GET_INFO: return answer_info();
      case NEUTRON_BOARD_COMMAND_HELLO: return answer_hello();
      case NEUTRON_BOARD_COMMAND_OPERATORS: return answer_operators();
      case NEUTRON_BOARD_COMMAND_METHODS: return answer_methods();
      case NEUTRON_BOARD_COMMAND_RESET: return on_reset();
      case NEUTRON_BOARD_COMMAND_STEPS: return answer_steps();
      default: return answer_error(NEUTRON_BOARD_CODE_PROTOCOL, "unknown command");
    }
  }
}

} // namespace

int main() {
  board_protect();
  uart_start();
  executorch::runtime::runtime_init();
  uint8_t doing = 0;
  if (console_crashed(&doing)) {
    answer_error(doing);
  } else {
    console_clear();
  }
  for (;;) {
    serve_one();
  }
}
