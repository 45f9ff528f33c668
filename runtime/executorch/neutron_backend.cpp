// The ExecuTorch delegate `NeutronBackend`: loads payloads of the open converter and runs them on the C runtime.
//
// A handle lives in the memory of the method that loaded it, so that methods may run in several threads. Memory for
// activations is the last argument of a call where the program plans it (openneutron/package/arena.py), and is taken
// from the method's temporary allocator where it does not: the delegates of a program run one after the other, and need
// room for the largest, not for all. The payload stays where ExecuTorch loaded it; it is copied only if that place is
// not aligned as the runtime needs it.
#include <cstring>
#include <new>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/event_tracer_hooks_delegate.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/platform/log.h>

#include "neutron.h"
#include "neutron_backend.h"
#include "neutron_payload.h"
#include "payload.h"
#include "threads.h"
#include "transpose.h"

namespace openneutron {
namespace {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::ArrayRef;
using executorch::runtime::Backend;
using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::BackendInterface;
using executorch::runtime::CompileSpec;
using executorch::runtime::DelegateHandle;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::EventTracer;
using executorch::runtime::EventTracerEntry;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::MemoryAllocator;
using executorch::runtime::Result;
using executorch::runtime::Span;

constexpr char kName[] = "NeutronBackend";
constexpr size_t kMessageBytes = 256;

// Everything one delegate of one loaded method needs.
struct Handle {
  Payload payload;
  NeutronModel model;
  FreeableBuffer* processed; // freed with the handle, for the model points into it
  NeutronConstBuffer* inputs;
  NeutronBuffer* outputs;
  NeutronBuffer state; // what the program remembers; of the method that loaded it, and of no other
  uint32_t started;    // the number of the reset that it has last followed
};

// How often all states were to start anew.
volatile uint32_t resets = 0;

// Let the state start from its initial values, if it was not since the application wanted that.
NeutronStatus follow_resets(Handle* handle) {
  const uint32_t wanted = resets;
  if (handle->started == wanted) {
    return NEUTRON_STATUS_OK;
  }
  handle->started = wanted;
  return neutron_reset(&handle->model, handle->state);
}

// For messages: not every C library a firmware is built with knows %zu.
unsigned long number(size_t value) {
  return static_cast<unsigned long>(value);
}

ScalarType scalar_type(uint32_t dtype) {
  switch (dtype) {
    case NEUTRON_DTYPE_INT8: return ScalarType::Char;
    case NEUTRON_DTYPE_UINT8: return ScalarType::Byte;
    case NEUTRON_DTYPE_INT16: return ScalarType::Short;
    case NEUTRON_DTYPE_INT32: return ScalarType::Int;
    case NEUTRON_DTYPE_INT64: return ScalarType::Long;
    case NEUTRON_DTYPE_FLOAT32: return ScalarType::Float;
    case NEUTRON_DTYPE_BOOL: return ScalarType::Bool;
    default: return ScalarType::Undefined;
  }
}

// Memory from ExecuTorch's allocator, or null with a message that says how much was wanted and for what.
void* allocate(MemoryAllocator* allocator, size_t bytes, const char* purpose) {
  void* memory = allocator != nullptr ? allocator->allocate(bytes, NEUTRON_ALIGNMENT) : nullptr;
  if (memory == nullptr) {
    ET_LOG(Error, "%s: no memory for %s: %lu bytes needed", kName, purpose, number(bytes));
  }
  return memory;
}

// A size of 0 needs no buffer.
bool allocate(MemoryAllocator* allocator, uint32_t bytes, const char* purpose, NeutronBuffer* buffer) {
  *buffer = NeutronBuffer{bytes != 0 ? allocate(allocator, bytes, purpose) : nullptr, bytes};
  return bytes == 0 || buffer->data != nullptr;
}

bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % NEUTRON_ALIGNMENT == 0;
}

// `data` itself if it is aligned, else an aligned copy; null if there is no memory for one.
const uint8_t* at_aligned(MemoryAllocator* allocator, const uint8_t* data, size_t bytes, const char* purpose) {
  if (is_aligned(data) || bytes == 0) {
    return data;
  }
  void* copy = allocate(allocator, bytes, purpose);
  return copy != nullptr ? static_cast<const uint8_t*>(std::memcpy(copy, data, bytes)) : nullptr;
}

Error check_payload(PayloadStatus status, const char* problem) {
  if (status == PayloadStatus::kOk) {
    return Error::Ok;
  }
  ET_LOG(Error, "%s: %s", kName, problem);
  return status == PayloadStatus::kDamaged ? Error::InvalidProgram : Error::DelegateInvalidCompatibility;
}

const NeutronBackendHooks* application_hooks = nullptr;

// The work a delegate may ask for: the application's limit, or 0 for the runtime's own.
uint64_t most_work() {
#ifdef NEUTRON_BACKEND_THREADS
  const uint64_t limit = backend_most_work();
#else
  const uint64_t limit = 0;
#endif
  return application_hooks != nullptr && application_hooks->most_work != 0 ? application_hooks->most_work : limit;
}

Error prepare(Handle* handle) {
  const Payload& payload = handle->payload;
  const NeutronImage image = {
      {payload.microcode, payload.microcode_bytes}, {payload.weights, payload.weights_bytes}, 1, most_work()};
  const NeutronStatus status = neutron_prepare(&handle->model, &image);
  if (status == NEUTRON_STATUS_OK) {
    return Error::Ok;
  }
  char text[kMessageBytes];
  neutron_describe(&handle->model, status, text, sizeof(text));
  switch (status) {
    case NEUTRON_STATUS_FORMAT_VERSION:
    case NEUTRON_STATUS_TARGET:
    case NEUTRON_STATUS_KERNEL_UNKNOWN:
    case NEUTRON_STATUS_KERNEL_MISSING: {
      const auto* header = reinterpret_cast<const NeutronHeader*>(payload.microcode);
      ET_LOG(Error,
             "%s: %s: made by converter %u.%u.%u with microcode format %u, this is runtime %d.%d.%d for format %u",
             kName, text, static_cast<unsigned>(header->converter_version >> 16),
             static_cast<unsigned>(header->converter_version >> 8 & 255),
             static_cast<unsigned>(header->converter_version & 255), static_cast<unsigned>(header->format_version),
             NEUTRON_RUNTIME_VERSION_MAJOR, NEUTRON_RUNTIME_VERSION_MINOR, NEUTRON_RUNTIME_VERSION_PATCH,
             static_cast<unsigned>(NEUTRON_FORMAT_VERSION));
      return Error::DelegateInvalidCompatibility;
    }
    default: ET_LOG(Error, "%s: %s", kName, text); return Error::InvalidProgram;
  }
}

// The tensor behind an argument if it is what the microcode expects, else null with a message.
const Tensor* find_tensor(const Handle* handle, Span<EValue*> args, size_t port) {
  const Payload& payload = handle->payload;
  const bool is_input = port < payload.inputs;
  const char* what = is_input ? "input" : "output";
  const size_t index = is_input ? port : port - payload.inputs;
  const NeutronDescriptor& expected = is_input ? handle->model.inputs[index] : handle->model.outputs[index];
  const EValue* value = args[payload.maps[port] + (is_input ? 0u : payload.input_args)];
  if (!value->isTensor()) {
    ET_LOG(Error, "%s: %s %lu is not a tensor", kName, what, number(index));
    return nullptr;
  }
  const Tensor& tensor = value->toTensor();
  if (tensor.scalar_type() != scalar_type(expected.dtype) || tensor.nbytes() != expected.bytes) {
    ET_LOG(Error, "%s: %s %lu has %lu bytes of type %s, the program was compiled for %u bytes of type %s", kName, what,
           number(index), number(tensor.nbytes()), executorch::runtime::toString(tensor.scalar_type()),
           static_cast<unsigned>(expected.bytes), executorch::runtime::toString(scalar_type(expected.dtype)));
    return nullptr;
  }
  return &tensor;
}

// Whether the runtime has to transpose: not if the tensor's memory is channels last already.
bool needs_transpose(const Handle* handle, size_t port, const Tensor& tensor) {
  if (handle->payload.formats[port] != NEUTRON_PAYLOAD_CHANNELS_LAST || tensor.dim() < 3) {
    return false;
  }
  return tensor.dim_order()[1] == 1; // logical dimension 1 is the channels
}

bool transpose_tensor(const Tensor& tensor, const void* from, void* to, bool channels_last) {
  const auto batch = static_cast<size_t>(tensor.size(0)), channels = static_cast<size_t>(tensor.size(1));
  const size_t elements = static_cast<size_t>(tensor.numel());
  if (elements == 0) {
    return true;
  }
  const size_t pixels = elements / batch / channels;
  const size_t rows = channels_last ? channels : pixels, columns = channels_last ? pixels : channels;
  return transpose(from, to, batch, rows, columns, static_cast<size_t>(tensor.element_size()));
}

// One event per kernel call, numbered as in the microcode; the backend's debug handle map names the edge nodes, and
// the kernel's name is the event's metadata. Without a tracer none of this runs.
// The steps of a cascade add up to one event for each stage, the turns of a loop to one for each call of its body; what
// is left is the cascade's or the loop's own.
struct Trace {
  EventTracer* tracer;
  EventTracerEntry entry;
  bool in_group = false;
  uint32_t group = 0, stages = 0;
  et_timestamp_t group_began = 0, step_began = 0;
  et_timestamp_t ticks[NEUTRON_MAX_STAGES] = {};
  uint32_t kernels[NEUTRON_MAX_STAGES] = {};

