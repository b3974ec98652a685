#include "growth.h"

#include <algorithm>
#include <string>

#include "failure.h"

namespace memfit {

bool Growth::grow(size_t request, const ThreadState& thread) {
  if (!is_allowed_ || memory_.is_closed || stats_.budget_bytes == 0) return false;
  Ranges& ranges = memory_.arena->ranges;
  const Region* last = ranges.last_hole();
  const size_t there = last == nullptr ? 0 : last->size;
  const size_t more = std::max(round_up(request, ranges.alignment()), there + ranges.alignment()) - there;
  const size_t limit = round_up(ranges.limit() + more, memory_.device->page_at(ranges.limit() + more));
  if (limit > ranges.most()) return false;
  ranges.grow(limit);
  grown_ = true;
  ++stats_.growths;
  stats_.peak_growth_bytes = std::max(stats_.peak_growth_bytes, limit - limit_);
  const std::string op = op_under_way(thread);
  notices_.add("growth " + op, "the budget of " + format_bytes(stats_.budget_bytes) + " is exceeded by " + format_bytes(limit - limit_) +
                             " while " + op + " runs, which does not fit otherwise (--no-grow makes that an error)");
  return true;
}

void Growth::return_to_budget() {
  if (!turns_.none_runs()) return;
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

}  // namespace memfit
