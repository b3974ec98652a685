#include "shuffle.h"

#include <algorithm>
#include <cstring>

namespace memfit::compression {

namespace {

#define MEMFIT_INLINE [[gnu::always_inline]] inline

constexpr size_t kChunk = 2048;    // numbers that are shuffled at a time, so that all passes stay in the first cache
constexpr size_t kLargest = 8;     // bytes of a number
constexpr size_t kBuffer = kChunk * kLargest;

// The compiler's vectors of so many bytes (`Bytes`: half as many), which it turns into those of its target.
template <size_t kWide>
struct Vectors;
#define MEMFIT_VECTORS(wide)                                                                                           \
  template <>                                                                                                          \
  struct Vectors<wide> {                                                                                               \
    typedef uint8_t Bytes __attribute__((vector_size(wide / 2)));                                                        \
    typedef uint16_t Pairs __attribute__((vector_size(wide)));                                                         \
    typedef uint64_t Words __attribute__((vector_size(wide)));                                                         \
  };
MEMFIT_VECTORS(16)
MEMFIT_VECTORS(32)
MEMFIT_VECTORS(64)

// `kWide` bytes a step.
template <size_t kWide>
struct Passes {
  using Bytes = typename Vectors<kWide>::Bytes;
  using Pairs = typename Vectors<kWide>::Pairs;
  using Words = typename Vectors<kWide>::Words;

  // The even bytes to `to`, and the odd ones behind them.
  MEMFIT_INLINE static void part(const uint8_t* from, size_t size, uint8_t* to) {
    size_t i = 0;
    for (; i + kWide <= size; i += kWide) {
      Pairs pairs;
      std::memcpy(&pairs, from + i, kWide);
      const Bytes even = __builtin_convertvector(pairs & 0xff, Bytes), odd = __builtin_convertvector(pairs >> 8, Bytes);
      std::memcpy(to + i / 2, &even, sizeof even);
      std::memcpy(to + (size + i) / 2, &odd, sizeof odd);
    }
    for (; i < size; i += 2) to[i / 2] = from[i], to[(size + i) / 2] = from[i + 1];
  }

  MEMFIT_INLINE static void join(const uint8_t* from, size_t size, uint8_t* to) {
    size_t i = 0;
    for (; i + kWide <= size; i += kWide) {
      Bytes even, odd;
      std::memcpy(&even, from + i / 2, sizeof even);
      std::memcpy(&odd, from + (size + i) / 2, sizeof odd);
      const Pairs pairs = __builtin_convertvector(even, Pairs) | (__builtin_convertvector(odd, Pairs) << 8);
      std::memcpy(to + i, &pairs, kWide);
    }
    for (; i < size; i += 2) to[i] = from[i / 2], to[i + 1] = from[(size + i) / 2];
  }

  // Each eight bytes are eight rows of eight bits; rows become columns. Its own inverse.
  template <typename Word>
  MEMFIT_INLINE static void turn_at(uint8_t* bytes) {
    Word x;
    std::memcpy(&x, bytes, sizeof x);
    Word y = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAull;
    x ^= y ^ (y << 7);
    y = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCull;
    x ^= y ^ (y << 14);
    y = (x ^ (x >> 28)) & 0x00000000F0F0F0F0ull;
    x ^= y ^ (y << 28);
    std::memcpy(bytes, &x, sizeof x);
  }

  MEMFIT_INLINE static void turn(uint8_t* bytes, size_t size) {
    size_t i = 0;
    for (; i + kWide <= size; i += kWide) turn_at<Words>(bytes + i);
    for (; i < size; i += 8) turn_at<uint64_t>(bytes + i);
  }

