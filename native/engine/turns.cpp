#include "turns.h"

#include <algorithm>
#include <new>
#include <utility>

#include "block.h"
#include "interpreter.h"
#include "thread_state.h"

namespace memfit {

namespace {

// Ops that run when a limit or a plan is to take effect end within this long, or hold on to what they use.
constexpr std::chrono::milliseconds kStandstill{1000};

}  // namespace

int Turns::own(const ThreadState& thread) { return thread.suspended + (thread.in_frame ? 1 : 0); }

void Turns::op_begins(ThreadState& thread) {
  ++begun_;
  thread.in_frame = true;
}

void Turns::op_starts(ThreadState& thread) {
  if (thread.in_frame && !std::exchange(thread.running, true)) ++running_;
}

void Turns::op_is_over(ThreadState& thread) {
  if (!thread.in_frame) return;
  if (std::exchange(thread.running, false)) --running_;
  keep_promise(thread, SIZE_MAX);
  thread.in_frame = thread.gave_way = false;
  --begun_;
  ++let_go_, ++over_;
  if (sleeping_ > 0) turn_.notify_all();
}

bool Turns::wait(ThreadState& thread, For what, std::chrono::milliseconds patience, bool others_prepare) {
  if (!others_prepare && !others_run(thread)) {
    if (!thread.starting || thread.gave_way || waiting_ == 0) return false;
    thread.gave_way = true;
  }
  if (thread.starting) step_aside(thread);
  const uint64_t let_go_before = let_go_, over_before = over_;
  const auto all_wait = [this] { return begun_ <= waiting_; };
  const auto has_come = [&] { return what == For::kRoom ? let_go_ != let_go_before : over_ != over_before || all_wait(); };
  waiting_ += own(thread);
  if (stands_still_ || all_wait()) turn_.notify_all();
  bool came = wait_without_interpreter(patience, [&] { return has_come() || !is_open_; });
  waiting_ -= own(thread);
  if (thread.starting) step_back(thread);
  return came;
}

void Turns::somebody_let_go() {
  ++let_go_;
  turn_.notify_all();
}

void Turns::promise(ThreadState& thread, size_t bytes) {
  thread.promised = bytes;
  promised_ += bytes;
}

void Turns::keep_promise(ThreadState& thread, size_t bytes) {
  const size_t kept = std::min({bytes, thread.promised, promised_});
  thread.promised -= kept;
  promised_ -= kept;
}

// Whoever holds the mutex never waits for the interpreter.
template <typename Condition>
bool Turns::wait_without_interpreter(std::chrono::milliseconds patience, const Condition& condition) {
  WithoutInterpreter without;
  ++sleeping_;
  bool came = turn_.wait_for(mutex_, patience, condition);
  --sleeping_;
  if (without.was_held()) {
    mutex_.unlock();
    without.take_back();
    mutex_.lock();
  }
  return came;
}

bool Turns::stand_still(const ThreadState& thread) {
  const int mine = own(thread);
  waiting_ += mine;
  turn_.notify_all();
  while (others_stand(thread)) wait_without_interpreter(kStandstill, [&] { return !others_stand(thread); });
  waiting_ -= mine;
  stands_still_ = true;
  standing_ = &thread;
  return wait_without_interpreter(kStandstill, [&] { return begun_ - mine <= waiting_ || !is_open_; });
}

void Turns::move_again() {
  stands_still_ = false;
  turn_.notify_all();
}

void Turns::wait_for_standstill(const ThreadState& thread) {
  while (others_stand(thread) && is_open_) wait_without_interpreter(kStandstill, [&] { return !stands_still_ || !is_open_; });
}

void Turns::step_aside(ThreadState& thread) {
  thread.stepped_aside = true;
  for (Block* block : thread.touched) --block->active, ++block->aside;
  somebody_let_go();
}

void Turns::step_back(ThreadState& thread) {
  for (Block* block : thread.touched) {
    ++block->active, --block->aside;
    block->dirty = true;  // it may have been copied out meanwhile, and the op may be about to write to it
  }
}

void Turns::close() {
  is_open_ = stands_still_ = false;
  ++let_go_;  // who waits may wake only when the next session has begun
  turn_.notify_all();
}

void Turns::forget(ThreadState& thread) {
  new (&turn_) std::condition_variable_any();  // a fresh one has no memory of waiters
  begun_ = running_ = waiting_ = queued_ = sleeping_ = 0;
  promised_ = thread.promised = 0;
  is_open_ = stands_still_ = false;
  thread.in_frame = thread.running = false;
}

}  // namespace memfit
