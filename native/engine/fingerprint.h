// Fingerprint: 64 bits that tell whether bytes have changed, at the speed at which memory can be read.
//
// Thirty-two chains of one multiplication a word, so that none waits for another and a processor with wide registers
// takes eight at once. Each step can be undone given the word, so that one changed word always changes its chain; the
// rotation carries the high bits down to where the next multiplication spreads them, without it two flipped signs
// would cancel out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace memfit {
namespace fingerprints {

constexpr uint64_t kFactor = 0x9E3779B97F4A7C15ull;
constexpr size_t kLanes = 32, kStripe = kLanes * sizeof(uint64_t);
constexpr size_t kAhead = 4096;  // bytes: the processor itself looks no further than the end of a page

inline uint64_t step(uint64_t lane, uint64_t word) {
  lane ^= word;
  return ((lane << 29) | (lane >> 35)) * kFactor;
}

// Step every lane over the whole stripes among the bytes; return where the rest begins.
using Absorb = size_t (*)(uint64_t*, const unsigned char*, size_t);

inline size_t absorb(uint64_t* lanes, const unsigned char* bytes, size_t size) {
  size_t done = 0;
  for (; done + kStripe <= size; done += kStripe)
    for (size_t i = 0; i < kLanes; ++i) {
      uint64_t word;
      std::memcpy(&word, bytes + done + i * sizeof word, sizeof word);
      lanes[i] = step(lanes[i], word);
    }
  return done;
}

// AVX2 has no multiplication of 64 bits: it would be no faster than the plain loop.
#if defined(__x86_64__)
[[gnu::target("avx512f,avx512dq")]] inline size_t absorb_avx512(uint64_t* lanes, const unsigned char* bytes, size_t size) {
  using Wide = uint64_t __attribute__((vector_size(64)));
  constexpr size_t kWide = kStripe / sizeof(Wide);
  Wide wide[kWide];
  std::memcpy(wide, lanes, kStripe);
  size_t done = 0;
  for (; done + kStripe <= size; done += kStripe) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kWide; ++i) {
      Wide word;
      __builtin_prefetch(bytes + done + i * sizeof(Wide) + kAhead, 0, 0);
      std::memcpy(&word, bytes + done + i * sizeof(Wide), sizeof(Wide));
      word ^= wide[i];
      wide[i] = ((word << 29) | (word >> 35)) * kFactor;
    }
  }
  std::memcpy(lanes, wide, kStripe);
  return done;
}
#endif

inline Absorb fastest() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512dq")) return absorb_avx512;
#endif
  return absorb;
}

inline uint64_t of(const void* data, size_t size, Absorb absorb_stripes) {
  uint64_t lanes[kLanes], rest[kLanes] = {};
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = (size + i) * kFactor;
  const auto* bytes = static_cast<const unsigned char*>(data);
  size_t done = absorb_stripes(lanes, bytes, size);
  std::memcpy(rest, bytes + done, size - done);
  uint64_t whole = size;
  for (size_t i = 0; i < kLanes; ++i) whole = step(step(whole, step(lanes[i], rest[i])), i);
  whole ^= whole >> 32;
  return whole * kFactor;
}

}  // namespace fingerprints

inline uint64_t fingerprint(const void* data, size_t size) {
  static const fingerprints::Absorb fastest = fingerprints::fastest();
  return fingerprints::of(data, size, fastest);
}

}  // namespace memfit
