// A cheap way to fold values into one hash.
#pragma once

#include <cstdint>

namespace memfit {

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 32);
}

}  // namespace memfit
