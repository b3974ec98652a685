#include "admission.h"

#include <algorithm>

#include "observer.h"

namespace memfit {

// Between `empty` and the op that fills it a tensor can't be moved, and no op is running.
bool Admission::others_prepare(const ThreadState& thread) const {
  return std::any_of(books_.all().begin(), books_.all().end(), [&](const Block* block) {
    return block->resident() && block->held && block->maker != nullptr && block->maker != &thread;
  });
}

bool Admission::wait_for_others(ThreadState& thread, Turns::For what) {
  if (memory_.is_closed) return false;
  if (what == Turns::For::kRoom && collectives_.wait(thread, Collectives::For::kRoom)) return true;
  const bool prepare = !turns_.others_run(thread) && others_prepare(thread);
  const bool is_short = prepare || what == Turns::For::kTurn;
  return turns_.wait(thread, what, is_short ? Turns::kShortPatience : Turns::kPatience, prepare);
}

// A plan stays while those of another find room beside its zone.
bool Admission::is_contested(const ThreadState& thread, size_t want) {
  if (memory_.arena->plan() == nullptr) return false;
  planned_.note_thread(thread);
  if (turns_.others_run(thread)) return !fits_beside(want);
  return planned_.is_shared() && !memory_.arena->plan()->is_followed() && memory_.arena->ranges.largest_free() < want;
}

bool Admission::fits_beside(size_t want) const {
  const size_t needed = 2 * (want + turns_.promised());
  return memory_.arena->ranges.largest_free() >= needed || residency_.has_window(needed, /*running=*/true);
}

// What is not known takes about as much as it is given, as most do: with eight times as much, which may be more than there is,
// it would wait in vain. (A plan that is followed has left room.)
bool Admission::leaves_scratch(const ThreadState& thread, size_t want) const {
  const OpInfo& op = *thread.op;
  const size_t to_come = scratch_.to_come() + (op.keeps_pointers ? scratch_.expected(op.name_hash, thread.input_bytes) : 0);
  const Plan* plan = memory_.arena->plan();
  if (to_come == 0 || (plan != nullptr && plan->is_followed())) return true;
  const size_t needed = to_come + (thread.need.known ? want : op.keeps_pointers ? 0 : std::max(thread.announced, thread.input_bytes));
  return memory_.arena->ranges.largest_free() >= needed || residency_.has_window(needed, /*running=*/true);
}

}  // namespace memfit
