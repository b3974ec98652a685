// The largest items of a problem as a problem of their own: few enough for the exact search. What is left is
// small and goes into the holes.
#pragma once

#include <cstdint>
#include <vector>

#include "packer/clock.h"
#include "packer/problem.h"

namespace memfit::packing {

class Core {
 public:
  // All fixed items and the largest free ones, `limit` items at most; all items if there are no more than that.
  Core(const Problem& problem, std::size_t limit);

  const Problem& problem() const { return core_; }
  bool is_whole() const { return core_.size() == whole_.size(); }

  // The largest capacity of the core that is no more than this one of the whole problem.
  Quanta scale(Quanta capacity) const { return capacity / core_.quantum_bytes; }

  // A plan of the whole problem around one of the core; under `capacity` if one of its attempts is. Counts down `work`
  // as a search does.
  Offsets complete(const Offsets& core_offsets, Quanta capacity, std::int64_t& work, const Stop& stop) const;

 private:
  const Problem& whole_;
  std::vector<std::int32_t> ids_;   // by core item
  std::vector<std::vector<std::int32_t>> rests_;  // free items outside the core, in the orders that fill holes best
  Problem core_;                    // its quantum counts quanta of the whole
};

}  // namespace memfit::packing
