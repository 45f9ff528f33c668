// neutron_runner: runs a program on files of raw tensors, with the arguments and folders of ExecuTorch's host runner
// for NXP's simulator (`nxp_executor_runner`), on OpenNeutron's simulator.
//
//   --model FILE.pte   --output FOLDER (default: results)
//   --dataset FOLDER   each file in it is one sample of the program's only input
//   --inputs A,B,...   folders: each is one sample, its files in order of their names are the inputs; or files: one
//                      sample, a file for each input
//   --firmware, --nsys, --nsys_config are accepted: they name NXP's simulator, which is not needed
//   --help
//
// The outputs of a sample are FOLDER/<its name>/0000.bin, 0001.bin and so on; a program with one output also gets its
// largest element in FOLDER/results.txt. FOLDER/trace.etdump holds the events of all runs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <executorch/devtools/etdump/etdump_flatcc.h>
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

using executorch::aten::DimOrderType;
using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::etdump::ETDumpGen;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::MethodMeta;
using executorch::runtime::TensorInfo;

namespace {

struct Sample {
  std::string name; // the folder its outputs are written to
  std::vector<std::string> files;
};

const char* const usage =
    "neutron_runner --model FILE.pte (--dataset FOLDER | --inputs A,B,...) [--output FOLDER]\n"
    "  --dataset FOLDER  each file in it is one sample of the program's only input\n"
    "  --inputs A,B,...  folders: each is one sample, its files are the inputs; or files: one for each input\n"
    "  --output FOLDER   default: results\n"
    "  --firmware, --nsys, --nsys_config are accepted and not needed\n";

[[noreturn]] void stop(const std::string& problem) {
  std::fprintf(stderr, "neutron_runner: %s\n", problem.c_str());
  std::exit(1);
}

std::map<std::string, std::string> parse(int argc, char** argv) {
  const std::vector<std::string> known = {"model", "dataset", "inputs", "output", "firmware", "nsys", "nsys_config"};
  std::map<std::string, std::string> found;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const size_t dashes = word.rfind("--", 0) == 0 ? 2 : 1;
    if (word.empty() || word[0] != '-') {
      stop("'" + word + "' is not an option");
    }
    word = word.substr(dashes);
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (name == "help" || name == "h") {
      std::fputs(usage, stdout);
      std::exit(0);
    }
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      stop("there is no option --" + name);
    }
    if (equals != std::string::npos) {
      found[name] = word.substr(equals + 1);
    } else if (++i < argc) {
      found[name] = argv[i];
    } else {
      stop("--" + name + " needs a value");
    }
  }
  return found;
}

// std::filesystem and stat would ask for newer libraries than the wheel's platform promises.
bool is_folder(const std::string& path) {
  DIR* listing = opendir(path.c_str());
  return listing != nullptr && closedir(listing) == 0;
}

std::string last_name(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return path.substr(path.rfind('/') + 1); // npos + 1 is 0: the whole of a path without a slash
}

void make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    mkdir(path.substr(0, end).c_str(), 0777);
  }
  mkdir(path.c_str(), 0777); // what could not be made is said when a file in it cannot be written
}

std::vector<std::string> entries(const std::string& folder) {
  DIR* listing = opendir(folder.c_str());
  if (listing == nullptr) {
    stop(folder + " is not a folder that can be read");
  }
  std::vector<std::string> found;
  while (const dirent* entry = readdir(listing)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") {
      found.push_back(folder + '/' + name);
    }
  }
  closedir(listing);
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<Sample> samples(std::map<std::string, std::string>& options) {
  std::vector<Sample> found;
  if (options.count("dataset")) {
    for (const std::string& file : entries(options["dataset"])) {
      found.push_back({last_name(file), {file}});
    }
    return found;
  }
  std::vector<std::string> given;
  std::stringstream list(options["inputs"]);
  for (std::string item; std::getline(list, item, ',');) {
    given.emplace_back(item);
  }
  if (!given.empty() && std::all_of(given.begin(), given.end(), is_folder)) {
    for (const std::string& folder : given) {
      found.push_back({last_name(folder), entries(folder)});
    }
    return found;
  }
  return given.empty() ? found : std::vector<Sample>{{".", given}};
}

// Each sample has a folder of its own for its outputs, below the one that was given.
void check_names(const std::vector<Sample>& found) {
  std::set<std::string> names;
  for (const Sample& sample : found) {
    if (sample.name == ".." || !names.insert(sample.name).second) {
      stop(sample.name == ".." ? "'..' is no name of a sample" : "two samples are called '" + sample.name + "'");
    }
  }
  if (found.empty()) {
    stop("there is no sample");
  }
}

std::vector<uint8_t> read_input(const std::string& path, const TensorInfo& info) {
  // Not blocking: a FIFO would wait for its writer. A byte more than is needed tells that a file has too many.
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  std::vector<uint8_t> data(info.nbytes() + 1);
  size_t size = 0;
  ssize_t some = file < 0 ? -1 : 1;
  while (some > 0 && size < data.size()) {
    some = read(file, data.data() + size, data.size() - size);
    size += some > 0 ? static_cast<size_t>(some) : 0;
  }
  if (file < 0 || some < 0) {
    stop(path + " cannot be read");
  }
  close(file);
  data.resize(size);
  if (size == info.nbytes()) {
    return data;
  }
  if (info.scalar_type() != ScalarType::Float || size * sizeof(float) != info.nbytes()) {
    const bool more = size > info.nbytes();
    stop(path + " has " + (more ? "more than " + std::to_string(size - 1) : std::to_string(size)) +
         " bytes, the input needs " + std::to_string(info.nbytes()));
  }
  // Bytes for a float input, as images come.
  const std::vector<float> wide(data.begin(), data.end());
  const auto* bytes = reinterpret_cast<const uint8_t*>(wide.data());
  return {bytes, bytes + info.nbytes()};
}

