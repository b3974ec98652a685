// Codecs: how a stretch of bytes is made smaller, and the same bytes again. None of them knows of tiers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "zero_values.h"

namespace memfit::compression {

inline constexpr size_t kMostBytes = size_t{256} << 10;  // of one stretch

enum class Kind : uint8_t {
  kRaw,     // as they are
  kZeros,   // words that are zero take a bit
  kPlanes,  // bytes of the same place in each number that are all equal are dropped
  kBits,    // bits of the same place in each number next to each other, and LZ4 of that
};

struct Codec {
  Kind kind;
  size_t width;  // bytes of a number
};

inline constexpr std::array<Codec, 8> kCodecs = {{{Kind::kRaw, 1}, {Kind::kZeros, 4}, {Kind::kPlanes, 4}, {Kind::kPlanes, 8},
                                                  {Kind::kBits, 1}, {Kind::kBits, 2}, {Kind::kBits, 4}, {Kind::kBits, 8}}};

// A codec's number among these.
using CodecId = uint8_t;
inline constexpr CodecId kRaw = 0;

// A compressed stretch, and what it takes to make it.
struct Scratch {
  static constexpr size_t kRoom = most_squeezed(kMostBytes) + kSlack;
  alignas(64) uint8_t packed[kRoom], shuffled[kRoom], plain[kMostBytes + kSlack];
};
// The calling thread's.
Scratch& scratch();

// Makes `scratch.packed` of `size` bytes (at most kMostBytes); returns its size, 0 if that would not be below `size`.
size_t compress(CodecId codec, const uint8_t* from, size_t size, Scratch& scratch);
// The bytes of which `scratch.packed` was made. False: it was made of none.
bool decompress(CodecId codec, size_t stored, uint8_t* to, size_t size, Scratch& scratch);

}  // namespace memfit::compression
