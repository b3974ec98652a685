// Slicing's parts: a call that gives several outputs is replaced by one call for the first and one for the rest. Each is an
// op as any other that is called by an op that passes on: it has its inputs brought in when it begins, may run in slices, or
// mapped, and what it used may leave before the next one.
#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "engine.h"
#include "observer.h"
#include "slices.h"
#include "slicing.h"
#include "warnings.h"

namespace memfit {

namespace {

// The thread's op is none that reads what it is given: its parts are.
class PassingOn {
 public:
  PassingOn() : before_(std::exchange(this_thread().working, OpsUnderWay())) {}
  PassingOn(const PassingOn&) = delete;
  PassingOn& operator=(const PassingOn&) = delete;
  ~PassingOn() { this_thread().working = before_; }

 private:
  const OpsUnderWay before_;
};

}  // namespace

void Slicing::run_in_parts(const SplitCall& call, SaidOnce& said, Stack& stack) {
  const size_t allocated_before = this_thread().allocated;
  const Stack inputs = std::move(stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  const PassingOn passing_on;
  uint64_t calls = 0;
  stack.assign(call.op->returns, at::Tensor());
  for (const c10::List<bool>& wanted : parts_in(call, inputs)) {
    engine_.governing([&](Session& session) { session.ops.rest(this_thread(), {inputs_in(inputs), inputs_in(stack)}); });
    Stack part = part_of(call, inputs, wanted);
    said.run_begins();
    call.op->handle->callBoxed(part);
    for (size_t i = 0; i < wanted.size(); ++i)
      if (wanted.get(i)) stack[i] = part[i];
    ++calls;
  }
  this_thread().allocated = allocated_before + call.allocated_bytes;
  count(call, calls, 0);
}

}  // namespace memfit
