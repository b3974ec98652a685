#include "surroundings.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <iterator>

#include "hash.h"

namespace memfit {

namespace {

using at::Context;

struct Flag {
  bool (*get)(const Context&);
  void (*set)(Context&, bool);
};
// (Plain functions: pointers to its members crashed where they are looked at when it runs, in a build with a sanitizer.)
#define MEMFIT_FLAG(getter, setter) {[](const Context& c) { return c.getter(); }, [](Context& c, bool to) { c.setter(to); }}
constexpr Flag kContextFlags[] = {
    MEMFIT_FLAG(deterministicFillUninitializedMemory, setDeterministicFillUninitializedMemory),
    MEMFIT_FLAG(userEnabledMkldnn, setUserEnabledMkldnn),
    MEMFIT_FLAG(deterministicMkldnn, setDeterministicMkldnn),
    MEMFIT_FLAG(userEnabledCuDNN, setUserEnabledCuDNN),
    MEMFIT_FLAG(deterministicCuDNN, setDeterministicCuDNN),
    MEMFIT_FLAG(benchmarkCuDNN, setBenchmarkCuDNN),
    MEMFIT_FLAG(allowFP16AccumulationCuBLAS, setAllowFP16AccumulationCuBLAS),
    MEMFIT_FLAG(userEnabledFlashSDP, setSDPUseFlash),
    MEMFIT_FLAG(userEnabledMemEfficientSDP, setSDPUseMemEfficient),
    MEMFIT_FLAG(userEnabledMathSDP, setSDPUseMath),
    MEMFIT_FLAG(userEnabledCuDNNSDP, setSDPUseCuDNN),
    MEMFIT_FLAG(allowFP16BF16ReductionMathSDP, setAllowFP16BF16ReductionMathSDP),
};
#undef MEMFIT_FLAG
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
  at::CuBLASReductionOption (*get)(const Context&);
  void (*set)(Context&, bool, bool);
};
#define MEMFIT_REDUCTION(getter, setter) \
  {[](const Context& c) { return c.getter(); }, [](Context& c, bool allowed, bool split) { c.setter(allowed, split); }}
constexpr Reduction kShortProducts[] = {
    MEMFIT_REDUCTION(allowFP16ReductionCuBLAS, setAllowFP16ReductionCuBLAS),
    MEMFIT_REDUCTION(allowBF16ReductionCuBLAS, setAllowBF16ReductionCuBLAS),
};
#undef MEMFIT_REDUCTION
static_assert(std::size(kShortProducts) == Surroundings::kReductions);

void set(Context& context, const Reduction& reduction, at::CuBLASReductionOption to) {
  using Option = at::CuBLASReductionOption;
  reduction.set(context, to == Option::AllowReducedPrecisionWithSplitK, to != Option::DisallowReducedPrecisionDisallowSplitK);
}

void set(const Surroundings& to, const Surroundings& from) {
  Context& context = at::globalContext();
  at::GradMode::set_enabled(to.grad_mode);
  if (to.threads != from.threads) at::set_num_threads(to.threads);
  if (to.deterministic != from.deterministic || to.warns_only != from.warns_only)
    context.setDeterministicAlgorithms(to.deterministic, to.warns_only);
  for (size_t i = 0; i < Surroundings::kFlags; ++i)
    if (to.flags[i] != from.flags[i]) kContextFlags[i].set(context, to.flags[i]);
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
  for (size_t i = 0; i < kFlags; ++i) now.flags[i] = kContextFlags[i].get(context);
  for (size_t i = 0; i < kPrecisions; ++i)
    now.precisions[i] = context.float32Precision(kProducts[i].backend, kProducts[i].op);
  for (size_t i = 0; i < kReductions; ++i) now.reductions[i] = kShortProducts[i].get(context);
  return now;
}

uint64_t Surroundings::hash() const {
  uint64_t hash = mix(static_cast<uint64_t>(threads), flags.to_ullong());
  hash = mix(hash, (grad_mode ? 1u : 0u) | (deterministic ? 2u : 0u) | (warns_only ? 4u : 0u));
  for (at::Float32Precision precision : precisions) hash = mix(hash, static_cast<uint64_t>(precision));
  for (at::CuBLASReductionOption reduction : reductions) hash = mix(hash, static_cast<uint64_t>(reduction));
  return hash;
}

Within::Within(const Surroundings& then) : before_(Surroundings::now()), differ_(!(before_ == then)) {
  if (differ_) set(then, before_);
}

Within::~Within() {
  if (differ_) set(before_, Surroundings::now());
}

}  // namespace memfit
