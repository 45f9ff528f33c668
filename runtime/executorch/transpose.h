// Channels first <-> channels last, for tensors the payload asks the runtime to transpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace openneutron {

// Write `batch` matrices of rows x columns elements transposed.
template <typename Element>
void transpose(const void* from, void* to, size_t batch, size_t rows, size_t columns) {
  const auto* source = static_cast<const Element*>(from);
  auto* target = static_cast<Element*>(to);
  for (size_t b = 0; b < batch; ++b, source += rows * columns, target += rows * columns) {
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < columns; ++c) {
        target[c * rows + r] = source[r * columns + c];
      }
    }
  }
}

// The same for an element size known at run time; false if there is no such element type.
inline bool transpose(const void* from, void* to, size_t batch, size_t rows, size_t columns, size_t element) {
  switch (element) {
    case 1: transpose<uint8_t>(from, to, batch, rows, columns); return true;
    case 2: transpose<uint16_t>(from, to, batch, rows, columns); return true;
    case 4: transpose<uint32_t>(from, to, batch, rows, columns); return true;
    case 8: transpose<uint64_t>(from, to, batch, rows, columns); return true;
    default: return false;
  }
}

} // namespace openneutron
