// Random numbers on the simulated GPU. As on a real one they depend on the seed and the offset of a Philox generator, which
// the operator reads and moves on at once; the numbers are made when the stream comes to it.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/record_function.h>

#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "simulated_ops.h"

namespace {

enum Kind : int64_t { kBernoulli, kUniform, kNormal, kIntegers };

// On the CPU.
at::Tensor& fill(at::Tensor& self, int64_t kind, double a, double b, int64_t seed, int64_t offset) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed * 1000003 + offset));
  if (kind == kIntegers) return self.random_(static_cast<int64_t>(a), static_cast<int64_t>(b), generator);
  if (kind == kBernoulli) return self.bernoulli_(a, generator);
  return kind == kUniform ? self.uniform_(a, b, generator) : self.normal_(a, b, generator);
}

at::Tensor& draw(at::Tensor& self, Kind kind, double a, double b, const std::optional<at::Generator>& generator) {
  at::RecordFunctionGuard unseen(/*is_enabled=*/false);
  auto* from = at::get_generator_or_default<at::CUDAGeneratorImpl>(generator, at::cuda::detail::getDefaultCUDAGenerator());
  std::pair<uint64_t, uint64_t> state;
  {
    std::lock_guard<std::mutex> lock(from->mutex_);
    state = from->philox_engine_inputs(static_cast<uint64_t>(self.numel()));
  }
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("simulated::draw_", "");
  torch::jit::Stack stack{self, static_cast<int64_t>(kind), a, b, static_cast<int64_t>(state.first), static_cast<int64_t>(state.second)};
  simulate(op, &stack);
  return self;
}

at::Tensor& bernoulli(at::Tensor& self, double p, std::optional<at::Generator> generator) {
  return draw(self, kBernoulli, p, 0, generator);
}
at::Tensor& uniform(at::Tensor& self, double from, double to, std::optional<at::Generator> generator) {
  return draw(self, kUniform, from, to, generator);
}
at::Tensor& normal(at::Tensor& self, double mean, double deviation, std::optional<at::Generator> generator) {
  return draw(self, kNormal, mean, deviation, generator);
}
at::Tensor& integers(at::Tensor& self, int64_t from, std::optional<int64_t> to, std::optional<at::Generator> generator) {
  TORCH_CHECK(to, "integers without a bound are not simulated");
  return draw(self, kIntegers, static_cast<double>(from), static_cast<double>(*to), generator);
}

// It has no argument for a generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool>) {
  at::RecordFunctionGuard unseen(/*is_enabled=*/false);
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  draw(mask, kBernoulli, 1 - p, 0, std::nullopt);
  return {input * mask * (1 / (1 - p)), mask};
}

}  // namespace

void simulate_draws(torch::Library& aten) {
  static auto* own = new torch::Library(torch::Library::FRAGMENT, "simulated", std::nullopt, __FILE__, __LINE__);
  own->def("draw_(Tensor(a!) self, int kind, float a, float b, int seed, int offset) -> Tensor(a!)");
  own->impl("draw_", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(fill)));
  aten.impl("bernoulli_.float", TORCH_FN(bernoulli));
  aten.impl("uniform_", TORCH_FN(uniform));
  aten.impl("normal_", TORCH_FN(normal));
  aten.impl("random_.from", TORCH_FN(integers));
  aten.impl("native_dropout", TORCH_FN(native_dropout));
}
