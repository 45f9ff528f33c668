// neutron_rehearse FILE.pte SECONDS [WORK]: load every method of a program and run it on zeros and on noise.
//
// A damaged program can end the process that runs it, in a kernel that asserts or by a wild address. Python lets
// this process try first. The exit code is 0, 1 if ExecuTorch did not load the program, 3 if a method did not run;
// a signal means damage. No more than SECONDS of CPU time and the machine's memory are taken; WORK is the most that
// a delegate may ask for, where it is not the runtime's own limit.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include "neutron_backend.h"

using executorch::aten::DimOrderType;
using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Program;
using executorch::runtime::Tag;
using executorch::runtime::TensorInfo;

namespace {

// Floats and bytes may be anything; a wide integer may be an index, for which only 0 is always right.
void fill(std::vector<uint8_t>& data, ScalarType type, uint32_t seed) {
  uint32_t state = seed * 2654435761u;
  for (size_t i = 0; i < data.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    if (seed != 0 && type == ScalarType::Float) {
      // Sign and exponent of a number between 2^-8 and 2^8, whatever its fraction.
      data[i] = static_cast<uint8_t>(i % 4 == 3 ? (state >> 31 << 7 | 0x3E | (state >> 25 & 1)) : state >> 24);
    } else if (seed != 0 && type == ScalarType::Char) {
      data[i] = static_cast<uint8_t>(state >> 24);
    }
  }
}

TensorPtr make_tensor(const TensorInfo& info, uint32_t seed) {
  std::vector<SizesType> sizes(info.sizes().begin(), info.sizes().end());
  std::vector<DimOrderType> order(info.dim_order().begin(), info.dim_order().end());
  std::vector<uint8_t> data(info.nbytes());
  fill(data, info.scalar_type(), seed);
  return executorch::extension::make_tensor_ptr(std::move(sizes), std::move(data), std::move(order), {},
                                                info.scalar_type());
}

bool run(Module& module, const std::string& name, uint32_t seed) {
  auto meta = module.method_meta(name);
  if (!meta.ok()) {
    return false;
  }
  std::vector<TensorPtr> tensors;
  std::vector<EValue> inputs;
  for (size_t i = 0; i < meta->num_inputs(); ++i) {
    auto tag = meta->input_tag(i);
    if (!tag.ok()) {
      return false;
    }
    if (*tag != Tag::Tensor) {
      inputs.emplace_back();
      continue;
    }
    auto info = meta->input_tensor_meta(i);
    if (!info.ok()) {
      return false;
    }
    tensors.push_back(make_tensor(*info, seed));
    inputs.emplace_back(*tensors.back());
  }
  // Outputs that the program plans no memory for are the caller's; constants refuse another place, and need none.
  for (size_t i = 0; i < meta->num_outputs(); ++i) {
    auto tag = meta->output_tag(i);
    if (!tag.ok() || *tag != Tag::Tensor) {
      continue;
    }
    auto info = meta->output_tensor_meta(i);
    if (!info.ok()) {
      return false;
    }
    if (!info->is_memory_planned()) {
      tensors.push_back(make_tensor(*info, 0));
      (void)module.set_output(name, *tensors.back(), i);
    }
  }
  return module.execute(name, inputs).ok();
}

} // namespace

void limit(int what, rlim_t most) {
  rlimit now{};
  if (getrlimit(what, &now) == 0 && (now.rlim_max == RLIM_INFINITY || most < now.rlim_max)) {
    const rlimit lower{most, most};
    setrlimit(what, &lower);
  }
}

extern "C" int neutron_use_cpu_kernels();

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: %s FILE.pte SECONDS [WORK]\n", argv[0]);
    return 2;
  }
  if (argc == 4) {
    neutron_backend_set_most_work(std::strtoull(argv[3], nullptr, 10));
  }
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, static_cast<rlim_t>(std::strtoul(argv[2], nullptr, 10)));
#ifndef __SANITIZE_ADDRESS__ // its shadow is larger than any memory
  limit(RLIMIT_AS, static_cast<rlim_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)));
#endif
  neutron_use_cpu_kernels();
  Module module(argv[1]);
  if (module.load(Program::Verification::InternalConsistency) != Error::Ok) {
    return 1;
  }
  auto names = module.method_names();
  if (!names.ok()) {
    return 1;
  }
  bool good = true;
  for (const std::string& name : *names) {
    good = run(module, name, 0) && run(module, name, 1) && good;
  }
  return good ? 0 : 3;
}
