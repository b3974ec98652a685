// A call of a compiled function that is no op, seen as one: its tensors are its operands, and it may write to each.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace memfit {

struct OpInfo;

// From when all its operands are in memory until it ends. Made and ended without the interpreter lock.
class ExtensionCall {
 public:
  // `source` is the line that calls, known while recording. Raises what an op would, when the operands cannot all be
  // there: then nothing has begun.
  ExtensionCall(const OpInfo& op, const std::vector<c10::IValue>& operands, int64_t source);
  ExtensionCall(const ExtensionCall&) = delete;
  ExtensionCall& operator=(const ExtensionCall&) = delete;
  ~ExtensionCall();
  void returned(std::vector<c10::IValue> values) { outputs_ = std::move(values); }

 private:
  const OpInfo& op_;
  std::vector<c10::IValue> outputs_;
};

}  // namespace memfit