std::vector<EValue> load(const Sample& sample, const MethodMeta& meta, std::vector<TensorPtr>& tensors) {
  if (meta.num_inputs() != sample.files.size()) {
    stop("the program has " + std::to_string(meta.num_inputs()) + " inputs, sample '" + sample.name + "' has " +
         std::to_string(sample.files.size()));
  }
  std::vector<EValue> values;
  for (size_t i = 0; i < sample.files.size(); ++i) {
    auto info = meta.input_tensor_meta(i);
    if (!info.ok()) {
      stop("input " + std::to_string(i) + " is not a tensor");
    }
    tensors.push_back(executorch::extension::make_tensor_ptr(
        std::vector<SizesType>(info->sizes().begin(), info->sizes().end()), read_input(sample.files[i], *info),
        std::vector<DimOrderType>(info->dim_order().begin(), info->dim_order().end()), {}, info->scalar_type()));
    values.emplace_back(*tensors.back());
  }
  return values;
}

template <typename T>
std::pair<size_t, double> largest(const Tensor& tensor) {
  const T* data = tensor.const_data_ptr<T>();
  const T* found = std::max_element(data, data + tensor.numel());
  return {static_cast<size_t>(found - data), static_cast<double>(*found)};
}

std::pair<size_t, double> largest_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Byte: return largest<uint8_t>(tensor);
    case ScalarType::Char: return largest<int8_t>(tensor);
    case ScalarType::Short: return largest<int16_t>(tensor);
    case ScalarType::Int: return largest<int32_t>(tensor);
    case ScalarType::Long: return largest<int64_t>(tensor);
    case ScalarType::Float: return largest<float>(tensor);
    case ScalarType::Double: return largest<double>(tensor);
    default:
      stop("an output of type " + std::to_string(static_cast<int>(tensor.scalar_type())) + " has no largest element");
  }
}

// What the program says of a sample, if it is a classifier.
void append_result(const std::string& folder, const std::string& name, const Tensor& tensor) {
  if (tensor.numel() == 0) {
    return;
  }
  const auto [index, value] = largest_of(tensor);
  std::printf("Top1 class %s = %zu\nConfidence = %g\n", name.c_str(), index, value);
  char confidence[400]; // %f of the largest double has 309 digits before the point
  std::snprintf(confidence, sizeof(confidence), "%f", value);
  std::ofstream(folder + "/results.txt", std::ios::app) << name << ' ' << index << ' ' << confidence << " \n";
}

void write(const std::string& path, const void* data, size_t bytes) {
  std::ofstream file(path, std::ios::binary);
  if (!file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes))) {
    stop(path + " cannot be written");
  }
}

void save(const std::vector<EValue>& outputs, const std::string& folder) {
  make_folders(folder);
  for (size_t i = 0; i < outputs.size(); ++i) {
    char name[32];
    std::snprintf(name, sizeof(name), "%04zu.bin", i);
    if (outputs[i].isTensor()) {
      const Tensor& tensor = outputs[i].toTensor();
      write(folder + '/' + name, tensor.const_data_ptr(), tensor.nbytes());
    }
  }
}

} // namespace

extern "C" int neutron_use_cpu_kernels();

int main(int argc, char** argv) {
  neutron_use_cpu_kernels();
  auto options = parse(argc, argv);
  if (options["model"].empty()) {
    stop("--model FILE.pte is missing");
  }
  if (options.count("dataset") == options.count("inputs")) {
    stop("give one of --dataset FOLDER and --inputs A,B,...");
  }
  const std::string output = options["output"].empty() ? "results" : options["output"];
  auto tracer = std::make_unique<ETDumpGen>();
  ETDumpGen* events = tracer.get();
  Module module(options["model"], Module::LoadMode::File, std::move(tracer));
  auto names = module.method_names();
  if (!names.ok() || names->empty()) {
    stop(options["model"] + " is not a program that ExecuTorch loads");
  }
  const std::string method = names->count("forward") ? "forward" : *names->begin();
  if (const Error error = module.load_method(method); error != Error::Ok) {
    stop("method " + method + " cannot be loaded, error " + std::to_string(static_cast<int>(error)));
  }
  auto meta = module.method_meta(method);
  const std::vector<Sample> found = samples(options);
  check_names(found);
  for (const Sample& sample : found) {
    std::vector<TensorPtr> tensors;
    auto outputs = module.execute(method, load(sample, *meta, tensors));
    if (!outputs.ok()) {
      stop("method " + method + " failed on sample '" + sample.name + "', error " +
           std::to_string(static_cast<int>(outputs.error())));
    }
    save(*outputs, output + '/' + sample.name);
    if (options.count("dataset") && outputs->size() == 1 && outputs->front().isTensor()) {
      append_result(output, sample.name, outputs->front().toTensor());
    }
  }
  const auto trace = events->get_etdump_data();
  if (trace.buf != nullptr && trace.size > 0) {
    make_folders(output);
    write(output + "/trace.etdump", trace.buf, trace.size);
    std::free(trace.buf);
  }
  return 0;
}
