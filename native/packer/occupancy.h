// Occupancy: the bytes that are taken at each time, as a tree over time whose nodes hold merged ranges of offsets.
#pragma once

#include <cstdint>
#include <vector>

#include "packer/floor.h"
#include "packer/problem.h"

namespace memfit::packing {

struct Range {
  Quanta lo, hi;
};

// Disjoint, sorted, none touching the next: a stack of any number of items without holes is one range.
class RangeSet {
 public:
  void add(Quanta lo, Quanta hi);
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// A node's `cover` is what lives throughout its sections (and not its parent's), `touch` what lives at any of
// them. What an item can meet is then the touch of the nodes that make up its span and the cover of the nodes
// above: O(log n) sets. Memory is O(n log n) at worst, and near linear since stacks merge.
class Occupancy {
 public:
  explicit Occupancy(std::int32_t sections);

  void add(const Item& item, Quanta offset);

  // Lowest offset at which the item meets nothing.
  Quanta first_fit(const Item& item);

  // Bottom of the smallest sufficient hole below something taken; if there is none, right above everything.
  Quanta best_fit(const Item& item);

  // The cost of all that, in about nanoseconds.
  std::int64_t work() const { return work_; }

 private:
  void collect(const Item& item);
  void collect(Span span);
  void add(Span span, Quanta lo, Quanta hi);
  Quanta floor(const Item& item);
  void climb(Quanta& offset, Quanta size);

  std::int32_t leaves_;
  std::int64_t work_ = 0;
  std::vector<RangeSet> cover_, touch_;
  Floor floor_;
  std::vector<const std::vector<Range>*> met_;  // scratch: the sets the item at hand can meet
  std::vector<std::size_t> cursor_;             // scratch: in each of them, the first range not yet passed
};

}  // namespace memfit::packing
