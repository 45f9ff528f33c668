// Test support: runs every method of a program in ExecuTorch's runtime with whatever kernels are linked.
//
//     chip PROGRAM.pte INPUTS.bin OUTPUTS.bin ROUNDS
//
// All methods take the same inputs; INPUTS.bin has them one after the other, ROUNDS times. OUTPUTS.bin gets, for every
// round and method, a byte that says whether the method ran, and then its output of the method's number.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

using namespace executorch::runtime;

namespace {

std::vector<char> read(const char *path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

struct Loaded {
    // Of every method's own: a kernel that writes past a buffer of malloc's is found by the address sanitizer.
    std::vector<std::unique_ptr<uint8_t[]>> buffers;
    std::vector<Span<uint8_t>> spans;
    std::unique_ptr<uint8_t[]> method_memory{new uint8_t[1 << 20]}, temporary_memory{new uint8_t[1 << 20]};
    MemoryAllocator method_allocator{1 << 20, method_memory.get()}, temporary{1 << 20, temporary_memory.get()};
    std::unique_ptr<HierarchicalAllocator> planned;
    std::unique_ptr<MemoryManager> manager;
    std::unique_ptr<Result<Method>> method;
};

} // namespace

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    runtime_init();
    const std::vector<char> data = read(argv[1]), inputs = read(argv[2]);
    std::ofstream outputs(argv[3], std::ios::binary);
    void *aligned = nullptr;
    if (posix_memalign(&aligned, 128, data.size()) != 0) return 2;
    std::memcpy(aligned, data.data(), data.size());
    executorch::extension::BufferDataLoader loader(aligned, data.size());
    Result<Program> program = Program::load(&loader);
    if (!program.ok()) return 3;
    std::vector<Loaded> methods(program->num_methods());
    for (size_t i = 0; i < methods.size(); ++i) {
        const char *name = *program->get_method_name(i);
        const Result<MethodMeta> meta = program->method_meta(name);
        Loaded &at = methods[i];
        for (size_t b = 0; b < meta->num_memory_planned_buffers(); ++b) {
            const size_t bytes = static_cast<size_t>(meta->memory_planned_buffer_size(b).get());
            at.buffers.emplace_back(new uint8_t[bytes]);
            at.spans.push_back({at.buffers.back().get(), bytes});
        }
        at.planned = std::make_unique<HierarchicalAllocator>(Span<Span<uint8_t>>{at.spans.data(), at.spans.size()});
        at.manager = std::make_unique<MemoryManager>(&at.method_allocator, at.planned.get(), &at.temporary);
        at.method = std::make_unique<Result<Method>>(program->load_method(name, at.manager.get()));
        if (!at.method->ok()) {
            std::fprintf(stderr, "%s cannot be loaded: %d\n", name, static_cast<int>(at.method->error()));
            return 4;
        }
    }
    const int rounds = std::atoi(argv[4]);
    size_t from = 0;
    for (int round = 0; round < rounds; ++round) {
        const size_t begin = from;
        for (size_t i = 0; i < methods.size(); ++i) {
            Method &method = **methods[i].method;
            from = begin;
            for (size_t n = 0; n < method.inputs_size(); ++n) {
                const auto &tensor = method.mutable_input(n).toTensor();
                std::memcpy(tensor.mutable_data_ptr(), inputs.data() + from, tensor.nbytes());
                from += tensor.nbytes();
            }
            const bool good = method.execute() == Error::Ok;
            const auto &result = method.get_output(i).toTensor();
            outputs.put(good ? 1 : 0);
            outputs.write(static_cast<const char *>(result.const_data_ptr()),
                          static_cast<std::streamsize>(result.nbytes()));
            if (!good) {
                method.reset_execution();
            }
        }
    }
    std::free(aligned);
    return 0;
}
