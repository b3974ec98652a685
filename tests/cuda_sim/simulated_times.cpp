// What operators take on the virtual clock: a model in Python is asked once for each operator with tensors of some shapes.
#include <ATen/ATen.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "simulated_ops.h"

extern "C" void simulated_work(cudaStream_t stream, int64_t ns);
extern "C" void simulated_host_takes(int64_t ns);

namespace {

using Model = int64_t (*)(const char* op, const char* shapes);  // nanoseconds

Model model = nullptr;
std::atomic<int64_t> dispatch_ns{0};  // of the host, for each operator
std::mutex mutex;
auto* known = new std::map<std::string, int64_t>;

void append(std::string& text, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    text += "-;";
    return;
  }
  text += std::string(c10::toString(tensor.scalar_type())) + "[";
  for (int64_t size : tensor.sizes()) text += std::to_string(size) + ",";
  if (tensor.dim() > 0) text.pop_back();
  text += "];";
}

// As the engine's recorder writes them.
std::string text_of(const torch::jit::Stack& values) {
  std::string text;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) append(text, value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) append(text, tensor);
  }
  if (!text.empty()) text.pop_back();
  return text;
}

}  // namespace

void take_time(const std::string& op, const torch::jit::Stack& inputs, const torch::jit::Stack& outputs, cudaStream_t stream) {
  if (model == nullptr) return;
  const std::string shapes = text_of(inputs) + ">" + text_of(outputs), key = op + shapes;
  int64_t ns = -1;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (auto found = known->find(key); found != known->end()) ns = found->second;
  }
  if (ns < 0) {  // (the mutex is not held: the model waits for the interpreter)
    ns = model(op.c_str(), shapes.c_str());
    std::lock_guard<std::mutex> lock(mutex);
    (*known)[key] = ns;
  }
  simulated_host_takes(dispatch_ns);
  simulated_work(stream, ns);
}

extern "C" void simulated_times(Model new_model) { model = new_model; }
extern "C" void simulated_dispatch(int64_t ns) { dispatch_ns = ns; }
