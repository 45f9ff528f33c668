// Counts what every instruction of a method takes: operators, delegate calls, and the kernels within delegates.
//
// What is counted is printed at once; the time that takes is not counted, for the clock stands still meanwhile.
#pragma once

#include <cstring>

#include <executorch/runtime/core/event_tracer.h>

#include "board.h"
#include "semihosting.h"

namespace firmware {

class Tracer final : public executorch::runtime::EventTracer {
 public:
  using Result = executorch::runtime::Result<bool>;
  using Entry = executorch::runtime::EventTracerEntry;
  using Index = executorch::runtime::DelegateDebugIntId;

  bool on = false; // one run of each method is enough

  Entry start_profiling(const char* name, executorch::runtime::ChainID, executorch::runtime::DebugHandle) override {
    Entry entry{};
    entry.event_id = is_call(name) ? 1 : 0;
    entry.start_time = now();
    return entry;
  }

  void end_profiling(Entry entry) override {
    if (on && entry.event_id == 1) {
      print("step", entry.start_time, now(), nullptr, 0, 0);
    }
  }

  Entry start_profiling_delegate(const char*, Index index) override {
    Entry entry{};
    entry.delegate_event_id_type = executorch::runtime::DelegateDebugIdType::kInt;
    entry.event_id = static_cast<int64_t>(index);
    entry.start_time = now();
    return entry;
  }

  void end_profiling_delegate(Entry entry, const void* metadata, size_t length) override {
    log_profiling_delegate(nullptr, static_cast<Index>(entry.event_id), entry.start_time, now(), metadata, length);
  }

  void log_profiling_delegate(const char*, Index, et_timestamp_t start, et_timestamp_t end, const void* metadata,
                              size_t length) override {
    if (on) {
      print("kernel", start, end, static_cast<const char*>(metadata), length, 1);
    }
  }

  void create_event_block(const char*) override {}
  void track_allocation(executorch::runtime::AllocatorID, size_t) override {}
  executorch::runtime::AllocatorID track_allocator(const char*) override {
    return 0;
  }
  Result log_evalue(const executorch::runtime::EValue&, executorch::runtime::LoggedEValueType) override {
    return false;
  }
  Result log_intermediate_output_delegate(const char*, Index, const executorch::aten::Tensor&) override {
    return false;
  }
  Result log_intermediate_output_delegate(const char*, Index,
                                          const executorch::runtime::ArrayRef<executorch::aten::Tensor>) override {
    return false;
  }
  Result log_intermediate_output_delegate(const char*, Index, const int&) override {
    return false;
  }
  Result log_intermediate_output_delegate(const char*, Index, const bool&) override {
    return false;
  }
  Result log_intermediate_output_delegate(const char*, Index, const double&) override {
    return false;
  }
  void set_delegation_intermediate_output_filter(executorch::runtime::EventTracerFilterBase*) override {}

 private:
  // "OPERATOR_CALL" and "DELEGATE_CALL"; within them the generated code says "native_call_..." again.
  static bool is_call(const char* name) {
    const size_t length = name != nullptr ? std::strlen(name) : 0;
    return length > 5 && std::strcmp(name + length - 5, "_CALL") == 0;
  }

  et_timestamp_t now() const {
    return board_ticks() - stopped_;
  }

  void print(const char* what, et_timestamp_t start, et_timestamp_t end, const char* name, size_t length, int named) {
    const et_timestamp_t began = board_ticks();
    semihosting_text(what);
    semihosting_text(" ");
    semihosting_number(debug_handle_);
    if (named) {
      char text[32] = "?";
      if (name != nullptr && length < sizeof(text)) {
        std::memcpy(text, name, length);
        text[length] = 0;
      }
      semihosting_text(" ");
      semihosting_text(text);
    }
    semihosting_text(" ");
    semihosting_number(end - start);
    semihosting_text("\n");
    stopped_ += board_ticks() - began;
  }

  et_timestamp_t stopped_ = 0;
};

} // namespace firmware
