// The speed of copies between memory and a tier.
#pragma once

#include <cstddef>

#include "tier.h"

namespace memfit {

// Seconds of a copy each way: alone, and while the other direction is busy too.
struct LinkTimes {
  double out = 0, in = 0, out_beside = 0, in_beside = 0;
};

// The median of `repeats` copies of `size` bytes. Raises TierFailure.
LinkTimes measure_link(Tier& tier, size_t size, size_t repeats);

}  // namespace memfit
