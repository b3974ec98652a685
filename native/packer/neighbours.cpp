#include "packer/neighbours.h"

#include <limits>

namespace memfit::packing {

Neighbours::Neighbours(const Problem& problem) : problem_(problem), seen_(problem.size(), 0) {
  for (std::size_t i = 0; i < problem.size(); ++i)
    for (const Span& span : problem.items[i].spans)
      if (!span.empty()) pieces_.push_back({span.begin, span.end, static_cast<std::int32_t>(i)});
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.item < b.item;
  });
  const auto count = static_cast<std::int32_t>(pieces_.size());
  while (leaves_ * kLeaf < count) leaves_ *= 2;
  first_begin_.assign(2 * static_cast<std::size_t>(leaves_), std::numeric_limits<std::int32_t>::max());
  latest_end_.assign(2 * static_cast<std::size_t>(leaves_), -1);
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t leaf = leaves_ + i / kLeaf;
    first_begin_[leaf] = std::min(first_begin_[leaf], pieces_[i].begin);
    latest_end_[leaf] = std::max(latest_end_[leaf], pieces_[i].end);
  }
  for (std::int32_t node = leaves_ - 1; node > 0; --node) {
    first_begin_[node] = first_begin_[2 * node];
    latest_end_[node] = std::max(latest_end_[2 * node], latest_end_[2 * node + 1]);
  }
}

}  // namespace memfit::packing
