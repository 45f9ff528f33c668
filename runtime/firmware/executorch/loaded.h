// A method of a program and the memory it works in: the pools, planned and given out anew for every method.
#pragma once

#include <optional>

#include "allocator.h"
#include "ports.h"
#include "tracer.h"

namespace firmware {

enum class LoadStep { kDone, kMeta, kPlan, kMethod };

struct Loaded {
  std::optional<PoolAllocator> memory, temporary;
  std::optional<Method> method;
  size_t planned_bytes = 0; // the most of all methods

  // The step that failed, if one did; why was printed. `beside`: another that stays loaded, in the same memory.
  LoadStep load(const executorch::runtime::Program& program, const char* name, Tracer* tracer,
                Loaded* beside = nullptr) {
    method.reset();
    const executorch::runtime::Result<MethodMeta> meta = program.method_meta(name);
    if (!meta.ok()) {
      failed(name, meta.error());
      return LoadStep::kMeta;
    }
    size_t count = 0;
    if (!plan(*meta, spans_, &count, &planned_bytes)) {
      return LoadStep::kPlan;
    }
    planned_.emplace(Span<Span<uint8_t>>(spans_, count));
    if (beside == nullptr) {
      memory.emplace(firmware_method_pool);
      temporary.emplace(firmware_temporary_pool);
    }
    Loaded& owner = beside != nullptr ? *beside : *this;
    manager_.emplace(&*owner.memory, &*planned_, &*owner.temporary);
    executorch::runtime::Result<Method> found = program.load_method(name, &*manager_, tracer);
    if (!found.ok()) {
      failed(name, found.error());
      return LoadStep::kMethod;
    }
    method.emplace(std::move(*found));
    ports.reset();
    if (!place_all(*method)) {
      failed(name, "an input or an output has no memory");
      return LoadStep::kPlan;
    }
    return LoadStep::kDone;
  }

 private:
  Span<uint8_t> spans_[kMostBuffers];
  std::optional<executorch::runtime::HierarchicalAllocator> planned_;
  std::optional<executorch::runtime::MemoryManager> manager_;
};

} // namespace firmware
