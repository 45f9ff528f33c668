// fail_allocations FILE.pte [run]: run a program again and again; in round n the nth allocation, and all after it, fail.
//
// Counted is what ExecuTorch's allocators are asked for (a method's own, and the temporary one of a run), and what
// `new` is asked for while a method is loaded and run. A round ends with a status, never with the process; the last,
// in which nothing fails, gives the first one's outputs. With `run` nothing fails when the method is loaded: ExecuTorch
// itself does not check each of its own allocations. Prints how many rounds failed when loading and when running.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <vector>

#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/executor/program.h>

#include "neutron_backend.h"

using namespace executorch::runtime;

namespace {

constexpr size_t kNever = SIZE_MAX;
size_t asked = 0, fail_at = kNever;
bool counting = false, count_loading = true;

bool fails() { return counting && asked++ >= fail_at; }

// Each allocation is a block of its own, so that the address sanitizer sees its ends.
class Heap final : public MemoryAllocator {
   public:
    Heap() : MemoryAllocator(0, nullptr) {}
    ~Heap() override { reset(); }
    void *allocate(size_t bytes, size_t alignment) override {
        if (fails()) return nullptr;
        const bool before = std::exchange(counting, false);
        blocks_.push_back(std::aligned_alloc(alignment < 16 ? 16 : alignment, (bytes + 63) / 64 * 64 + 64));
        counting = before;
        return blocks_.back();
    }
    void reset() override {
        for (void *block : blocks_) std::free(block);
        blocks_.clear();
    }

   private:
    std::vector<void *> blocks_;
};

// Segments lie at odd addresses, so that the delegate needs copies.
class Loader final : public DataLoader {
   public:
    explicit Loader(std::vector<uint8_t> data) : data_(std::move(data)) {}
    Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo &info) const override {
        const size_t shift = info.segment_type == SegmentInfo::Type::Program ? 0 : 4;
        auto *copy = static_cast<uint8_t *>(std::aligned_alloc(64, (size + shift + 63) / 64 * 64));
        std::memcpy(copy + shift, data_.data() + offset, size);
        return FreeableBuffer(copy + shift, size, [](void *context, void *, size_t) { std::free(context); }, copy);
    }
    Result<size_t> size() const override { return data_.size(); }

   private:
    std::vector<uint8_t> data_;
};

enum class End { kLoading, kRunning, kDone };

End try_method(const Program &program, std::vector<uint8_t> *outputs) {
    const auto meta = program.method_meta("forward");
    std::vector<std::vector<uint8_t>> memory;
    std::vector<Span<uint8_t>> spans;
    for (size_t i = 0; i < meta->num_memory_planned_buffers(); ++i)
        memory.emplace_back(static_cast<size_t>(*meta->memory_planned_buffer_size(i)));
    for (auto &each : memory) spans.emplace_back(each.data(), each.size());
    HierarchicalAllocator planned({spans.data(), spans.size()});
    Heap own, temporary;
    MemoryManager manager(&own, &planned, &temporary);
    asked = 0;
    counting = count_loading;
    Result<Method> method = program.load_method("forward", &manager);
    if (!method.ok()) {
        counting = false;
        return End::kLoading;
    }
    counting = false;
    std::vector<executorch::extension::TensorPtr> tensors;
    for (size_t i = 0; i < meta->num_inputs(); ++i) {
        const auto info = meta->input_tensor_meta(i);
        tensors.push_back(executorch::extension::make_tensor_ptr(
            {info->sizes().begin(), info->sizes().end()}, std::vector<uint8_t>(info->nbytes()),
            {info->dim_order().begin(), info->dim_order().end()}, {}, info->scalar_type()));
        if (method->set_input(EValue(*tensors.back()), i) != Error::Ok) std::abort();
    }
    counting = true;
    const Error status = method->execute();
    counting = false;
    if (status != Error::Ok) return End::kRunning;
    for (size_t i = 0; i < method->outputs_size(); ++i) {
        const auto &tensor = method->get_output(i).toTensor();
        const auto *data = static_cast<const uint8_t *>(tensor.const_data_ptr());
        outputs->insert(outputs->end(), data, data + tensor.nbytes());
    }
    return End::kDone;
}

} // namespace

void *operator new(size_t bytes) {
    void *memory = fails() ? nullptr : std::malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, size_t) noexcept { std::free(memory); }

int main(int argc, char **argv) {
    count_loading = argc == 2;
    std::ifstream file(argv[1], std::ios::binary);
    Loader loader(std::vector<uint8_t>(std::istreambuf_iterator<char>(file), {}));
    Result<Program> program = Program::load(&loader);
    if (!program.ok()) return 2;
    std::vector<uint8_t> expected;
    if (try_method(*program, &expected) != End::kDone) return 3;
    unsigned ends[3] = {0, 0, 0};
    for (size_t n = 0; n < 10000; ++n) {
        fail_at = n;
        std::vector<uint8_t> outputs;
        const End end = try_method(*program, &outputs);
        ++ends[static_cast<int>(end)];
        if (end == End::kDone) {
            std::printf("%u loading, %u running\n", ends[0], ends[1]);
            return outputs == expected && asked <= n ? 0 : 4;
        }
    }
    return 5;
}