  // Each of `parts` equal parts is parted, or two are joined, until there are `until`. Returns which of the two places,
  // `now` where the bytes are and `spare`, they are in then.
  MEMFIT_INLINE static uint8_t* part_until(uint8_t* now, uint8_t* spare, size_t size, size_t parts, size_t until) {
    for (; parts < until; parts *= 2, std::swap(now, spare))
      for (size_t i = 0; i < parts; ++i) part(now + i * (size / parts), size / parts, spare + i * (size / parts));
    return now;
  }
  MEMFIT_INLINE static uint8_t* join_until(uint8_t* now, uint8_t* spare, size_t size, size_t parts, size_t until) {
    for (; parts > until; parts /= 2, std::swap(now, spare))
      for (size_t i = 0; i < parts / 2; ++i)
        join(now + i * (2 * size / parts), 2 * size / parts, spare + i * (2 * size / parts));
    return now;
  }
};

// The order in which repeated parting leaves the planes: of a number's byte b (or bit) at the place of b's bits reversed.
constexpr size_t reversed(size_t place, size_t count) {
  size_t result = 0;
  for (; count > 1; count /= 2, place /= 2) result = result * 2 + place % 2;
  return result;
}

// Copies planes of a chunk (in the order that parting leaves) to their places among the whole planes, or back.
struct Planes {
  size_t count, plane, chunk;  // planes; bytes of a whole one, and of a chunk's
  size_t step = 8;  // planes of one byte: their order is reversed within these, and these within all
  size_t place(size_t i) const {
    const size_t inner = std::min(step, count);
    return reversed(i / inner, count / inner) * inner + reversed(i % inner, inner);
  }
  void scatter(const uint8_t* from, uint8_t* to) const {
    for (size_t i = 0; i < count; ++i) std::memcpy(to + place(i) * plane, from + i * chunk, chunk);
  }
  void gather(const uint8_t* from, uint8_t* to) const {
    for (size_t i = 0; i < count; ++i) std::memcpy(to + i * chunk, from + place(i) * plane, chunk);
  }
};

template <size_t kWide, bool kBits>
MEMFIT_INLINE void forth(const uint8_t* from, size_t size, size_t width, uint8_t* to) {
  using P = Passes<kWide>;
  alignas(64) uint8_t buffers[2][kBuffer];
  const size_t count = kBits ? 8 * width : width;
  for (size_t done = 0; done < size;) {
    const size_t now = std::min(size - done, kChunk * width);
    std::memcpy(buffers[0], from + done, now);
    uint8_t* at = P::part_until(buffers[0], buffers[1], now, 1, width);
    if constexpr (kBits) {
      P::turn(at, now);
      at = P::part_until(at, at == buffers[0] ? buffers[1] : buffers[0], now, width, count);
    }
    Planes{count, size / count, now / count}.scatter(at, to + done / count);
    done += now;
  }
}

template <size_t kWide, bool kBits>
MEMFIT_INLINE void back(const uint8_t* from, size_t size, size_t width, uint8_t* to) {
  using P = Passes<kWide>;
  alignas(64) uint8_t buffers[2][kBuffer];
  const size_t count = kBits ? 8 * width : width;
  for (size_t done = 0; done < size;) {
    const size_t now = std::min(size - done, kChunk * width);
    Planes{count, size / count, now / count}.gather(from + done / count, buffers[0]);
    uint8_t* at = buffers[0];
    if constexpr (kBits) {
      at = P::join_until(at, buffers[1], now, count, width);
      P::turn(at, now);
    }
    at = P::join_until(at, at == buffers[0] ? buffers[1] : buffers[0], now, width, 1);
    std::memcpy(to + done, at, now);
    done += now;
  }
}

// A set of the four for one target, with vectors of so many bytes.
#define MEMFIT_SHUFFLES(set, target, wide)                                                                             \
  target void set##_bytes(const uint8_t* f, size_t n, size_t w, uint8_t* t) { forth<wide, false>(f, n, w, t); }        \
  target void set##_bytes_back(const uint8_t* f, size_t n, size_t w, uint8_t* t) { back<wide, false>(f, n, w, t); }    \
  target void set##_bits(const uint8_t* f, size_t n, size_t w, uint8_t* t) { forth<wide, true>(f, n, w, t); }          \
  target void set##_bits_back(const uint8_t* f, size_t n, size_t w, uint8_t* t) { back<wide, true>(f, n, w, t); }      \
  const Shuffles set = {#set, set##_bytes, set##_bytes_back, set##_bits, set##_bits_back};

MEMFIT_SHUFFLES(plain, , 16)
#if defined(__x86_64__)
MEMFIT_SHUFFLES(avx2, [[gnu::target("avx2")]], 32)
MEMFIT_SHUFFLES(avx512, [[gnu::target("avx512f,avx512bw,avx512vl")]], 64)
#endif

const Shuffles& find_fastest_shuffles() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) return avx512;
  if (__builtin_cpu_supports("avx2")) return avx2;
#endif
  return plain;
}

}  // namespace

const Shuffles& plain_shuffles() { return plain; }
const Shuffles& fastest_shuffles() {
  static const Shuffles& fastest = find_fastest_shuffles();
  return fastest;
}

}  // namespace memfit::compression
