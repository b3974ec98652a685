// One plan from one order: items are placed one after another where they fit.
#pragma once

#include <cstdint>
#include <vector>

#include "packer/problem.h"

namespace memfit::packing {

enum class Fit { kFirst, kBest };

// The most that placing an item may cost, in nanoseconds, with tens of thousands.
constexpr double kFirstFitWork = 2000, kBestFitWork = 10000;

// kPressure is the peak over the item's sections, kTotalPressure the sum.
enum class Key { kSize, kLength, kArea, kStart, kPressure, kTotalPressure, kDegree };

// Free items by `keys` descending (kStart ascending), the first key first.
std::vector<std::int32_t> order_by(const Problem& problem, const std::vector<Key>& keys);

// Places fixed items and those that have offsets already as they are, then those of `order` in turn. Counts down
// `work`, in about nanoseconds.
Offsets place(const Problem& problem, const std::vector<std::int32_t>& order, Fit fit, std::int64_t& work,
              Offsets offsets = {});

}  // namespace memfit::packing