  et_timestamp_t now() const {
    return executorch::runtime::event_tracer_start_profiling_delegate(tracer, nullptr, 0).start_time;
  }

  void log(uint32_t call, uint32_t kernel, et_timestamp_t begin, et_timestamp_t end) const {
    const char* name = neutron_kernel_name(kernel);
    executorch::runtime::event_tracer_log_profiling_delegate(tracer, nullptr, call, begin, end, name,
                                                             std::strlen(name));
  }

  void begin_group(uint32_t call) {
    in_group = true;
    group = call;
    stages = 0;
    group_began = now();
  }

  void end_group(uint32_t kernel) {
    const et_timestamp_t end = now();
    et_timestamp_t at = group_began;
    for (uint32_t i = 0; i < stages; ++i) {
      log(group + 1 + i, kernels[i], at, at + ticks[i]);
      at += ticks[i];
    }
    log(group, kernel, at, end);
    in_group = false;
  }

  void end_step(uint32_t call, uint32_t kernel) {
    const et_timestamp_t end = now();
    const uint32_t stage = call - group - 1;
    for (; stages <= stage; ++stages) {
      ticks[stages] = 0;
    }
    ticks[stage] += end - step_began;
    kernels[stage] = kernel;
  }

  void call(uint32_t call, uint32_t kernel, int begin) {
    if (kernel == NEUTRON_KERNEL_CASCADE || kernel == NEUTRON_KERNEL_LOOP) {
      begin != 0 ? begin_group(call) : end_group(kernel);
    } else if (in_group && begin != 0) {
      step_began = now();
    } else if (in_group) {
      end_step(call, kernel);
    } else if (begin != 0) {
      entry = executorch::runtime::event_tracer_start_profiling_delegate(tracer, nullptr, call);
    } else {
      const char* name = neutron_kernel_name(kernel);
      executorch::runtime::event_tracer_end_profiling_delegate(tracer, entry, name, std::strlen(name));
    }
  }
};

// What the runtime calls during one run: the tracer, and the application's transfers.
struct Callbacks {
  Trace trace;
  const NeutronBackendHooks* hooks;

