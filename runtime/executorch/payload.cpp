#include "payload.h"

#include <cstring>

#include "neutron.h"

namespace openneutron {
namespace {

constexpr uint32_t kStockMagic = 0x64434D6Eu;
constexpr size_t kMicrocodeWord = 6, kWeightsWord = 7, kInputsWord = 11, kOutputsWord = 12;
constexpr size_t kWords = kOutputsWord + 1;

uint64_t aligned(uint64_t size) {
  return (size + NEUTRON_ALIGNMENT - 1) / NEUTRON_ALIGNMENT * NEUTRON_ALIGNMENT;
}

uint32_t word(const uint8_t* microcode, size_t index) {
  uint32_t value; // the payload may lie at any address, and this code runs on little-endian machines only
  std::memcpy(&value, microcode + 4 * index, sizeof(value));
  return value;
}

} // namespace

PayloadStatus parse_payload(const void* data, size_t bytes, Payload* payload, const char** problem) {
  const auto* raw = static_cast<const uint8_t*>(data);
  *problem = "the payload is shorter than its header";
  if (raw == nullptr || bytes < 4) {
    return PayloadStatus::kDamaged;
  }
  const size_t ports = static_cast<size_t>(raw[0]) + raw[1];
  const size_t header = 4 + 2 * ports;
  const uint64_t microcode_at = aligned(header);
  if (bytes < microcode_at + 4 * kWords) {
    return PayloadStatus::kDamaged;
  }
  *payload = Payload{raw[0], raw[1], raw[2], raw + 3, raw + 3 + ports, raw + microcode_at, nullptr, 0, 0};

  // The magic comes before everything else: the words of NXP's profiling microcode lie elsewhere.
  const uint32_t magic = word(payload->microcode, 0);
  if (magic == kStockMagic) {
    *problem = "the payload was made by NXP's converter (eiq_neutron_sdk) and runs on NXP's runtime only; compile "
               "the model with the open converter to run it here";
    return PayloadStatus::kStockRuntime;
  }
  if (magic != NEUTRON_MAGIC) {
    *problem = "the payload holds no OpenNeutron microcode";
    return PayloadStatus::kDamaged;
  }
  if (raw[header - 1] != 0) {
    *problem = "the payload has a version this runtime does not know; compile the model again";
    return PayloadStatus::kNewer;
  }
  for (size_t i = 0; i < ports; ++i) {
    const bool input = i < payload->inputs;
    const size_t arguments = input ? payload->input_args : payload->outputs;
    if (payload->formats[i] > kChannelsLast || payload->maps[i] >= arguments) {
      *problem = "the payload's header has a format flag or a map entry out of range";
      return PayloadStatus::kDamaged;
    }
  }
  if (word(payload->microcode, kInputsWord) != payload->inputs ||
      word(payload->microcode, kOutputsWord) != payload->outputs) {
    *problem = "the payload's header and its microcode differ in the number of inputs or outputs";
    return PayloadStatus::kDamaged;
  }
  payload->microcode_bytes = word(payload->microcode, kMicrocodeWord);
  payload->weights_bytes = word(payload->microcode, kWeightsWord);
  const uint64_t weights_at = microcode_at + aligned(payload->microcode_bytes);
  if (weights_at + payload->weights_bytes > bytes) {
    *problem = "the payload is shorter than its microcode and weights";
    return PayloadStatus::kDamaged;
  }
  payload->weights = raw + weights_at;
  return PayloadStatus::kOk;
}

} // namespace openneutron
