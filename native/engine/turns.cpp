// Turns: threads whose ops do not fit side by side run them one after the other.
//
// An op that has not started yet lets go of its storages while it waits; one that runs keeps its own. So a wait
// ends, or everybody waits, and then somebody's op fails: nothing more would ever be let go of.
#include <Python.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "engine.h"

namespace memfit {

namespace {

// Without any op's end for this long, something else is wrong (a lock that the waiter itself holds, say).
constexpr std::chrono::milliseconds kPatience{10000};
// What another thread has made and not used yet is filled at once, or left lying about for good.
constexpr std::chrono::milliseconds kShortPatience{500};

// Ops that run when a limit or a plan is to take effect end within this long, or hold on to what they use.
constexpr std::chrono::milliseconds kStandstill{1000};

// The interpreter lock, let go of for a while by the thread that has it.
class WithoutInterpreter {
 public:
  WithoutInterpreter() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  // Call without any other lock.
  void take_back() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  bool was_held() const { return state_ != nullptr; }

 private:
  PyThreadState* state_;
};

}  // namespace

bool Engine::others_run(const ThreadState& thread) const {
  return frames_ - (thread.in_frame ? 1 : 0) > waiting_;
}

// Between `empty` and the op that fills it a tensor can't be moved, and no op is running.
bool Engine::others_prepare(const ThreadState& thread) const {
  return std::any_of(blocks_.begin(), blocks_.end(), [&](const Block* block) {
    return block->resident() && block->held && block->maker != nullptr && block->maker != &thread;
  });
}

// Wait until some other op has let go of its storages, or the session ends. False when there is none that could
// let go, or it takes too long.
bool Engine::wait_for_others(ThreadState& thread, std::chrono::milliseconds patience) {
  if (forked_ || !active()) return false;
  if (!others_run(thread) && others_prepare(thread)) {
    patience = kShortPatience;
  } else if (!others_run(thread)) {
    if (!thread.starting || thread.gave_way || waiting_ == 0) return false;
    thread.gave_way = true;
  }
  if (thread.starting) step_aside(thread);
  if (standstill_) turn_.notify_all();
  uint64_t turn = turns_;
  waiting_ += thread.in_frame ? 1 : 0;
  bool came = wait_without_interpreter(patience, [&] { return turns_ != turn || !active(); });
  waiting_ -= thread.in_frame ? 1 : 0;
  if (thread.starting) step_back(thread);
  return came;
}

bool Engine::wait_for_others(ThreadState& thread) { return wait_for_others(thread, kPatience); }

// An op begins beside running ones if all of them could cut up what is free as they like. Otherwise it waits for their
// end: halfway through, each with a part of what it needs, they would wait for each other.
void Engine::take_turn(ThreadState& thread, size_t want) {
  if (is_contested(thread, want)) drop_plan();
  ++queued_;  // whoever comes later does not go first
  while (others_run(thread) && !(queued_ == 1 && fits_beside(want)) && wait_for_others(thread, kShortPatience)) {
    for (Block* block : thread.touched)
      if (!block->dead && !block->resident()) thread.missing.push_back(block);
    bring_in_missing(thread);
  }
  --queued_;
  thread.promised = want;
  promised_ += want;
}

// A plan knows the ops of one thread. It stays while those of another find room beside its zone.
bool Engine::is_contested(const ThreadState& thread, size_t want) {
  if (arena_->plan() == nullptr) return false;
  if (plan_thread_ == nullptr) plan_thread_ = &thread;
  plan_is_shared_ |= plan_thread_ != &thread;
  if (others_run(thread)) return !fits_beside(want);
  return plan_is_shared_ && !arena_->plan()->is_followed() && arena_->ranges.largest_free() < want;
}

bool Engine::fits_beside(size_t want) const {
  const size_t needed = 2 * (want + promised_);
  return arena_->ranges.largest_free() >= needed || widest_window(/*running=*/true) >= needed;
}

// Of what the op was promised, so much has been kept.
void Engine::keep_promise(ThreadState& thread, size_t bytes) {
  const size_t kept = std::min({bytes, thread.promised, promised_});
  thread.promised -= kept;
  promised_ -= kept;
}

// Whoever holds the mutex never waits for the interpreter.
template <typename Condition>
bool Engine::wait_without_interpreter(std::chrono::milliseconds patience, const Condition& condition) {
  WithoutInterpreter without;
  bool came = turn_.wait_for(mutex_, patience, condition);
  if (without.was_held()) {
    mutex_.unlock();
    without.take_back();
    mutex_.lock();
  }
  return came;
}

// No op of another thread is running now and none begins until the standstill ends, so that everything may move: what
// stays for an op's sake when a limit or a plan takes effect would lie in the way for good.
void Engine::stand_still() {
  int own = this_thread().in_frame ? 1 : 0;
  auto others = [&] { return standstill_ ? standstill_owner_ != &this_thread() : false; };
  while (others()) wait_without_interpreter(kStandstill, [&] { return !others(); });
  standstill_ = true;
  standstill_owner_ = &this_thread();
  wait_without_interpreter(kStandstill, [&] { return frames_ - own <= waiting_ || !active(); });
}

void Engine::move_again() {
  standstill_ = false;
  turn_.notify_all();
}

// An op is about to begin.
void Engine::wait_for_standstill() {
  while (standstill_ && standstill_owner_ != &this_thread() && active() && !forked_)
    wait_without_interpreter(kStandstill, [&] { return !standstill_ || !active(); });
}

void Engine::step_aside(ThreadState& thread) {
  thread.stepped_aside = true;
  for (Block* block : thread.touched) --block->active, ++block->aside;
  somebody_let_go();
}

void Engine::somebody_let_go() {
  ++turns_;
  turn_.notify_all();
}

void Engine::step_back(ThreadState& thread) {
  for (Block* block : thread.touched) {
    ++block->active, --block->aside;
    block->dirty = true;  // it may have been copied out meanwhile, and the op may be about to write to it
  }
}

void Engine::frame_is_over(ThreadState& thread) {
  if (!thread.in_frame) return;
  if (std::exchange(thread.running, false)) --running_;
  keep_promise(thread, SIZE_MAX);
  thread.in_frame = thread.gave_way = false;
  --frames_;
  ++turns_;
  if (waiting_ > 0 || standstill_) turn_.notify_all();
}

}  // namespace memfit
