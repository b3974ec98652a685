// Ops: one begins and ends. Its storages are made available, marked in use, and let go again.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "thread_state.h"

namespace memfit {

struct OpInfo;
struct Session;

class Ops {
 public:
  // An op concerns every part of the session.
  explicit Ops(Session& session) : on_(session) {}

  // The thread's `outermost` op, or one inside it. `source` and `sequence_number` are known while recording.
  void begin(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, bool outermost, int64_t source,
             int64_t sequence_number);
  // The thread has an outermost op from here on, which has used nothing yet.
  void begin_frame(ThreadState& thread, const OpInfo& op, int64_t source, int64_t sequence_number);
  // Whether the op uses a storage of the session, or makes one. No plan and no recording hears of another.
  bool concerns(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) const;
  // The thread's op is about to allocate: if it has used nothing yet, it is one of the iteration's from here on.
  void join_late(ThreadState& thread, size_t bytes);
  void show_outputs(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::IValue> outputs);
  // A call that was to run in slices runs whole after all: what it was to read from where it waits comes in, or is mapped.
  // Nobody reads the storages of these any more until the thread's op uses them again: they may leave meanwhile. They are
  // held by whoever asks.
  void rest(ThreadState& thread, std::initializer_list<c10::ArrayRef<const c10::IValue>> values);
  void use_whole(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, const std::vector<Block*>& blocks);
  // The outermost op is over. Returns what is to be called with no lock held, if anything.
  std::function<void()> end(ThreadState& thread);

 private:
  bool defers(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs);
  void note_operands(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) const;
  void join(ThreadState& thread);
  void settle_dues(ThreadState& thread);
  bool use_inputs(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, bool joins);
  void touch_inputs(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs);
  void follow_streams(ThreadState& thread, bool comes_in);
  void let_go(ThreadState& thread);
  // What ops need is wanted of a plan, or of a limit. (A session without either takes whatever there is.)
  bool learns() const;

  Session& on_;
};

}  // namespace memfit
