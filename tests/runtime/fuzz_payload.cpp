// Fuzz target: whatever the bytes of a payload are, what parse_payload points to lies in them.
//
//     fuzz_payload FILE       FILE holds {u32 bytes, payload}*
//
// LLVMFuzzerTestOneInput is the same for libFuzzer (tests/runtime/learn.py).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "neutron.h"
#include "payload.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    // A heap block of exactly these bytes, at an address as odd as the payload says: ExecuTorch loads it anywhere.
    const size_t shift = bytes != 0 ? data[bytes - 1] % 16 : 0;
    std::vector<uint8_t> block(shift + bytes);
    if (bytes != 0) {
        std::memcpy(block.data() + shift, data, bytes);
    }
    openneutron::Payload payload;
    const char *problem = nullptr;
    const auto status = openneutron::parse_payload(block.data() + shift, bytes, &payload, &problem);
    if (problem == nullptr || std::strlen(problem) == 0) {
        std::abort();
    }
    if (status != openneutron::PayloadStatus::kOk) {
        return 0;
    }
    const size_t ports = static_cast<size_t>(payload.inputs) + payload.outputs;
    unsigned sum = 0;
    for (size_t i = 0; i < ports; ++i) {
        sum += payload.formats[i] + payload.maps[i];
    }
    // Exact copies, so that a size which is wrong by a byte is a fault.
    std::vector<uint32_t> code((payload.microcode_bytes + 3) / 4);
    if (!code.empty()) {
        std::memcpy(code.data(), payload.microcode, payload.microcode_bytes);
    }
    void *weights = std::aligned_alloc(16, (payload.weights_bytes + 15) / 16 * 16 + 16);
    std::memcpy(weights, payload.weights, payload.weights_bytes);
    NeutronModel model;
    const NeutronImage image = {
        {code.empty() ? weights : code.data(), payload.microcode_bytes}, {weights, payload.weights_bytes}, 1, 0};
    char text[64];
    neutron_describe(&model, neutron_prepare(&model, &image), text, sizeof text);
    std::free(weights);
    return sum == 0xFFFFFFFFu;
}

#ifndef FUZZ_COVERAGE
int main(int count, char **arguments) {
    std::FILE *file = count == 2 ? std::fopen(arguments[1], "rb") : nullptr;
    if (file == nullptr) {
        return 2;
    }
    uint32_t bytes = 0;
    unsigned runs = 0;
    for (; std::fread(&bytes, sizeof bytes, 1, file) == 1; ++runs) {
        std::vector<uint8_t> data(bytes);
        if (bytes != 0 && std::fread(data.data(), bytes, 1, file) != 1) {
            return 2;
        }
        LLVMFuzzerTestOneInput(data.data(), bytes);
    }
    std::printf("%u payloads\n", runs);
    return 0;
}
#endif
