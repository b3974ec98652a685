// A call of a compiled function that is no op, seen as one: its tensors are its operands.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <string>
#include <vector>

namespace memfit {

struct OpInfo;

constexpr size_t kFewOperands = 24;  // few calls have more
using Operands = c10::SmallVector<c10::IValue, kFewOperands>;

// From when all its operands are in memory until it ends. Made without the interpreter lock.
class ExtensionCall {
 public:
  // `source` is the line that calls, known while recording. Raises what an op would, when the operands cannot all be
  // there: then nothing has begun.
  ExtensionCall(const OpInfo& op, c10::ArrayRef<const c10::IValue> operands, int64_t source);
  ExtensionCall(const ExtensionCall&) = delete;
  ExtensionCall& operator=(const ExtensionCall&) = delete;
  ~ExtensionCall();
  void returned(Operands values) { outputs_ = std::move(values); }

 private:
  const OpInfo& op_;
  Operands outputs_;
};

}  // namespace memfit
