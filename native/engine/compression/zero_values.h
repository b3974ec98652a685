// Zero-value compression: one bit for each word of 32, whether it is zero, and the words that are not.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memfit::compression {

// Bytes that may be written beyond the end of what these make, and read beyond the end of what they are given to expand.
inline constexpr size_t kSlack = 64;

struct ZeroValues {
  const char* name;
  // Words of `words` without the zeros to `to`, and a mask for each sixteen of them to `masks`; returns how many are left.
  size_t (*squeeze)(const uint8_t* words, size_t count, uint16_t* masks, uint8_t* to);
  // The masks have as many bits as there are words in `from`.
  void (*expand)(const uint8_t* from, size_t count, const uint16_t* masks, uint8_t* words);
};

const ZeroValues& plain_zero_values();
const ZeroValues& fastest_zero_values();

// A compressed form of `size` bytes, which has room for `most_squeezed` of them and the slack; returns its size.
size_t squeeze_zeros(const ZeroValues& how, const uint8_t* from, size_t size, uint8_t* to);
constexpr size_t most_squeezed(size_t size) { return size + size / 32 + 2; }
// False: it is not what `squeeze_zeros` makes of so many bytes.
bool expand_zeros(const ZeroValues& how, const uint8_t* from, size_t stored, uint8_t* to, size_t size);

}  // namespace memfit::compression
