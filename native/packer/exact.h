// Depth-first search for a plan under a capacity; when it ends by itself without one, there is none.
//
// After the ideas of MiniMalloc (Moffitt, ASPLOS 2023): of all plans, look only at one in which no item can
// move down, and place its items in order of their offsets. Each then lies at the lowest offset that what is
// placed leaves it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "packer/clock.h"
#include "packer/problem.h"

namespace memfit::packing {

// Each rule only prunes; a test turns them off one by one and must see the same optimum.
struct Rules {
  bool dominance = true;  // nothing goes above a hole that another item could fill
  bool suffixes = true;   // what cannot lie below an offset must fit above it, in every section
  bool twins = true;      // of equal items the first goes lower; of equal spans stacked, likewise
  bool split = true;      // parts that share no section any more are searched one by one
};

enum class Verdict { kFound, kNone, kOutOfWork };

class Exact {
 public:
  // `order` lists every free item, most wanted first among equal offsets. Fixed items may not be in it.
  Exact(const Problem& problem, const std::vector<std::int32_t>& order, Rules rules = {});
  ~Exact();

  // Searches until `work` is used up (about a nanosecond each; counted down in place) or `stop` says so. On kFound
  // `offsets()` is a plan of footprint at most `capacity`.
  Verdict search(Quanta capacity, std::int64_t& work, const Stop& stop);

  const Offsets& offsets() const;

 private:
  class Search;
  std::unique_ptr<Search> search_;
};

// As many items as the search is worth its memory and time for.
constexpr std::size_t kSearchable = 3000;

// Whether the search can count as high as the offsets of `problem` go.
bool is_searchable(const Problem& problem);

}  // namespace memfit::packing
