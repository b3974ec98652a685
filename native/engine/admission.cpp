// Admission: an op begins beside those of other threads where there is room for all of them, and waits otherwise.
#include <algorithm>

#include "engine.h"

namespace memfit {

// Between `empty` and the op that fills it a tensor can't be moved, and no op is running.
bool Engine::others_prepare(const ThreadState& thread) const {
  return std::any_of(books_.all().begin(), books_.all().end(), [&](const Block* block) {
    return block->resident() && block->held && block->maker != nullptr && block->maker != &thread;
  });
}

// Wait until some other op has let go of its storages, or the session ends. False when there is none that could
// let go, or it takes too long.
bool Engine::wait_for_others(ThreadState& thread, std::chrono::milliseconds patience) {
  if (forked_ || !active()) return false;
  const bool prepare = !turns_.others_run(thread) && others_prepare(thread);
  return turns_.wait(thread, prepare ? Turns::kShortPatience : patience, prepare);
}

// An op begins beside running ones if all of them could cut up what is free as they like. Otherwise it waits for their
// end: halfway through, each with a part of what it needs, they would wait for each other.
void Engine::take_turn(ThreadState& thread, size_t want) {
  if (is_contested(thread, want)) planned_.drop();
  Turns::Queued queued(turns_);
  while (turns_.others_run(thread) && !(queued.is_alone() && fits_beside(want)) && wait_for_others(thread, Turns::kShortPatience)) {
    for (Block* block : thread.touched)
      if (!block->dead && !block->resident()) thread.missing.push_back(block);
    bring_in_missing(thread);
  }
  turns_.promise(thread, want);
}

// A plan stays while those of another find room beside its zone.
bool Engine::is_contested(const ThreadState& thread, size_t want) {
  if (memory_.arena->plan() == nullptr) return false;
  const bool is_shared = planned_.is_shared(thread);
  if (turns_.others_run(thread)) return !fits_beside(want);
  return is_shared && !memory_.arena->plan()->is_followed() && memory_.arena->ranges.largest_free() < want;
}

bool Engine::fits_beside(size_t want) const {
  const size_t needed = 2 * (want + turns_.promised());
  return memory_.arena->ranges.largest_free() >= needed || residency_.widest_window(/*running=*/true) >= needed;
}

}  // namespace memfit
