// Refusals: what is said of an op that cannot have its bytes, the smallest budget that has room for it, and when the
// error is raised.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

#include "books.h"
#include "failure.h"
#include "memory.h"
#include "residency.h"
#include "stats.h"
#include "thread_state.h"

namespace memfit {

class Refusals {
 public:
  // `last` is the latest of all.
  Refusals(const Books& books, const Memory& memory, const Stats& stats, const Residency& residency, Failure& last)
      : books_(books), memory_(memory), stats_(stats), residency_(residency), last_(last) {}

  // The peak that the budget is told as a share of; 0: none is known.
  void set_peak(size_t bytes) { peak_ = bytes; }
  // The thread's op fails: it cannot have `request` bytes more (`is_input`: they are among its inputs),
  void refuse(ThreadState& thread, size_t request, bool is_input = false);
  // or its bytes could not be read or written,
  void refuse_by_tier(ThreadState& thread, const std::string& why) { fail(thread, of_tier(thread, why)); }
  static Failure of_tier(const ThreadState& thread, const std::string& why);
  // or something else went wrong, where nothing may be raised: an error of memfit's own, if it is not the tier's.
  void unforeseen(ThreadState& thread, const char* why, bool is_of_tier = false) noexcept;

  // Torch only logs what a callback throws, and then nothing of what it was to do has been done: whatever goes wrong in
  // `action` is kept for the thread's op, or for the next one.
  template <typename Action>
  [[gnu::always_inline]] void guarded(ThreadState& thread, const Action& action) try {
    action();
  } catch (const TierFailure& error) {
    unforeseen(thread, error.what(), /*is_of_tier=*/true);
  } catch (const std::exception& error) {
    unforeseen(thread, error.what());
  } catch (...) {
    unforeseen(thread, "an unknown error");
  }

  // Bytes that stay in the arena though no running op uses them.
  size_t immovable_bytes() const;

  // The next allocation raises this.
  void refuse_next(const std::string& message, size_t required_bytes);
  // That allocation has come.
  void hand_on(ThreadState& thread);
  // The thread's op is over, and may have made no allocation that could have raised its failure.
  void put_off(ThreadState& thread);
  // An op begins, and has not failed.
  static void forget(ThreadState& thread);
  // A child of a fork is told nothing.
  void abandon() { next_ = Failure(); }

 private:
  void tell_why(const ThreadState& thread, Failure& failure, size_t request, bool is_input) const;
  void fail(ThreadState& thread, Failure failure);
  size_t smallest_budget(const ThreadState& thread, size_t request, bool is_input) const;
  std::string share_of_peak(size_t bytes) const;
  std::string describe_immovable() const;

  const Books& books_;
  const Memory& memory_;
  const Stats& stats_;
  const Residency& residency_;
  Failure& last_;
  Failure next_;
  size_t peak_ = 0;
};

}  // namespace memfit
