// The period of an op stream: the part at its end that has repeated.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace memfit {

// From index `start` to its end, the stream repeats every `length` tokens, at least twice.
struct Period {
  std::size_t start;
  std::size_t length;
};

// z[i] = length of the longest common prefix of the reversed stream and its suffix from i; O(n).
inline std::vector<std::size_t> reversed_z(const std::uint64_t* tokens, std::size_t count) {
  auto at = [&](std::size_t i) { return tokens[count - 1 - i]; };
  std::vector<std::size_t> z(count, 0);
  std::size_t left = 0, right = 0;  // the match found so far that reaches furthest: [left, right)
  for (std::size_t i = 1; i < count; ++i) {
    if (i < right) z[i] = std::min(right - i, z[i - left]);
    while (i + z[i] < count && at(z[i]) == at(i + z[i])) ++z[i];
    if (i + z[i] > right) left = i, right = i + z[i];
  }
  return z;
}

// The largest primitive period whose square ends the stream, or nothing. The largest, since a loop of
// micro-batches inside an iteration is a shorter period of the same stream.
// O(n): the primitive squares that end a stream at least double from each to the next but one, so marking
// the multiples of each of them is a geometric sum.
inline std::optional<Period> find_period(const std::uint64_t* tokens, std::size_t count) {
  const std::vector<std::size_t> z = reversed_z(tokens, count);
  std::vector<bool> is_power(count / 2 + 1, false);
  std::optional<Period> best;
  for (std::size_t p = 1; 2 * p <= count; ++p) {
    if (z[p] < p || is_power[p]) continue;
    const std::size_t run = z[p] + p;
    for (std::size_t multiple = 2 * p; 2 * multiple <= run; multiple += p) is_power[multiple] = true;
    best = Period{count - run, p};
  }
  return best;
}

}  // namespace memfit
