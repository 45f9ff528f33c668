// The delegate payload as the runtime reads it; `openneutron/package/payload.py` defines its bytes.
//
//     header | microcode | weights | kernels          each part padded to 16 bytes
//
// Header: nInputs, nOutputs, nInputArgs, inputFormat[nInputs], outputFormat[nOutputs], inputMap[nInputs],
// outputMap[nOutputs], payloadVersion: one byte each; the numbers are in the generated neutron_payload.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace openneutron {

// A view into the payload's bytes, which must outlive it.
struct Payload {
  uint8_t inputs, outputs, input_args;
  const uint8_t* formats; // inputs, then outputs
  const uint8_t* maps;    // likewise
  const uint8_t* microcode;
  const uint8_t* weights;
  uint32_t microcode_bytes, weights_bytes;
};

// Whether a payload is whole and made for this runtime.
enum class PayloadStatus {
  kOk,
  kDamaged,
  kStockRuntime, // of NXP's converter
  kNewer,        // of a payload version this runtime does not know
};

// Take a payload apart. Never reads past `bytes`, whatever they are; `problem` is a sentence for the user.
PayloadStatus parse_payload(const void* data, size_t bytes, Payload* payload, const char** problem);

} // namespace openneutron
