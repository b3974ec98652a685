#include "surroundings.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <iterator>

namespace memfit {

namespace {

using at::Context;

struct Flag {
  bool (Context::*get)() const;
  void (Context::*set)(bool);
};
constexpr Flag kContextFlags[] = {
    {&Context::deterministicFillUninitializedMemory, &Context::setDeterministicFillUninitializedMemory},
    {&Context::userEnabledMkldnn, &Context::setUserEnabledMkldnn},
    {&Context::deterministicMkldnn, &Context::setDeterministicMkldnn},
    {&Context::userEnabledCuDNN, &Context::setUserEnabledCuDNN},
    {&Context::deterministicCuDNN, &Context::setDeterministicCuDNN},
    {&Context::benchmarkCuDNN, &Context::setBenchmarkCuDNN},
    {&Context::allowFP16AccumulationCuBLAS, &Context::setAllowFP16AccumulationCuBLAS},
    {&Context::userEnabledFlashSDP, &Context::setSDPUseFlash},
    {&Context::userEnabledMemEfficientSDP, &Context::setSDPUseMemEfficient},
    {&Context::userEnabledMathSDP, &Context::setSDPUseMath},
    {&Context::userEnabledCuDNNSDP, &Context::setSDPUseCuDNN},
    {&Context::allowFP16BF16ReductionMathSDP, &Context::setAllowFP16BF16ReductionMathSDP},
};
static_assert(std::size(kContextFlags) == Surroundings::kFlags);

struct Precision {
  at::Float32Backend backend;
  at::Float32Op op;
};
constexpr Precision kProducts[] = {
    {at::Float32Backend::MKLDNN, at::Float32Op::MATMUL},
    {at::Float32Backend::MKLDNN, at::Float32Op::CONV},
    {at::Float32Backend::CUDA, at::Float32Op::MATMUL},
    {at::Float32Backend::CUDA, at::Float32Op::CONV},
};
static_assert(std::size(kProducts) == Surroundings::kPrecisions);

struct Reduction {
  at::CuBLASReductionOption (Context::*get)() const;
  void (Context::*set)(bool, bool);
};
constexpr Reduction kShortProducts[] = {
    {&Context::allowFP16ReductionCuBLAS, &Context::setAllowFP16ReductionCuBLAS},
    {&Context::allowBF16ReductionCuBLAS, &Context::setAllowBF16ReductionCuBLAS},
};
static_assert(std::size(kShortProducts) == Surroundings::kReductions);

void set(Context& context, const Reduction& reduction, at::CuBLASReductionOption to) {
  using Option = at::CuBLASReductionOption;
  (context.*reduction.set)(to == Option::AllowReducedPrecisionWithSplitK, to != Option::DisallowReducedPrecisionDisallowSplitK);
}

void set(const Surroundings& to, const Surroundings& from) {
  Context& context = at::globalContext();
  at::GradMode::set_enabled(to.grad_mode);
  if (to.threads != from.threads) at::set_num_threads(to.threads);
  if (to.deterministic != from.deterministic || to.warns_only != from.warns_only)
    context.setDeterministicAlgorithms(to.deterministic, to.warns_only);
  for (size_t i = 0; i < Surroundings::kFlags; ++i)
    if (to.flags[i] != from.flags[i]) (context.*kContextFlags[i].set)(to.flags[i]);
  for (size_t i = 0; i < Surroundings::kPrecisions; ++i)
    if (to.precisions[i] != from.precisions[i])
      context.setFloat32Precision(kProducts[i].backend, kProducts[i].op, to.precisions[i]);
  for (size_t i = 0; i < Surroundings::kReductions; ++i)
    if (to.reductions[i] != from.reductions[i]) set(context, kShortProducts[i], to.reductions[i]);
}

}  // namespace

Surroundings Surroundings::now() {
  const Context& context = at::globalContext();
  Surroundings now;
  now.threads = at::get_num_threads();
  now.grad_mode = at::GradMode::is_enabled();
  now.deterministic = context.deterministicAlgorithms();
  now.warns_only = context.deterministicAlgorithmsWarnOnly();
  for (size_t i = 0; i < kFlags; ++i) now.flags[i] = (context.*kContextFlags[i].get)();
  for (size_t i = 0; i < kPrecisions; ++i)
    now.precisions[i] = context.float32Precision(kProducts[i].backend, kProducts[i].op);
  for (size_t i = 0; i < kReductions; ++i) now.reductions[i] = (context.*kShortProducts[i].get)();
  return now;
}

Within::Within(const Surroundings& then) : before_(Surroundings::now()), differ_(!(before_ == then)) {
  if (differ_) set(then, before_);
}

Within::~Within() {
  if (differ_) set(before_, Surroundings::now());
}

}  // namespace memfit
