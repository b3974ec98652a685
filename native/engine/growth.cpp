#include "growth.h"

#include <algorithm>
#include <string>

#include "failure.h"

namespace memfit {

namespace {

constexpr size_t kStepsToDouble = 16;  // a hole at the end that proves too small
constexpr size_t kLeastSteps = 256;    // so many parts of the budget: what follows need not grow it again at once

// While it lasts, what lies beyond the limit comes back.
class Return {
 public:
  template <typename Moved>
  Return(Arena& arena, const Moved& moved) : arena_(arena) {
    arena_.begin_return(moved);
  }
  ~Return() { arena_.end_return(); }
  Return(const Return&) = delete;
  Return& operator=(const Return&) = delete;

 private:
  Arena& arena_;
};

}  // namespace

bool Growth::grow(size_t request, const ThreadState& thread) {
  if (!is_allowed_ || thread.on_trial || memory_.is_closed || stats_.budget_bytes == 0) return false;
  Ranges& ranges = memory_.arena->ranges;
  const Region* last = ranges.last_hole();
  const size_t there = last == nullptr ? 0 : last->size;
  // Where a hole of the request's size was not enough, steps grow with it, and none is shorter than a part of the budget:
  // else there would be one for every 64 bytes.
  const size_t step = memory_.arena->round(std::max(there / kStepsToDouble, memory_.arena->limit() / kLeastSteps));
  const auto risen_by = [&](size_t least) {
    const size_t end = end_of_hole(ranges.limit() - there, std::max(memory_.arena->round(request), there + least));
    return round_up(end, memory_.device->page_at(end));
  };
  const size_t limit = risen_by(step) <= ranges.most() ? risen_by(step) : risen_by(ranges.alignment());
  if (limit > ranges.most()) return false;
  memory_.arena->grow(limit);
  const size_t beyond = limit - memory_.arena->punched_bytes() - memory_.arena->limit();
  ++stats_.growths;
  stats_.peak_growth_bytes = std::max(stats_.peak_growth_bytes, beyond);
  notices_.add("growth", "the budget of " + format_bytes(stats_.budget_bytes) + " is exceeded by " + format_bytes(beyond) + " while " + op_under_way(thread) +
                       " runs, which does not fit otherwise (--no-grow makes that an error); memfit counts the times that it happens again");
  return true;
}

// Of the lowest from `begin` on that would have so many bytes: what stays beyond the limit, or across it, lies in the way.
size_t Growth::end_of_hole(size_t begin, size_t bytes) const {
  for (const Region* r = memory_.arena->ranges.first(); r != nullptr && r->offset < begin + bytes; r = r->next)
    if (!r->is_free()) begin = std::max(begin, r->end());
  return begin + bytes;
}

bool Growth::comes_back(Block& block) {
  const size_t limit = memory_.arena->limit();
  if (residency_.relocate(block, limit, SIZE_MAX)) return true;
  return memory_.holds(block) && compaction_.all_fit(0) && compaction_.make_hole(block.bytes) && residency_.relocate(block, limit, SIZE_MAX);
}

// Returns where what has to stay ends.
size_t Growth::bring_back(const std::vector<Block*>& beyond) {
  size_t end = memory_.arena->limit();
  for (Block* block : beyond) {
    if (!memory_.holds(*block)) continue;
    try {
      if (residency_.may_move(*block) && (comes_back(*block) || !memory_.holds(*block) || residency_.evict(*block))) continue;
    } catch (const TierFailure&) {
      // It stays where it is until there is another way.
    }
    end = std::max(end, block->region->end());
  }
  return end;
}

// The limit falls first, so that nothing moves to another place beyond it, and rises to the end of what has to stay there.
void Growth::return_to_limit() {
  if (!turns_.none_runs()) return;
  Arena& arena = *memory_.arena;
  const size_t limit = arena.limit(), punched = arena.punched_bytes();
  std::vector<Block*> beyond;
  for (Block* block : books_.all())
    if (memory_.holds(*block) && block->region->end() > limit) beyond.push_back(block);
  const bool all_may_move = std::all_of(beyond.begin(), beyond.end(), [this](const Block* block) { return residency_.may_move(*block); });
  if (punched != 0 && !all_may_move) return;  // the holes are what keeps the arena within the budget
  size_t end = limit;
  {
    const Return lasts(arena, [this](Region* region) { shelf_.made_ordinary(region); });
    end = bring_back(beyond);
  }
  const size_t risen = arena.ranges.limit();
  if (punched != 0 && end > risen && !arena.punch(end - risen)) {  // parts of pages are free, and too few pages
    ++stats_.growths;
    stats_.peak_growth_bytes = std::max(stats_.peak_growth_bytes, end - limit);
  }
  arena.grow(end);
  arena.release_free_pages();
}

}  // namespace memfit
