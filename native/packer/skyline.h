// One plan as a skyline over time grows: the lowest line takes the most wanted item that lives within its span.
//
// After the best fit of profile-guided memory optimisation (Sekiyama et al., 2018).
#pragma once

#include <cstdint>
#include <vector>

#include "packer/problem.h"

namespace memfit::packing {

// The cost of placing an item, in nanoseconds.
constexpr double kSkylineWork = 1000;

// Whether all items can be put on a skyline: none is fixed, and none wraps round the period.
bool is_flat(const Problem& problem);

// Places the items of `order`, the most wanted first. Counts down `work`, in about nanoseconds. The problem
// must be flat.
Offsets place_on_skyline(const Problem& problem, const std::vector<std::int32_t>& order, std::int64_t& work);

}  // namespace memfit::packing
