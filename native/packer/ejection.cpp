#include "packer/ejection.h"

#include <algorithm>
#include <limits>

namespace memfit::packing {

Ejection::Ejection(const Problem& problem, Offsets start, std::uint64_t seed)
    : problem_(problem),
      neighbours_(problem),
      random_(seed),
      offsets_(start),
      best_(std::move(start)),
      penalty_(problem.size(), 1.0) {
  double sum = 0;
  for (const Item& item : problem.items) sum += static_cast<double>(item.size);
  mean_size_ = std::max(1.0, sum / static_cast<double>(std::max<std::size_t>(1, problem.size())));
}

bool Ejection::fit_under(Quanta capacity, std::int64_t& work, const Stop& stop) {
  capacity_ = capacity;
  for (std::size_t i = 0; i < problem_.size(); ++i)
    if (problem_.items[i].fixed == kFree && offsets_[i] != kFree && offsets_[i] + problem_.items[i].size > capacity)
      eject(static_cast<std::int32_t>(i));
  std::sort(pool_.begin(), pool_.end(), [&](std::int32_t a, std::int32_t b) {
    return std::pair(problem_.items[a].size, a) < std::pair(problem_.items[b].size, b);
  });
  while (!pool_.empty() && work > 0 && !stop()) {
    const std::int32_t item = pool_.back();
    pool_.pop_back();
    find_taken(item);
    work -= static_cast<std::int64_t>(taken_.size()) + 64;
    offsets_[item] = find_gap(item);
    if (offsets_[item] == kFree) push_in(item);
  }
  if (!pool_.empty()) return false;
  best_ = offsets_;
  return true;
}

void Ejection::find_taken(std::int32_t item) {
  taken_.clear();
  neighbours_.each(item, [&](std::int32_t other) {
    const Quanta at = offsets_[other];
    if (at != kFree) taken_.push_back({at, at + problem_.items[other].size, other});
  });
  std::sort(taken_.begin(), taken_.end(), [](const Taken& a, const Taken& b) {
    return a.lo != b.lo ? a.lo < b.lo : a.item < b.item;
  });
}

// Bottom of the smallest sufficient gap, or kFree.
Quanta Ejection::find_gap(std::int32_t item) const {
  const Quanta size = problem_.items[item].size;
  Quanta best = kFree, smallest = std::numeric_limits<Quanta>::max(), top = 0;
  const auto look = [&](Quanta ceiling) {
    const Quanta gap = ceiling - top;
    if (gap >= size && gap < smallest) best = top, smallest = gap;
  };
  for (const Taken& taken : taken_) {
    look(std::min(taken.lo, capacity_));
    top = std::max(top, taken.hi);
  }
  look(capacity_);
  return best;
}

void Ejection::push_in(std::int32_t item) {
  penalty_[item] += 1;
  const Quanta lo = cheapest(item), hi = lo + problem_.items[item].size;
  if (lo == kFree) {  // only fixed items are in its way: no capacity this low can be met
    pool_.insert(pool_.begin(), item);
    return;
  }
  for (const Taken& taken : taken_)
    if (taken.lo < hi && lo < taken.hi) eject(taken.item);
  offsets_[item] = lo;
}

double Ejection::price(std::int32_t item) const {
  if (problem_.items[item].fixed != kFree) return 1e30;
  return penalty_[item] * (0.1 + static_cast<double>(problem_.items[item].size) / mean_size_);
}

// The offset at which what has to leave is cheapest; candidates are at the ends of what is taken.
Quanta Ejection::cheapest(std::int32_t item) {
  const Quanta size = problem_.items[item].size, last = capacity_ - size;
  if (last < 0) return kFree;
  ends_.clear();
  for (const Taken& taken : taken_) ends_.emplace_back(taken.hi, price(taken.item));
  std::sort(ends_.begin(), ends_.end());
  Quanta best = kFree;
  double least = 1e30;
  const auto consider = [&](Quanta offset, double cost) {
    cost *= 1 + 0.05 * random_.unit();
    if (cost < least) best = offset, least = cost;
  };
  // Upward over offsets right above something: `in` counts begins below the item's top, `out` ends passed.
  std::size_t in = 0, out = 0;
  double cost = 0;
  const auto at = [&](Quanta offset) {
    while (in < taken_.size() && taken_[in].lo < offset + size) cost += price(taken_[in++].item);
    while (out < ends_.size() && ends_[out].first <= offset) cost -= ends_[out++].second;
    if (cost < 1e29) consider(offset, std::max(cost, 0.0));
  };
  std::size_t below = 0, above = 0;
  Quanta previous = -1;
  at(0);
  while (below < ends_.size() || above < taken_.size()) {
    const Quanta on = below < ends_.size() ? ends_[below].first : std::numeric_limits<Quanta>::max();
    const Quanta under = above < taken_.size() ? taken_[above].lo - size : std::numeric_limits<Quanta>::max();
    const Quanta offset = std::min(on, under);
    if (on == offset) ++below;
    if (under == offset) ++above;
    if (offset <= 0 || offset > last || offset == previous) continue;
    at(previous = offset);
  }
  if (last > previous) at(last);
  return best;
}

void Ejection::eject(std::int32_t item) {
  offsets_[item] = kFree;
  pool_.push_back(item);
}

}  // namespace memfit::packing
