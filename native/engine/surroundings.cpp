#include "surroundings.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

namespace memfit {

namespace {

constexpr at::Float32Backend kOneDnn = at::Float32Backend::MKLDNN;

void set(const Surroundings& to, const Surroundings& from) {
  at::Context& context = at::globalContext();
  at::GradMode::set_enabled(to.grad_mode);
  if (to.threads != from.threads) at::set_num_threads(to.threads);
  if (to.deterministic != from.deterministic || to.warns_only != from.warns_only)
    context.setDeterministicAlgorithms(to.deterministic, to.warns_only);
  if (to.fills != from.fills) context.setDeterministicFillUninitializedMemory(to.fills);
  if (to.onednn != from.onednn) context.setUserEnabledMkldnn(to.onednn);
  if (to.onednn_deterministic != from.onednn_deterministic) context.setDeterministicMkldnn(to.onednn_deterministic);
  if (to.products != from.products) context.setFloat32Precision(kOneDnn, at::Float32Op::MATMUL, to.products);
  if (to.convolutions != from.convolutions) context.setFloat32Precision(kOneDnn, at::Float32Op::CONV, to.convolutions);
}

}  // namespace

Surroundings Surroundings::now() {
  const at::Context& context = at::globalContext();
  Surroundings now;
  now.threads = at::get_num_threads();
  now.grad_mode = at::GradMode::is_enabled();
  now.deterministic = context.deterministicAlgorithms();
  now.warns_only = context.deterministicAlgorithmsWarnOnly();
  now.fills = context.deterministicFillUninitializedMemory();
  now.onednn = context.userEnabledMkldnn();
  now.onednn_deterministic = context.deterministicMkldnn();
  now.products = context.float32Precision(kOneDnn, at::Float32Op::MATMUL);
  now.convolutions = context.float32Precision(kOneDnn, at::Float32Op::CONV);
  return now;
}

Within::Within(const Surroundings& then) : before_(Surroundings::now()), differ_(!(before_ == then)) {
  if (differ_) set(then, before_);
}

Within::~Within() {
  if (differ_) set(before_, Surroundings::now());
}

}  // namespace memfit