  static int32_t copy(void* context, void* destination, const void* source, size_t bytes, uint32_t channel) {
    const NeutronBackendHooks* hooks = static_cast<Callbacks*>(context)->hooks;
    return hooks->copy(hooks->context, destination, source, bytes, channel);
  }

  static int32_t wait(void* context, uint32_t channel) {
    const NeutronBackendHooks* hooks = static_cast<Callbacks*>(context)->hooks;
    return hooks->wait(hooks->context, channel);
  }

  static void traced(void* context, uint32_t call, uint32_t kernel, int begin) {
    static_cast<Callbacks*>(context)->trace.call(call, kernel, begin);
  }

  NeutronHooks for_runtime() {
    const bool transfers = hooks != nullptr;
    return NeutronHooks{this, transfers && hooks->copy != nullptr ? &copy : nullptr,
                        transfers && hooks->wait != nullptr ? &wait : nullptr,
                        trace.tracer != nullptr ? &traced : nullptr};
  }
};

class NeutronBackend final : public BackendInterface {
 public:
  bool is_available() const override {
    return true;
  }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               ArrayRef<CompileSpec>) const override {
    Payload payload;
    const char* problem = "";
    const PayloadStatus status = parse_payload(processed->data(), processed->size(), &payload, &problem);
    ET_CHECK_OK_OR_RETURN_ERROR(check_payload(status, problem));

    MemoryAllocator* allocator = context.get_runtime_allocator();
    void* memory = allocate(allocator, sizeof(Handle), "the handle");
    if (memory == nullptr) {
      return Error::MemoryAllocationFailed;
    }
    auto* handle = new (memory) Handle{};
    handle->payload = payload;
    handle->processed = processed;
    handle->payload.microcode = at_aligned(allocator, payload.microcode, payload.microcode_bytes, "the microcode");
    handle->payload.weights = at_aligned(allocator, payload.weights, payload.weights_bytes, "the weights");
    if (handle->payload.microcode == nullptr || handle->payload.weights == nullptr) {
      return Error::MemoryAllocationFailed;
    }
    ET_CHECK_OK_OR_RETURN_ERROR(prepare(handle));
    handle->inputs = allocator->allocateList<NeutronConstBuffer>(payload.inputs);
    handle->outputs = allocator->allocateList<NeutronBuffer>(payload.outputs);
    if (handle->inputs == nullptr || handle->outputs == nullptr) {
      return Error::MemoryAllocationFailed;
    }
    // Not temporary memory: it lives as long as the method.
    if (!allocate(allocator, handle->model.state_bytes, "what the program remembers", &handle->state)) {
      return Error::MemoryAllocationFailed;
    }
    handle->started = resets;
    return neutron_reset(&handle->model, handle->state) == NEUTRON_STATUS_OK ? Result<DelegateHandle*>(handle)
                                                                             : Error::Internal;
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* opaque, Span<EValue*> args) const override {
    auto* handle = static_cast<Handle*>(opaque);
    const Payload& payload = handle->payload;
    const size_t expected = static_cast<size_t>(payload.input_args) + payload.outputs;
    const bool lends = args.size() == expected + 1; // the program plans memory for activations
    if (args.size() != expected && !lends) {
      ET_LOG(Error, "%s: called with %lu arguments, the payload has %lu", kName, number(args.size()), number(expected));
      return Error::InvalidArgument;
    }
    MemoryAllocator* allocator = context.get_temp_allocator();
    NeutronBuffer scratch = {nullptr, 0}, prefetch;
    if (lends) {
      ET_CHECK_OK_OR_RETURN_ERROR(borrow(handle, *args[expected], &scratch));
    }
    if ((scratch.data == nullptr &&
         !allocate(allocator, handle->model.scratch_bytes, "activations (temporary allocator)", &scratch)) ||
        !allocate(allocator, handle->model.prefetch_bytes, "prefetched weights (temporary allocator)", &prefetch)) {
      return Error::MemoryAllocationFailed;
    }
    for (size_t port = 0; port < static_cast<size_t>(payload.inputs) + payload.outputs; ++port) {
      ET_CHECK_OK_OR_RETURN_ERROR(bind(handle, args, port, scratch, allocator));
    }

    const NeutronBackendHooks* const around = application_hooks;
    Callbacks callbacks{{context.event_tracer(), {}}, around};
    const NeutronHooks hooks = callbacks.for_runtime();
    const NeutronRun run = {handle->inputs, payload.inputs, handle->outputs, payload.outputs, scratch,
                            prefetch,       &hooks,         threads(),       stop(around),    handle->state};
    if (around != nullptr && around->enter != nullptr) {
      around->enter(around->context, &handle->model);
    }
    NeutronStatus status = follow_resets(handle);
    if (status == NEUTRON_STATUS_OK) {
      status = neutron_run(&handle->model, &run);
    }
    if (around != nullptr && around->leave != nullptr) {
      around->leave(around->context, &handle->model);
    }
    if (status != NEUTRON_STATUS_OK) {
      handle->started = resets - 1; // its state may be half written: the next run begins a sequence
      char text[kMessageBytes];
      ET_LOG(Error, "%s: %s", kName, neutron_describe(&handle->model, status, text, sizeof(text)));
      return Error::Internal;
    }
    return write_back(handle, args);
  }

