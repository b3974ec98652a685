#include "gate.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "hash.h"
#include "observer.h"
#include "operands.h"
#include "strip.h"
#include "surroundings.h"

namespace memfit {

namespace {

uint64_t mix_tensor(uint64_t key, const at::Tensor& tensor) {
  if (!tensor.defined()) return mix(key, 1);
  key = mix(key, static_cast<uint64_t>(tensor.scalar_type()) + 2);
  for (int64_t size : tensor.sizes()) key = mix(key, static_cast<uint64_t>(size));
  for (int64_t stride : tensor.strides()) key = mix(key, static_cast<uint64_t>(stride));
  key = mix(key, tensor.unsafeGetTensorImpl()->is_wrapped_number());
  return mix(key, static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize() % kLine);
}

}  // namespace

size_t OutputLayout::bytes() const {
  size_t bytes = c10::elementSize(dtype);
  for (int64_t size : sizes) bytes *= static_cast<size_t>(size);
  return bytes;
}

uint64_t Gate::key_of(const OpInfo& op, Inputs inputs) {
  uint64_t key = mix(op.name_hash, Surroundings::now().hash());
  for (const c10::IValue& input : inputs) {
    key = mix(key, 3);
    bool has_tensors = false;
    each_tensor(input, [&](const at::Tensor& tensor) {
      key = mix_tensor(key, tensor);
      has_tensors = true;
    });
    if (!has_tensors && !input.isNone()) key = mix(key, fnv1a(c10::str(input)));
  }
  return key;
}

const Answer* Gate::find(uint64_t key) const {
  const auto found = answers_.find(key);
  return found == answers_.end() ? nullptr : &found->second;
}

size_t Gate::most_workspace(const OpInfo& op) const {
  const auto found = most_workspace_.find(op.name);
  return found == most_workspace_.end() ? 0 : found->second;
}

void Gate::note(uint64_t key, Answer answer) {
  count(answer);
  answers_.insert_or_assign(key, std::move(answer));
}

void Gate::replace(std::unordered_map<uint64_t, Answer> answers) {
  answers_ = std::move(answers);
  most_workspace_.clear();
  for (const auto& [key, answer] : answers_) count(answer);
}

void Gate::count(const Answer& answer) {
  if (answer.equal.empty()) return;
  size_t& most = most_workspace_[answer.op];
  most = std::max({most, answer.workspace_bytes, size_t{1}});
}

}  // namespace memfit
