#include "growth.h"

#include <algorithm>
#include <string>

#include "failure.h"

namespace memfit {

namespace {

constexpr size_t kStepsToDouble = 16;  // a hole at the end that proves too small

}  // namespace

bool Growth::grow(size_t request, const ThreadState& thread) {
  if (!is_allowed_ || memory_.is_closed || stats_.budget_bytes == 0) return false;
  Ranges& ranges = memory_.arena->ranges;
  const Region* last = ranges.last_hole();
  const size_t there = last == nullptr ? 0 : last->size;
  // Where a hole of the request's size was not enough, steps grow with it: else there would be one for every 64 bytes.
  const size_t step = std::max(round_up(there / kStepsToDouble, ranges.alignment()), ranges.alignment());
  const size_t more = std::max(round_up(request, ranges.alignment()), there + step) - there;
  const size_t limit = round_up(ranges.limit() + more, memory_.device->page_at(ranges.limit() + more));
  if (limit > ranges.most()) return false;
  memory_.arena->grow(limit);
  const size_t beyond = limit - memory_.arena->limit();
  ++stats_.growths;
  stats_.peak_growth_bytes = std::max(stats_.peak_growth_bytes, beyond);
  notices_.add("growth", "the budget of " + format_bytes(stats_.budget_bytes) + " is exceeded by " + format_bytes(beyond) + " while " + op_under_way(thread) +
                       " runs, which does not fit otherwise (--no-grow makes that an error); memfit counts the times that it happens again");
  return true;
}

bool Growth::comes_back(Block& block) {
  const size_t limit = memory_.arena->limit();
  if (residency_.relocate(block, limit, SIZE_MAX)) return true;
  return compaction_.all_fit(0) && compaction_.make_hole(block.bytes) && residency_.relocate(block, limit, SIZE_MAX);
}

// The limit falls first, so that nothing moves to another place beyond it, and rises to the end of what has to stay there.
void Growth::return_to_budget() {
  if (!turns_.none_runs()) return;
  const size_t limit = memory_.arena->limit();
  memory_.arena->shrink(limit, [this](Region* region) { shelf_.made_ordinary(region); });
  size_t end = limit;
  for (Block* block : std::vector<Block*>(books_.all())) {
    if (!memory_.holds(*block) || block->region->end() <= limit) continue;
    try {
      if (residency_.may_move(*block) && (comes_back(*block) || moves_.evict(*block))) continue;
    } catch (const TierFailure&) {
      // It stays where it is until there is another way.
    }
    end = std::max(end, block->region->end());
  }
  memory_.arena->grow(end);
  memory_.arena->release_free_pages();
}

}  // namespace memfit