  void destroy(DelegateHandle* opaque) const override {
    auto* handle = static_cast<Handle*>(opaque);
    if (handle != nullptr) {
      handle->processed->Free();
      handle->~Handle(); // its memory is the method's
    }
  }

 private:
  static const NeutronThreads* threads() {
#ifdef NEUTRON_BACKEND_THREADS
    return backend_threads();
#else
    return nullptr;
#endif
  }

  // The word that ends a run.
  static const volatile uint32_t* stop(const NeutronBackendHooks* around) {
#ifdef NEUTRON_BACKEND_THREADS
    if (around == nullptr || around->stop == nullptr) {
      return backend_stop();
    }
#endif
    return around != nullptr ? around->stop : nullptr;
  }

  // The memory for activations that the program lends, if it is aligned.
  static Error borrow(const Handle* handle, EValue& value, NeutronBuffer* scratch) {
    if (!value.isTensor() || value.toTensor().nbytes() < handle->model.scratch_bytes) {
      ET_LOG(Error, "%s: the memory planned for activations is no tensor of %u bytes", kName,
             static_cast<unsigned>(handle->model.scratch_bytes));
      return Error::InvalidProgram;
    }
    void* data = value.toTensor().mutable_data_ptr();
    if (is_aligned(data)) {
      *scratch = NeutronBuffer{data, value.toTensor().nbytes()};
    }
    return Error::Ok;
  }

