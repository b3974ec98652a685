// The bytes from the bottom on that are taken at each section without a hole: no offset below them is free there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "packer/problem.h"

namespace memfit::packing {

// A tree over sections; a node has the highest floor of its sections. What is put down on the floor raises it. What was
// already above it is not looked at: a floor may be higher than is known, never lower.
class Floor {
 public:
  explicit Floor(std::int32_t sections) {
    while (leaves_ < sections) leaves_ *= 2;
    highest_.assign(2 * static_cast<std::size_t>(leaves_), 0);
  }

  Quanta highest(Span span) { return span.empty() ? 0 : highest(1, {0, leaves_}, span); }

  void put(Span span, Quanta lo, Quanta hi) {
    if (!span.empty()) put(1, {0, leaves_}, span, lo, hi);
  }

 private:
  static bool within(Span part, Span whole) { return whole.begin <= part.begin && part.end <= whole.end; }
  static Span left_of(Span span) { return {span.begin, (span.begin + span.end) / 2}; }
  static Span right_of(Span span) { return {(span.begin + span.end) / 2, span.end}; }

  Quanta highest(std::int32_t node, Span of_node, Span span) {
    if (!overlaps(of_node, span)) return 0;
    if (within(of_node, span)) return highest_[node];
    push_down(node);
    return std::max(highest(2 * node, left_of(of_node), span), highest(2 * node + 1, right_of(of_node), span));
  }

  void put(std::int32_t node, Span of_node, Span span, Quanta lo, Quanta hi) {
    if (!overlaps(of_node, span) || highest_[node] < lo) return;  // there is a hole below it everywhere
    if (within(of_node, span)) {
      if (highest_[node] == lo) highest_[node] = hi;
      return;
    }
    push_down(node);
    put(2 * node, left_of(of_node), span, lo, hi);
    put(2 * node + 1, right_of(of_node), span, lo, hi);
    highest_[node] = std::max(highest_[2 * node], highest_[2 * node + 1]);
  }

  // A node that was raised as a whole is higher than both its children: those of them that were as high as it are, too.
  void push_down(std::int32_t node) {
    Quanta &left = highest_[2 * node], &right = highest_[2 * node + 1];
    const Quanta before = std::max(left, right);
    if (before == highest_[node]) return;
    if (left == before) left = highest_[node];
    if (right == before) right = highest_[node];
  }

  std::int32_t leaves_ = 1;
  std::vector<Quanta> highest_;
};

}  // namespace memfit::packing
