// Growth: a limit that gives way for one op rather than end a run, where the user has asked for that.
//
// A share of a training iteration's peak says nothing of the evaluation that follows an epoch later. The arena gets as
// many bytes more as the op needs, and is back within the budget as soon as what lies beyond it can move.
#include <algorithm>

#include "engine.h"
#include "lock.h"
#include "observer.h"

namespace memfit {

void Engine::allow_growth(bool allowed) {
  Lock lock(*this);
  grows_ = allowed;
}

// Room for `request` bytes more at the end of the arena. False when that is not wanted, or there is no more memory.
bool Engine::grow(size_t request) {
  if (!grows_ || !active() || forked_ || stats_.budget == 0) return false;
  Ranges& ranges = memory_.arena->ranges;
  const Region* last = ranges.last_hole();
  const size_t there = last == nullptr ? 0 : last->size;
  const size_t more = std::max(round_up(request, ranges.alignment()), there + ranges.alignment()) - there;
  const size_t limit = round_up(ranges.limit() + more, memory_.device->page());
  if (limit > ranges.most()) return false;
  ranges.grow(limit);
  grown_ = true;
  ++stats_.growths;
  stats_.peak_growth = std::max(stats_.peak_growth, limit - limit_);
  const std::string op = op_under_way(this_thread());
  notices_.add("growth " + op, "the budget of " + format_bytes(stats_.budget) + " is exceeded by " + format_bytes(limit - limit_) +
                             " while " + op + " runs, which does not fit otherwise (--no-grow makes that an error)");
  return true;
}

// An op begins: what lies beyond the budget moves or leaves, as far as it can.
void Engine::return_to_budget() {
  if (!turns_.none_runs() || forked_) return;
  size_t end = limit_;
  for (Block* block : std::vector<Block*>(books_.all())) {
    if (!memory_.holds(*block) || block->region->end() <= limit_) continue;
    try {
      if (residency_.may_move(*block) && (residency_.relocate(*block, limit_, SIZE_MAX) || moves_.evict(*block))) continue;
    } catch (const TierFailure&) {
      // It stays where it is until there is another way.
    }
    end = std::max(end, block->region->end());
  }
  memory_.arena->shrink(end);
  grown_ = end > limit_;
}

void Engine::say() {
  if (!notices_.any() || !is_python_thread()) return;
  std::vector<std::string> notices;
  {
    Lock lock(*this);
    notices = notices_.take();
  }
  const std::string source = source_text(current_source());
  for (const std::string& notice : notices)
    if (notices_.say()) notices_.say()("memfit: " + notice + (source.empty() ? "" : " (" + source + ")"));
}

}  // namespace memfit
