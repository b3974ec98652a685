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
  Ranges& ranges = arena_->ranges;
  const Region* last = ranges.last_hole();
  const size_t there = last == nullptr ? 0 : last->size;
  const size_t more = std::max(round_up(request, ranges.alignment()), there + ranges.alignment()) - there;
  const size_t limit = round_up(ranges.limit() + more, device_->page());
  if (limit > ranges.most()) return false;
  ranges.grow(limit);
  grown_ = true;
  ++stats_.growths;
  stats_.peak_growth = std::max(stats_.peak_growth, limit - limit_);
  const std::string op = op_under_way(this_thread());
  notify("growth " + op, "the budget of " + format_bytes(stats_.budget) + " is exceeded by " + format_bytes(limit - limit_) +
                             " while " + op + " runs, which does not fit otherwise (--no-grow makes that an error)");
  return true;
}

// An op begins: what lies beyond the budget moves or leaves, as far as it can.
void Engine::return_to_budget() {
  if (running_ != 0 || forked_) return;
  size_t end = limit_;
  for (Block* block : std::vector<Block*>(blocks_)) {
    if (block->arena != arena_ || !block->resident() || block->region->end() <= limit_) continue;
    try {
      if (may_move(*block) && (relocate(*block, limit_, SIZE_MAX) || evict(*block))) continue;
    } catch (const TierFailure&) {
      // It stays where it is until there is another way.
    }
    end = std::max(end, block->region->end());
  }
  arena_->shrink(end);
  grown_ = end > limit_;
}

// Said once for each `key`, by Python, as soon as no lock is held.
void Engine::notify(const std::string& key, const std::string& text) {
  if (said_.size() < kMostNotices && said_.insert(key).second) {
    notices_.push_back(text);
    has_notices_.store(true);
  }
}

void Engine::say() {
  if (!has_notices_.load() || !is_python_thread() || !has_notices_.exchange(false)) return;
  std::vector<std::string> notices;
  {
    Lock lock(*this);
    notices.swap(notices_);
  }
  const std::string source = source_text(current_source());
  for (const std::string& notice : notices)
    if (on_notice_) on_notice_("memfit: " + notice + (source.empty() ? "" : " (" + source + ")"));
}

}  // namespace memfit
