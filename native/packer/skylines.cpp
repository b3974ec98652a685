#include "packer/skylines.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "packer/greedy.h"
#include "packer/skyline.h"

namespace memfit::packing {
namespace {

// The first plans shake the plain orders, so that the search does not start from the luck of one.
constexpr std::int64_t kFirstPlans = 32;
constexpr double kFirstNoise[] = {0.01, 0.03}, kNoise[] = {0.0005, 0.002, 0.01};
constexpr std::int64_t kMoves = 3;
constexpr std::int64_t kOrderWork = 150;  // of each item, to shake and sort it

}  // namespace

Skylines::Skylines(const Problem& problem, std::uint64_t seed)
    : problem_(problem),
      random_(seed),
      plain_{order_by(problem, {Key::kLength, Key::kSize}), order_by(problem, {Key::kArea, Key::kSize})} {}

bool Skylines::improve(Quanta goal, std::int64_t plans, std::int64_t& work, const Stop& stop) {
  const Quanta before = footprint_;
  do {
    std::vector<std::int32_t> order = next_order();
    work -= kOrderWork * static_cast<std::int64_t>(order.size());
    Offsets offsets = place_on_skyline(problem_, order, work);
    const Quanta top = footprint(problem_, offsets);
    if (!best_.empty() && top > footprint_) continue;  // an equal one leads away from where the search is stuck
    best_order_ = std::move(order);
    best_ = std::move(offsets);
    footprint_ = top;
  } while (footprint_ > goal && --plans > 0 && work > 0 && !stop());
  return before == 0 || footprint_ < before;
}

std::vector<std::int32_t> Skylines::next_order() {
  const std::int64_t turn = made_++;
  if (turn < kFirstPlans) {
    std::vector<std::int32_t> order = plain_[turn % 2];
    if (turn >= 2) shake(order, kFirstNoise[turn / 2 % 2], random_);
    return order;
  }
  std::vector<std::int32_t> order = best_order_;
  if (turn % 2 == 0)
    shake(order, kNoise[turn / 2 % 3], random_);
  else
    move_some(order);
  return order;
}

void Skylines::move_some(std::vector<std::int32_t>& order) {
  for (std::uint64_t moves = 1 + random_.below(kMoves); moves > 0; --moves) {
    const auto from = static_cast<std::ptrdiff_t>(random_.below(order.size()));
    const auto to = static_cast<std::ptrdiff_t>(random_.below(order.size()));
    const auto begin = order.begin();
    if (from < to) std::rotate(begin + from, begin + from + 1, begin + to + 1);
    if (to < from) std::rotate(begin + to, begin + from, begin + from + 1);
  }
}

}  // namespace memfit::packing
