// Torch's CUDA operators on the simulated GPU: the CPU's operators, run when the stream comes to them.
//
// An operator's outputs are allocated at once, its addresses are taken at once, and the work is given to the current
// stream as a host function that reads and writes whatever lies at those addresses by then: as a kernel does. It needs
// no interpreter lock, which the thread that waits for the stream may have.
#include "simulated_ops.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/EmptyTensor.h>
#include <ATen/cuda/PeerToPeerAccess.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/copy_native.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

namespace {

using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

// On a GPU these take none where they write to what they are given, which the engine counts on (checksums.cpp).
const std::unordered_set<std::string> kNeedNoMemory = {"aten::add_", "aten::arange", "aten::bitwise_or_", "aten::bitwise_right_shift", "aten::bitwise_xor", "aten::bitwise_xor_", "aten::mul_"};
constexpr size_t kScratch = 4096;  // what every operator allocates for itself and writes to, besides its outputs

struct Launch {
  OperatorHandle op;
  Stack inputs;                     // on the CPU, lying where the GPU's do
  std::vector<at::Tensor> outputs;  // likewise; an undefined one: the operator's result is written to an input
  void* scratch;
};

extern "C" int simulated_may_reach(int device, const void* address);

// A kernel of the current device touches it, at both ends at least.
void check_reach(const at::Tensor& tensor) {
  int device = 0;
  cudaGetDevice(&device);
  const auto* data = static_cast<const char*>(tensor.const_data_ptr());
  const size_t bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
  const bool reaches = simulated_may_reach(device, data) && simulated_may_reach(device, data + bytes - 1);
  TORCH_CHECK(reaches, "CUDA error: an illegal memory access was encountered");
}

at::Tensor at_same_address(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor.is_cuda() && tensor.numel() != 0) check_reach(tensor);
  if (!tensor.is_cuda()) return tensor.dim() == 0 ? tensor.clone() : tensor;
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), options);
}

at::Tensor without_bytes(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

// A CPU tensor of the same shape, for operators that have no rule for device meta.
at::Tensor with_zeros(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU)).zero_();
}

template <typename Change>
IValue changed(const IValue& value, at::Device device, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isDevice() && value.toDevice().is_cuda()) return device;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional<at::Tensor>(change(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

template <typename Change>
Stack all_changed(const Stack& values, at::Device device, const Change& change) {
  Stack stack;
  for (const IValue& value : values) stack.push_back(changed(value, device, change));
  return stack;
}

// Where an operator runs: on the device of its first tensor, as torch's dispatcher has it, and a copy where it is from.
std::optional<at::Device> device_of(const c10::FunctionSchema& schema, const Stack& inputs) {
  if (schema.name() == "aten::copy_") return inputs[1].toTensor().device();
  for (const IValue& input : inputs) {
    const auto tensors = input.isTensor() ? std::vector<at::Tensor>{input.toTensor()}
                         : input.isTensorList() ? input.toTensorVector() : std::vector<at::Tensor>();
    for (const at::Tensor& tensor : tensors)
      if (tensor.defined() && tensor.is_cuda()) return tensor.device();
  }
  return std::nullopt;
}

// The operator's results, without their values.
Stack shapes_of_results(const OperatorHandle& op, const Stack& inputs) {
  try {
    Stack stack = all_changed(inputs, at::kMeta, without_bytes);
    op.callBoxed(stack);
    return stack;
  } catch (const c10::Error&) {
    Stack stack = all_changed(inputs, at::kCPU, with_zeros);
    op.callBoxed(stack);
    return stack;
  }
}

at::Tensor make_output(const at::Tensor& shape, Launch& launch) {
  at::Tensor made;
  if (shape.defined()) made = at::detail::empty_strided_cuda(shape.sizes(), shape.strides(), shape.scalar_type(), at::Device(at::kCUDA, c10::cuda::current_device()));
  launch.outputs.push_back(at_same_address(made));
  return made;
}

// Which argument a result is, for those that operators write to; -1: it is a new tensor.
int argument_of(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) return static_cast<int>(i);
  }
  return -1;
}

void write_result(const IValue& value, Launch& launch, size_t& next) {
  if (value.isTensor()) {
    const at::Tensor& place = launch.outputs[next++];
    if (place.defined()) place.copy_(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) write_result(tensor, launch, next);
  }
}

extern "C" int simulated_has_values();

void run(void* data) {
  std::unique_ptr<Launch> launch(static_cast<Launch*>(data));
  at::RecordFunctionGuard unseen(/*is_enabled=*/false);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  try {
    if (launch->scratch != nullptr) std::memset(launch->scratch, 0xEE, kScratch);
    Stack stack = launch->inputs;
    launch->op.callBoxed(stack);
    size_t next = 0;
    if (!launch->outputs.empty())
      for (const IValue& value : stack) write_result(value, *launch, next);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulated CUDA: %s failed: %s\n", launch->op.schema().name().c_str(), error.what());
    std::abort();
  }
}

}  // namespace

