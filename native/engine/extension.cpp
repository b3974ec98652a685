#include "extension.h"

#include <utility>

#include "engine.h"
#include "failure.h"
#include "observer.h"

namespace memfit {

ExtensionCall::ExtensionCall(const OpInfo& op, const Operands& operands, int64_t source) : op_(op) {
  Engine& engine = Engine::get();
  ThreadState& thread = this_thread();
  const c10::ArrayRef<const c10::IValue> inputs(operands.data(), operands.size());  // (braces would make a list of two)
  engine.op_begins(thread, op, inputs, source, -1);
  engine.say();
  if (thread.failure.kind == Failure::Kind::kNone) return;
  // An op would learn it from its next allocation. This one may make none, and would use what is not there.
  const Failure failure = std::exchange(thread.failure, Failure());
  thread.untold = false;
  engine.op_ends(thread, op, {});
  raise(failure);
}

ExtensionCall::~ExtensionCall() { Engine::get().op_ends(this_thread(), op_, outputs_); }

}  // namespace memfit
