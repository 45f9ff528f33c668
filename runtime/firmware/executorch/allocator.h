// ExecuTorch's allocator over a pool, which keeps the most that was in use and names a pool that is too small.
#pragma once

#include <executorch/runtime/core/memory_allocator.h>

#include "pools.h"
#include "semihosting.h"

namespace firmware {

class PoolAllocator final : public executorch::runtime::MemoryAllocator {
 public:
  explicit PoolAllocator(const FirmwarePool& pool) : MemoryAllocator(pool.bytes, pool.data), pool_(pool) {}

  void* allocate(size_t size, size_t alignment) override {
    void* memory = MemoryAllocator::allocate(size, alignment);
    if (memory == nullptr) {
      semihosting_text("error pool ");
      semihosting_text(pool_.name);
      semihosting_text(" is too small: ");
      semihosting_number(used_size() + size);
      semihosting_text(" bytes or more are needed\n");
    }
    peak_ = used_size() > peak_ ? used_size() : peak_;
    return memory;
  }

  size_t peak() const {
    return peak_;
  }

 private:
  const FirmwarePool& pool_;
  size_t peak_ = 0;
};

} // namespace firmware