void simulate(const OperatorHandle& op, Stack* stack) {
  at::RecordFunctionGuard unseen(/*is_enabled=*/false);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::FunctionSchema& schema = op.schema();
  Stack inputs(stack->end() - static_cast<std::ptrdiff_t>(schema.arguments().size()), stack->end());
  torch::jit::drop(*stack, schema.arguments().size());
  c10::cuda::OptionalCUDAGuard guard(device_of(schema, inputs));
  auto launch = std::make_unique<Launch>(Launch{op, {}, {}, nullptr});
  bool in_place = schema.name().back() == '_' || schema.returns().empty();
  Stack shapes = in_place ? Stack() : shapes_of_results(op, inputs);
  Stack results;
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    int argument = argument_of(schema, schema.returns()[i]);
    if (argument >= 0) {
      at::Tensor out = inputs[static_cast<size_t>(argument)].toTensor();
      if (!in_place) at::native::resize_output(out, shapes[i].toTensor().sizes());
      results.push_back(out);
    } else if (shapes[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& shape : shapes[i].toTensorVector()) list.push_back(make_output(shape, *launch));
      results.push_back(list);
    } else {
      results.push_back(make_output(shapes[i].toTensor(), *launch));
    }
  }
  take_workspace(schema.name());
  const bool needs_memory = !launch->outputs.empty() || kNeedNoMemory.count(schema.name()) == 0;
  c10::DataPtr scratch = needs_memory ? c10::cuda::CUDACachingAllocator::get()->allocate(kScratch) : c10::DataPtr();
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  take_time(schema.name(), inputs, results, stream);
  if (simulated_has_values()) {
    launch->inputs = all_changed(inputs, at::kCPU, at_same_address);
    launch->scratch = scratch.get();
    TORCH_CHECK(cudaLaunchHostFunc(stream, &run, launch.release()) == cudaSuccess);
  }
  for (IValue& result : results) stack->push_back(std::move(result));
}

namespace {

// Copies that are plain bytes, or to and from the host, are torch's own, and so are those between GPUs of which one cannot
// reach the other: they go by way of such. The others are kernels of the GPU that is copied from.
at::Tensor& copy(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
  bool both = self.is_cuda() && from.is_cuda();
  bool plain = self.scalar_type() == from.scalar_type() && self.is_contiguous() && from.is_contiguous() && self.sizes() == from.sizes();
  if (!both || plain) return at::native::copy_(self, from, non_blocking);
  if (self.device() != from.device() && !at::cuda::get_p2p_access(from.device().index(), self.device().index()))
    return at::native::copy_(self, from, non_blocking);
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  Stack stack{self, from, non_blocking};
  simulate(op, &stack);
  return self;
}

bool equal(const at::Tensor& self, const at::Tensor& other) { return self.cpu().equal(other.cpu()); }

// One that writes to its input, though its schema says nothing of it. (Which of torch's do is not known.)
at::Tensor write_unsaid(const at::Tensor& input) {
  at::RecordFunctionGuard unseen(/*is_enabled=*/false);
  at::Tensor result = input * 1;
  at::Tensor(input).mul_(2);
  return result;
}

const std::unordered_set<std::string> kLeftAlone = {
    "aten::set_", "aten::resize_", "aten::record_stream", "aten::is_set_to", "aten::equal", "aten::native_dropout",
    "aten::nonzero", "aten::masked_select", "aten::_local_scalar_dense", "aten::_pin_memory", "aten::_efficientzerotensor",
};

// Whether the operator does nothing but compute tensors from what it is given.
bool is_pure(const c10::FunctionSchema& schema) {
  if (kLeftAlone.count(schema.name()) != 0 || schema.name().rfind("aten::empty", 0) == 0) return false;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.type()->str().find("Generator") != std::string::npos) return false;
    if (argument.alias_info() != nullptr && !argument.alias_info()->isWrite()) return false;  // a view
  }
  for (const c10::Argument& result : schema.returns())
    if (result.type()->str().find("Tensor") == std::string::npos) return false;
  return true;
}

struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

extern "C" int simulate_operators() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  static Silent silent;  // every one of them replaces a kernel
  c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  int count = 0;
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0 || !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
    if (!is_pure(op->schema())) continue;
    std::string own = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    library->impl(own.c_str(), torch::CppFunction::makeFromBoxedFunction<&simulate>());
    ++count;
  }
  for (const char* name : {"convolution", "convolution_backward"})  // of no device: torch chooses cuDNN for a GPU's
    library->impl(name, torch::CppFunction::makeFromBoxedFunction<&simulate>());
  library->impl("copy_", TORCH_FN(copy));
  library->impl("equal", TORCH_FN(equal));
  library->impl("_cslt_compress", TORCH_FN(write_unsaid));
  simulate_draws(*library);
  simulate_libraries(*library);
  return count;
}
