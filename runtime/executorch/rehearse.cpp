// neutron_rehearse FILE.pte: load every method of a program and run it once on zeros.
//
// A damaged program can end the process that runs it, in a kernel that asserts or by a wild address. Python lets
// this process try first. The exit code is 0, or 1 if ExecuTorch reported an error; a signal means damage.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

using executorch::aten::DimOrderType;
using executorch::aten::SizesType;
using executorch::extension::Module;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Program;
using executorch::runtime::Tag;

namespace {

bool run(Module& module, const std::string& name) {
  auto meta = module.method_meta(name);
  if (!meta.ok()) {
    return false;
  }
  std::vector<executorch::extension::TensorPtr> tensors;
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
    std::vector<SizesType> sizes(info->sizes().begin(), info->sizes().end());
    std::vector<DimOrderType> order(info->dim_order().begin(), info->dim_order().end());
    std::vector<uint8_t> zeros(info->nbytes());
    tensors.push_back(executorch::extension::make_tensor_ptr(
        std::move(sizes), std::move(zeros), std::move(order), {}, info->scalar_type()));
    inputs.emplace_back(*tensors.back());
  }
  return module.execute(name, inputs).ok();
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FILE.pte\n", argv[0]);
    return 2;
  }
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
    good = run(module, name) && good;
  }
  return good ? 0 : 1;
}
