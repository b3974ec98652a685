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
  for (std::size_t i = 0; i < problem.size(); ++i)
    if (problem.items[i].fixed != kFree) ids_.push_back(static_cast<std::int32_t>(i));
  for (std::int32_t id : order_by(problem, {Key::kSize, Key::kLength}))
    (ids_.size() < limit ? ids_ : rest_).push_back(id);
  std::sort(ids_.begin(), ids_.end());
  core_ = extract(problem, ids_);
}

Offsets Core::complete(const Offsets& core_offsets) const {
  Offsets offsets(whole_.size(), kFree);
  for (std::size_t i = 0; i < ids_.size(); ++i) offsets[ids_[i]] = core_offsets[i] * core_.quantum_bytes;
  if (is_whole()) return offsets;
  return place(whole_, rest_, Fit::kFirst, std::move(offsets));
}

}  // namespace memfit::packing
