// Neighbours: the items that share a section with a given one, without a graph of all pairs: memory is linear.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "packer/problem.h"

namespace memfit::packing {

class Neighbours {
 public:
  explicit Neighbours(const Problem& problem);

  // Calls visit(item) once for each item that `item` conflicts with; O(log n) for each visit.
  template <typename Visit>
  void each(std::int32_t item, Visit visit) {
    const Item& own = problem_.items[item];
    if (++stamp_ == 0) stamp_ = 1, std::fill(seen_.begin(), seen_.end(), 0);
    seen_[item] = stamp_;
    for (const Span& span : own.spans)
      if (!span.empty()) each_in(span, visit);
  }

 private:
  struct Piece {
    std::int32_t begin, end, item;
  };

  template <typename Visit>
  void each_in(Span span, Visit& visit) {
    // Walks the tree of latest ends depth first, over pieces sorted by begin.
    std::int32_t stack[64];
    int depth = 0;
    stack[depth++] = 1;
    while (depth > 0) {
      const std::int32_t node = stack[--depth];
      if (first_begin_[node] >= span.end || latest_end_[node] <= span.begin) continue;
      if (node < leaves_) {
        stack[depth++] = 2 * node + 1;
        stack[depth++] = 2 * node;
        continue;
      }
      const std::int32_t from = (node - leaves_) * kLeaf;
      const std::int32_t to = std::min<std::int32_t>(from + kLeaf, static_cast<std::int32_t>(pieces_.size()));
      for (std::int32_t i = from; i < to; ++i) {
        const Piece& piece = pieces_[i];
        if (piece.begin >= span.end || piece.end <= span.begin || seen_[piece.item] == stamp_) continue;
        seen_[piece.item] = stamp_;
        visit(piece.item);
      }
    }
  }

  static constexpr std::int32_t kLeaf = 8;  // pieces in a leaf of the tree

  const Problem& problem_;
  std::vector<Piece> pieces_;
  std::int32_t leaves_ = 1;
  std::vector<std::int32_t> first_begin_, latest_end_;  // by node
  std::vector<std::uint32_t> seen_;                     // by item: the last query that met it
  std::uint32_t stamp_ = 0;
};

}  // namespace memfit::packing
