#include "packer/occupancy.h"

#include <algorithm>

namespace memfit::packing {
namespace {

// Calls visit(node) for the nodes that make up [begin, end) in a tree of `leaves` leaves.
template <typename Visit>
void each_part(std::int32_t leaves, Span span, Visit visit) {
  for (std::int32_t l = span.begin + leaves, r = span.end + leaves; l < r; l >>= 1, r >>= 1) {
    if (l & 1) visit(l++);
    if (r & 1) visit(--r);
  }
}

// Calls visit(node) for the nodes above those parts, each once.
template <typename Visit>
void each_above(std::int32_t leaves, Span span, Visit visit) {
  const std::int32_t l = span.begin + leaves, r = span.end + leaves;
  for (int level = 1; (l >> level) > 0; ++level) {
    const std::int32_t left = l >> level, right = (r - 1) >> level;
    const bool left_is_above = (left << level) != l || ((left + 1) << level) > r;
    const bool right_is_above = ((right + 1) << level) != r || (right << level) < l;
    if (left_is_above) visit(left);
    if (right_is_above && (right != left || !left_is_above)) visit(right);
  }
}

// First range at or after `from` that ends above `offset`. Gallops: most steps are short.
std::size_t pass(const std::vector<Range>& ranges, std::size_t from, Quanta offset) {
  std::size_t step = 1, at = from;
  while (at < ranges.size() && ranges[at].hi <= offset) {
    from = at + 1;
    at += step;
    step *= 2;
  }
  const auto end = ranges.begin() + static_cast<std::ptrdiff_t>(std::min(at, ranges.size()));
  const auto found = std::partition_point(ranges.begin() + static_cast<std::ptrdiff_t>(from), end,
                                          [&](const Range& range) { return range.hi <= offset; });
  return static_cast<std::size_t>(found - ranges.begin());
}

constexpr std::int64_t kWorkOfStep = 6, kWorkOfItem = 500;

}  // namespace

void RangeSet::add(Quanta lo, Quanta hi) {
  auto first = std::partition_point(ranges_.begin(), ranges_.end(), [&](const Range& r) { return r.hi < lo; });
  auto last = first;
  while (last != ranges_.end() && last->lo <= hi) {
    lo = std::min(lo, last->lo);
    hi = std::max(hi, last->hi);
    ++last;
  }
  if (first == last) {
    ranges_.insert(first, {lo, hi});
    return;
  }
  *first = {lo, hi};
  ranges_.erase(first + 1, last);
}

Occupancy::Occupancy(std::int32_t sections) : leaves_(1), floor_(sections) {
  while (leaves_ < sections) leaves_ *= 2;
  cover_.resize(2 * static_cast<std::size_t>(leaves_));
  touch_.resize(2 * static_cast<std::size_t>(leaves_));
}

void Occupancy::add(const Item& item, Quanta offset) {
  for (const Span& span : item.spans)
    if (!span.empty()) add(span, offset, offset + item.size);
}

void Occupancy::add(Span span, Quanta lo, Quanta hi) {
  each_part(leaves_, span, [&](std::int32_t node) {
    cover_[node].add(lo, hi);
    touch_[node].add(lo, hi);
  });
  each_above(leaves_, span, [&](std::int32_t node) { touch_[node].add(lo, hi); });
  floor_.put(span, lo, hi);
}

void Occupancy::collect(Span span) {
  if (span.empty()) return;
  const auto meet = [&](const RangeSet& set) {
    if (!set.ranges().empty()) met_.push_back(&set.ranges());
  };
  each_part(leaves_, span, [&](std::int32_t node) { meet(touch_[node]); });
  each_above(leaves_, span, [&](std::int32_t node) { meet(cover_[node]); });
}

void Occupancy::collect(const Item& item) {
  met_.clear();
  for (const Span& span : item.spans) collect(span);
  cursor_.assign(met_.size(), 0);
  work_ += kWorkOfItem;
}

// The item meets something at every offset below.
Quanta Occupancy::floor(const Item& item) {
  return std::max(floor_.highest(item.spans[0]), floor_.highest(item.spans[1]));
}

// Raises `offset` to the lowest at which `size` meets nothing. Sets are asked in turn; the offset is found once all in
// a row have agreed to it.
void Occupancy::climb(Quanta& offset, Quanta size) {
  for (std::size_t set = 0, agreed = 0; agreed < met_.size(); set = set + 1 == met_.size() ? 0 : set + 1) {
    const auto& ranges = *met_[set];
    std::size_t& at = cursor_[set];
    at = pass(ranges, at, offset);
    work_ += kWorkOfStep;
    ++agreed;
    while (at < ranges.size() && ranges[at].lo < offset + size) {
      offset = ranges[at++].hi;
      agreed = 1;
    }
  }
}

Quanta Occupancy::first_fit(const Item& item) {
  collect(item);
  Quanta offset = floor(item);
  climb(offset, item.size);
  return offset;
}

Quanta Occupancy::best_fit(const Item& item) {
  collect(item);
  Quanta best = kFree, smallest = 0, offset = floor(item);
  if (met_.empty()) return 0;
  for (;;) {
    // Climb to the next free byte, then look how far it stays free.
    climb(offset, item.size);
    Quanta ceiling = -1;
    for (std::size_t set = 0; set < met_.size(); ++set)
      if (cursor_[set] < met_[set]->size()) {
        const Quanta lo = (*met_[set])[cursor_[set]].lo;
        ceiling = ceiling < 0 ? lo : std::min(ceiling, lo);
      }
    if (ceiling < 0) return best == kFree ? offset : best;
    if (best == kFree || ceiling - offset < smallest) best = offset, smallest = ceiling - offset;
    if (smallest == item.size) return best;
    offset = ceiling;
  }
}

}  // namespace memfit::packing
