// Shuffles: the bytes, or the bits, of numbers next to those of the same place in the other numbers, where they are alike.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memfit::compression {

// How many leading bytes of `size` a shuffle takes: whole groups of eight numbers of `width` (1, 2, 4 or 8) bytes.
constexpr size_t shuffled_bytes(size_t size, size_t width) { return size / (8 * width) * (8 * width); }

// For each target processor; `size` is one of `shuffled_bytes`. The two places do not overlap.
struct Shuffles {
  const char* name;
  // To `width` planes of bytes, one behind another, and back.
  void (*bytes)(const uint8_t* from, size_t size, size_t width, uint8_t* to);
  void (*bytes_back)(const uint8_t* from, size_t size, size_t width, uint8_t* to);
  // Likewise to 8 * `width` planes of bits.
  void (*bits)(const uint8_t* from, size_t size, size_t width, uint8_t* to);
  void (*bits_back)(const uint8_t* from, size_t size, size_t width, uint8_t* to);
};

const Shuffles& plain_shuffles();
const Shuffles& fastest_shuffles();

}  // namespace memfit::compression
