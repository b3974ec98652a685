// Fingerprint: 64 bits that tell whether bytes have changed, at the speed at which memory can be read.
//
// Eight chains of one multiplication a word, so that none waits for another. Each step can be undone given the word,
// so that one changed word always changes its chain; the rotation carries the high bits down to where the next
// multiplication spreads them, without it two flipped signs would cancel out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace memfit {

inline uint64_t fingerprint(const void* data, size_t size) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15ull;
  constexpr size_t kLanes = 8, kStripe = kLanes * sizeof(uint64_t);
  auto step = [](uint64_t lane, uint64_t word) {
    lane ^= word;
    return ((lane << 29) | (lane >> 35)) * kFactor;
  };
  uint64_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = (size + i) * kFactor;
  const auto* bytes = static_cast<const unsigned char*>(data);
  size_t done = 0;
  for (; done + kStripe <= size; done += kStripe) {
    uint64_t words[kLanes];
    std::memcpy(words, bytes + done, kStripe);
#pragma GCC unroll 8
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = step(lanes[i], words[i]);
  }
  uint64_t rest[kLanes] = {};
  std::memcpy(rest, bytes + done, size - done);
  uint64_t whole = size;
  for (size_t i = 0; i < kLanes; ++i) whole = step(step(whole, step(lanes[i], rest[i])), i);
  whole ^= whole >> 32;
  return whole * kFactor;
}

}  // namespace memfit
