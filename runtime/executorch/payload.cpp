#include "payload.h"

#include <cstddef>
#include <cstring>

#include "neutron.h"
#include "neutron_payload.h"

namespace openneutron {
namespace {

constexpr size_t kFewestBytes = offsetof(NeutronHeader, outputs) + sizeof(uint32_t);

uint64_t aligned(uint64_t size) {
  return (size + NEUTRON_ALIGNMENT - 1) / NEUTRON_ALIGNMENT * NEUTRON_ALIGNMENT;
}

// A word of the microcode's header.
uint32_t word(const uint8_t* microcode, size_t offset) {
  uint32_t value; // the payload may lie at any address, and this code runs on little-endian machines only
  std::memcpy(&value, microcode + offset, sizeof(value));
  return value;
}

} // namespace

PayloadStatus parse_payload(const void* data, size_t bytes, Payload* payload, const char** problem) {
  const auto* raw = static_cast<const uint8_t*>(data);
  *problem = "the payload is shorter than its header";
  if (raw == nullptr || bytes < 4) {
    return PayloadStatus::kDamaged;
  }
  const uint8_t inputs = raw[NEUTRON_PAYLOAD_INPUTS], outputs = raw[NEUTRON_PAYLOAD_OUTPUTS];
  const size_t ports = static_cast<size_t>(inputs) + outputs;
  const size_t header = NEUTRON_PAYLOAD_PORTS + 2 * ports + 1;
  const uint64_t microcode_at = aligned(header);
  if (bytes < microcode_at + kFewestBytes) {
    return PayloadStatus::kDamaged;
  }
  const uint8_t* formats = raw + NEUTRON_PAYLOAD_PORTS;
  *payload = Payload{
      inputs, outputs, raw[NEUTRON_PAYLOAD_INPUT_ARGS], formats, formats + ports, raw + microcode_at, nullptr, 0, 0};

  // The magic comes before everything else: the words of NXP's profiling microcode lie elsewhere.
  const uint32_t magic = word(payload->microcode, offsetof(NeutronHeader, magic));
  if (magic == NEUTRON_PAYLOAD_STOCK_MAGIC) {
    *problem =
        "the payload was made by NXP's converter (eiq_neutron_sdk) and runs on NXP's runtime only; compile "
        "the model with the open converter to run it here";
    return PayloadStatus::kStockRuntime;
  }
  if (magic != NEUTRON_MAGIC) {
    *problem = "the payload holds no OpenNeutron microcode";
    return PayloadStatus::kDamaged;
  }
  if (raw[header - 1] != NEUTRON_PAYLOAD_VERSION) {
    *problem = "the payload has a version this runtime does not know; compile the model again";
    return PayloadStatus::kNewer;
  }
  for (size_t i = 0; i < ports; ++i) {
    const bool input = i < payload->inputs;
    const size_t arguments = input ? payload->input_args : payload->outputs;
    if (payload->formats[i] > NEUTRON_PAYLOAD_CHANNELS_LAST || payload->maps[i] >= arguments) {
      *problem = "the payload's header has a format flag or a map entry out of range";
      return PayloadStatus::kDamaged;
    }
  }
  if (word(payload->microcode, offsetof(NeutronHeader, inputs)) != payload->inputs ||
      word(payload->microcode, offsetof(NeutronHeader, outputs)) != payload->outputs) {
    *problem = "the payload's header and its microcode differ in the number of inputs or outputs";
    return PayloadStatus::kDamaged;
  }
  payload->microcode_bytes = word(payload->microcode, offsetof(NeutronHeader, microcode_bytes));
  payload->weights_bytes = word(payload->microcode, offsetof(NeutronHeader, weights_bytes));
  const uint64_t weights_at = microcode_at + aligned(payload->microcode_bytes);
  if (weights_at + payload->weights_bytes > bytes) {
    *problem = "the payload is shorter than its microcode and weights";
    return PayloadStatus::kDamaged;
  }
  payload->weights = raw + weights_at;
  return PayloadStatus::kOk;
}

} // namespace openneutron
