#include "packer/core.h"

#include <algorithm>

#include "packer/greedy.h"

namespace memfit::packing {
namespace {

// An item's time on the clock of sections, as a lifetime that may wrap.
std::int64_t upper_of(const Item& item, std::int32_t sections) {
  return item.spans[1].empty() ? item.spans[0].end : sections + item.spans[1].end;
}

Problem extract(const Problem& whole, const std::vector<std::int32_t>& ids) {
  std::vector<std::int64_t> lower, upper, size, offset;
  bool wraps = false;
  for (std::int32_t id : ids) {
    const Item& item = whole.items[id];
    lower.push_back(item.spans[0].begin);
    upper.push_back(upper_of(item, whole.sections));
    size.push_back(item.size);
    offset.push_back(item.fixed);
    wraps |= !item.spans[1].empty();
  }
  return build({lower.data(), upper.data(), size.data(), offset.data(), ids.size()}, 1, wraps ? whole.sections : 0)
      .problem;
}

}  // namespace

Core::Core(const Problem& problem, std::size_t limit) : whole_(problem) {
  std::vector<bool> is_core(problem.size(), false);
  for (std::size_t i = 0; i < problem.size(); ++i)
    if (problem.items[i].fixed != kFree) is_core[i] = true, ids_.push_back(static_cast<std::int32_t>(i));
  for (std::int32_t id : order_by(problem, {Key::kSize, Key::kLength}))
    if (ids_.size() < limit) is_core[id] = true, ids_.push_back(id);
  std::sort(ids_.begin(), ids_.end());
  core_ = extract(problem, ids_);
  if (is_whole()) return;
  for (const auto& keys : {std::vector{Key::kPressure, Key::kStart}, std::vector{Key::kSize, Key::kLength}}) {
    rests_.push_back(order_by(problem, keys));
    auto& rest = rests_.back();
    rest.erase(std::remove_if(rest.begin(), rest.end(), [&](std::int32_t id) { return is_core[id]; }), rest.end());
  }
}

Offsets Core::complete(const Offsets& core_offsets, Quanta capacity, std::int64_t& work, const Stop& stop) const {
  Offsets offsets(whole_.size(), kFree);
  for (std::size_t i = 0; i < ids_.size(); ++i) offsets[ids_[i]] = core_offsets[i] * core_.quantum_bytes;
  if (is_whole()) return offsets;
  Offsets best;
  for (const auto& rest : rests_) {
    Offsets plan = place(whole_, rest, Fit::kFirst, work, offsets);
    if (best.empty() || footprint(whole_, plan) < footprint(whole_, best)) best = std::move(plan);
    if (footprint(whole_, best) <= capacity || stop()) break;
  }
  return best;
}

}  // namespace memfit::packing
