// Brings a plan under a capacity by ejection: what sticks out is pushed back in where that costs least, and
// what it displaces is pushed in elsewhere in turn. Items that are hard to place grow dear to displace.
//
// After guided ejection search (Nagata and Braysy, 2009), there for vehicle routing.
#pragma once

#include <cstdint>
#include <vector>

#include "packer/clock.h"
#include "packer/neighbours.h"
#include "packer/problem.h"
#include "packer/random.h"

namespace memfit::packing {

class Ejection {
 public:
  Ejection(const Problem& problem, Offsets start, std::uint64_t seed);

  // Works until nothing ends above `capacity`, or `work` (looks at a neighbour) is used up; counts it down.
  bool fit_under(Quanta capacity, std::int64_t& work, const Stop& stop);

  // A plan under the last capacity that was met.
  const Offsets& offsets() const { return best_; }

 private:
  struct Taken {
    Quanta lo, hi;
    std::int32_t item;
  };

  void find_taken(std::int32_t item);
  Quanta find_gap(std::int32_t item) const;
  void push_in(std::int32_t item);
  Quanta cheapest(std::int32_t item);
  double price(std::int32_t item) const;
  void eject(std::int32_t item);

  const Problem& problem_;
  Neighbours neighbours_;
  Random random_;
  Offsets offsets_, best_;
  std::vector<std::int32_t> pool_;  // not placed, the next to place last
  std::vector<double> penalty_;     // by item: how often it could not be placed
  Quanta capacity_ = 0;
  double mean_size_ = 1;
  std::vector<Taken> taken_;          // scratch: what the item at hand meets, by lo
  std::vector<std::pair<Quanta, double>> ends_;  // scratch: their ends and prices, by end
};

}  // namespace memfit::packing