  static bool overlap(const Tensor& tensor, const NeutronBuffer& scratch) {
    const auto tensor_at = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    const auto scratch_at = reinterpret_cast<uintptr_t>(scratch.data);
    return tensor_at < scratch_at + scratch.bytes && scratch_at < tensor_at + tensor.nbytes();
  }

  // Give the runtime the tensor of a port, or a transposed copy of it: in its place in scratch, if it has one and the
  // tensor itself is elsewhere. What is not in its place the runtime copies.
  static Error bind(Handle* handle, Span<EValue*> args, size_t port, const NeutronBuffer& scratch,
                    MemoryAllocator* allocator) {
    const Tensor* tensor = find_tensor(handle, args, port);
    if (tensor == nullptr) {
      return Error::InvalidArgument;
    }
    const bool transposed = needs_transpose(handle, port, *tensor);
    const bool is_input = port < handle->payload.inputs;
    void* copy = nullptr;
    if (transposed && !overlap(*tensor, scratch)) {
      copy = neutron_place(
          is_input ? &handle->model.inputs[port] : &handle->model.outputs[port - handle->payload.inputs], scratch.data);
    }
    if (transposed && copy == nullptr) {
      copy = allocate(allocator, tensor->nbytes(), "a transposed tensor");
    }
    if (transposed && copy == nullptr) {
      return Error::MemoryAllocationFailed;
    }
    if (!is_input) {
      void* data = transposed ? copy : tensor->mutable_data_ptr();
      handle->outputs[port - handle->payload.inputs] = NeutronBuffer{data, tensor->nbytes()};
      return Error::Ok;
    }
    if (transposed && !transpose_tensor(*tensor, tensor->const_data_ptr(), copy, true)) {
      return Error::NotSupported;
    }
    handle->inputs[port] = NeutronConstBuffer{transposed ? copy : tensor->const_data_ptr(), tensor->nbytes()};
    return Error::Ok;
  }

  // Outputs the runtime wrote channels last, into the caller's channels-first tensors.
  static Error write_back(Handle* handle, Span<EValue*> args) {
    const Payload& payload = handle->payload;
    for (size_t port = payload.inputs; port < static_cast<size_t>(payload.inputs) + payload.outputs; ++port) {
      const Tensor& tensor = args[payload.maps[port] + static_cast<size_t>(payload.input_args)]->toTensor();
      const void* written = handle->outputs[port - payload.inputs].data;
      if (written != tensor.const_data_ptr() && !transpose_tensor(tensor, written, tensor.mutable_data_ptr(), false)) {
        return Error::NotSupported;
      }
    }
    return Error::Ok;
  }
};

NeutronBackend backend;
// A second registration (another library with a backend of this name) is reported by ExecuTorch and ignored here.
[[maybe_unused]] const Error registered = executorch::runtime::register_backend(Backend{kName, &backend});

} // namespace
} // namespace openneutron

extern "C" void neutron_backend_reset(void) {
  openneutron::resets = openneutron::resets + 1;
}

extern "C" void neutron_backend_set_hooks(const NeutronBackendHooks* hooks) {
  openneutron::application_hooks = hooks;
}
