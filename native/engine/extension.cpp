#include "extension.h"

#include <utility>

#include "engine.h"
#include "failure.h"
#include "observer.h"

namespace memfit {

ExtensionCall::ExtensionCall(const OpInfo& op, c10::ArrayRef<const c10::IValue> operands, int64_t source) : op_(op) {
  Engine& engine = Engine::get();
  ThreadState& thread = this_thread();
  engine.op_begins(thread, op, operands, source, -1);
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
