// Marks on places in a row, of which the next one is found in O(log n): words of bits, and words that say which of
// these have any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace memfit::swapping {

class Marks {
 public:
  // Marks all of `count` places.
  void reset(std::size_t count) {
    count_ = count;
    levels_.clear();
    do {
      const std::size_t words = (count + 63) / 64;
      levels_.emplace_back(words, ~std::uint64_t{0});
      if (count % 64 != 0) levels_.back().back() = (std::uint64_t{1} << count % 64) - 1;
      count = words;
    } while (count > 1);
  }

  void set(std::size_t at) {
    for (auto& words : levels_) words[at / 64] |= bit(at), at /= 64;
  }

  void clear(std::size_t at) {
    for (auto& words : levels_) {
      words[at / 64] &= ~bit(at);
      if (words[at / 64] != 0) return;
      at /= 64;
    }
  }

  // The first marked place at or after `from`, or their count.
  std::size_t next(std::size_t from) const {
    for (std::size_t level = 0; level < levels_.size(); ++level) {
      if (from / 64 >= levels_[level].size()) return count_;
      const std::uint64_t rest = levels_[level][from / 64] & (~std::uint64_t{0} << from % 64);
      if (rest != 0) return down(level, from / 64 * 64 + lowest(rest));
      from = from / 64 + 1;
    }
    return count_;
  }

 private:
  static std::uint64_t bit(std::size_t at) { return std::uint64_t{1} << at % 64; }

  static std::size_t lowest(std::uint64_t word) {
    std::size_t at = 0;
    for (int half = 32; half > 0; half /= 2)
      if ((word << (64 - half)) == 0) word >>= half, at += half;
    return at;
  }

  std::size_t down(std::size_t level, std::size_t at) const {
    while (level > 0) --level, at = at * 64 + lowest(levels_[level][at]);
    return at;
  }

  std::size_t count_ = 0;
  std::vector<std::vector<std::uint64_t>> levels_;
};

}  // namespace memfit::swapping
