// AtOnce: an op that uses only what is in memory, makes nothing, and is of interest to nobody begins and ends without all
// that another op has to be asked. A generated kernel's call often is such an op, and takes a microsecond.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <functional>

#include "extension.h"
#include "thread_state.h"

namespace memfit {

struct OpInfo;
struct Session;

class AtOnce {
 public:
  // As Ops, it concerns every part of the session.
  explicit AtOnce(Session& session) : on_(session) {}

  // The thread's outermost op has begun, if nothing moves for it and nobody waits: the caller may hold the interpreter lock.
  // Otherwise false, and nothing has happened. `tensors` are its operands, in the order of `op.operands`.
  bool begin(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::TensorImpl*> tensors);
  // Whether it can end so: what it has done is what was foreseen.
  static bool may_end(const ThreadState& thread);
  // As Ops::end.
  std::function<void()> end(ThreadState& thread);

 private:
  struct Use {
    Block* block;
    const c10::TensorImpl* tensor;
    bool is_written;
  };
  using Used = c10::SmallVector<Use, kFewOperands>;

  bool is_undisturbed(uint64_t identity) const;
  Block* here(const c10::TensorImpl& tensor, bool is_written) const;
  bool find(const OpInfo& op, c10::ArrayRef<c10::TensorImpl*> tensors, Used& used) const;
  static void unmark(const Used& used);
  bool makes_nothing(const OpInfo& op, const Used& used) const;

  Session& on_;
};

}  // namespace memfit
