// The nouns of packing: lifetimes as spans of sections, sizes as quanta, and the bound no plan can beat.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace memfit::packing {

using Quanta = std::int64_t;  // bytes divided by `Problem::quantum_bytes`

constexpr Quanta kFree = -1;  // no offset yet, or none prescribed

// Half-open range of sections.
struct Span {
  std::int32_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

// One stretch of bytes to place. A lifetime that wraps round the period has a second span.
struct Item {
  Span spans[2];
  Quanta size = 0;
  Quanta fixed = kFree;
};

inline bool overlaps(Span a, Span b) { return a.begin < b.end && b.begin < a.end; }

inline bool conflicts(const Item& a, const Item& b) {
  return overlaps(a.spans[0], b.spans[0]) || overlaps(a.spans[0], b.spans[1]) || overlaps(a.spans[1], b.spans[0]) ||
         overlaps(a.spans[1], b.spans[1]);
}

inline std::int64_t length(const Item& item) {
  return std::int64_t{item.spans[0].end} - item.spans[0].begin + item.spans[1].end - item.spans[1].begin;
}

// A moment that matters is one right after a run of births: two items conflict iff they share such a section.
struct Problem {
  std::vector<Item> items;
  std::int32_t sections = 0;
  std::int64_t quantum_bytes = 1;
  Quanta lower_bound = 0;        // of any plan: the peak of live quanta, and the top of what is fixed
  std::vector<Quanta> pressure;  // by section: the live quanta

  std::size_t size() const { return items.size(); }
};

// Columns of lifetimes; half-open [lower, upper). `offset` is kFree or a multiple of `alignment`.
struct Lifetimes {
  const std::int64_t *lower, *upper, *size_bytes, *offset_bytes;
  std::size_t count;
};

// `slots[i]` is how many items, in a row, belong to lifetime i: several if it outlives the period, whose
// instances take turns. One of no bytes has slots but no items. `period` 0 is linear time.
struct Table {
  Problem problem;
  std::vector<std::int32_t> slots;
};

// Throws std::invalid_argument on malformed columns.
Table build(const Lifetimes& lifetimes, std::int64_t alignment, std::int64_t period);

using Offsets = std::vector<Quanta>;

// Highest end of any item. Every item must be placed.
Quanta footprint(const Problem& problem, const Offsets& offsets);

}  // namespace memfit::packing
