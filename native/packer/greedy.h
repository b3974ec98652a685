// One plan from one order: items are placed one after another where they fit.
#pragma once

#include <cstdint>
#include <vector>

#include "packer/problem.h"

namespace memfit::packing {

enum class Fit { kFirst, kBest };

enum class Key { kSize, kLength, kArea, kStart, kPressure, kDegree };

// Free items by `first` descending, ties by `second`, then by birth. kStart is ascending.
std::vector<std::int32_t> order_by(const Problem& problem, Key first, Key second);

// Places fixed items as they are, then those of `order` in turn.
Offsets place(const Problem& problem, const std::vector<std::int32_t>& order, Fit fit);

}  // namespace memfit::packing
