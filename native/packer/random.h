// A generator whose numbers are the same on every platform; the standard distributions are not.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace memfit::packing {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234567) {}

  std::uint64_t next() {  // splitmix64
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound).
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

  // Uniform in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

// Moves each item of the order by about `noise` times its length.
inline void shake(std::vector<std::int32_t>& order, double noise, Random& random) {
  if (noise == 0) return;
  std::vector<std::pair<double, std::int32_t>> keyed;
  const double reach = noise * static_cast<double>(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double step = random.unit() + random.unit() + random.unit() + random.unit() - 2;  // variance 1/3
    keyed.emplace_back(static_cast<double>(i) + 1.73 * reach * step, order[i]);
  }
  std::sort(keyed.begin(), keyed.end());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = keyed[i].second;
}

}  // namespace memfit::packing
