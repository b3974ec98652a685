#include "zero_values.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace memfit::compression {

namespace {

constexpr size_t kWord = 4, kGroup = 16;  // bytes; words of one mask

// Of fewer words than a mask is for, and for a target of which nothing is known. Without branches: zeros are not foreseen.
size_t squeeze_group(const uint8_t* words, size_t count, uint16_t* mask, uint8_t* to) {
  unsigned bits = 0;
  size_t left = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, words + i * kWord, kWord);
    std::memcpy(to + left * kWord, &word, kWord);
    bits |= static_cast<unsigned>(word != 0) << i;
    left += word != 0;
  }
  *mask = static_cast<uint16_t>(bits);
  return left;
}

size_t expand_group(const uint8_t* from, size_t count, unsigned mask, uint8_t* words) {
  size_t taken = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t word;
    const uint32_t is_there = mask >> i & 1;
    std::memcpy(&word, from + taken * kWord, kWord);
    word &= 0 - is_there;
    std::memcpy(words + i * kWord, &word, kWord);
    taken += is_there;
  }
  return taken;
}

// Whole groups by `squeeze` or `expand`, which return how many words were there, and the rest one by one.
template <typename Squeeze>
[[gnu::always_inline]] inline size_t each_squeezed(const uint8_t* words, size_t count, uint16_t* masks, uint8_t* to, const Squeeze& squeeze) {
  size_t left = 0, i = 0;
  for (; i + kGroup <= count; i += kGroup) left += squeeze(words + i * kWord, masks++, to + left * kWord);
  return i < count ? left + squeeze_group(words + i * kWord, count - i, masks, to + left * kWord) : left;
}

template <typename Expand>
[[gnu::always_inline]] inline void each_expanded(const uint8_t* from, size_t count, const uint16_t* masks, uint8_t* words, const Expand& expand) {
  size_t taken = 0, i = 0;
  for (; i + kGroup <= count; i += kGroup) taken += expand(from + taken * kWord, *masks++, words + i * kWord);
  if (i < count) expand_group(from + taken * kWord, count - i, *masks, words + i * kWord);
}

size_t squeeze_plain(const uint8_t* words, size_t count, uint16_t* masks, uint8_t* to) {
  return each_squeezed(words, count, masks, to,
                       [](const uint8_t* group, uint16_t* mask, uint8_t* out) { return squeeze_group(group, kGroup, mask, out); });
}

void expand_plain(const uint8_t* from, size_t count, const uint16_t* masks, uint8_t* words) {
  each_expanded(from, count, masks, words,
                [](const uint8_t* in, unsigned mask, uint8_t* group) { return expand_group(in, kGroup, mask, group); });
}

constexpr ZeroValues kPlain = {"plain", squeeze_plain, expand_plain};

#if defined(__x86_64__)
// For each mask of eight words: where those that are left come from, and where each of the eight goes.
struct Permutations {
  uint8_t squeeze[256][8], expand[256][8];
};
constexpr Permutations permutations() {
  Permutations all{};
  for (unsigned mask = 0; mask < 256; ++mask)
    for (uint8_t i = 0, left = 0; i < 8; ++i) {
      all.expand[mask][i] = left;
      if ((mask >> i & 1) != 0) all.squeeze[mask][left++] = i;
    }
  return all;
}
constexpr Permutations kPermutations = permutations();

[[gnu::target("avx2")]] inline __m256i permutation(const uint8_t (&row)[8]) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row)));
}

[[gnu::target("avx2,popcnt")]] inline size_t squeeze_eight(const uint8_t* words, unsigned& mask, uint8_t* to) {
  const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
  const __m256i zeros = _mm256_cmpeq_epi32(eight, _mm256_setzero_si256());
  mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(zeros))) ^ 0xff;
  const __m256i left = _mm256_permutevar8x32_epi32(eight, permutation(kPermutations.squeeze[mask]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), left);
  return static_cast<size_t>(__builtin_popcount(mask));
}

[[gnu::target("avx2,popcnt")]] size_t squeeze_avx2(const uint8_t* words, size_t count, uint16_t* masks, uint8_t* to) {
  size_t left = 0, i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    unsigned low, high;
    left += squeeze_eight(words + i * kWord, low, to + left * kWord);
    left += squeeze_eight(words + (i + 8) * kWord, high, to + left * kWord);
    *masks++ = static_cast<uint16_t>(low | high << 8);
  }
  return i < count ? left + squeeze_group(words + i * kWord, count - i, masks, to + left * kWord) : left;
}

[[gnu::target("avx2,popcnt")]] inline size_t expand_eight(const uint8_t* from, unsigned mask, uint8_t* words) {
  const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i spread = _mm256_permutevar8x32_epi32(packed, permutation(kPermutations.expand[mask]));
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i there = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bits), bits);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm256_and_si256(spread, there));
  return static_cast<size_t>(__builtin_popcount(mask));
}

[[gnu::target("avx2,popcnt")]] void expand_avx2(const uint8_t* from, size_t count, const uint16_t* masks, uint8_t* words) {
  size_t taken = 0, i = 0;
  for (; i + kGroup <= count; i += kGroup, ++masks) {
    taken += expand_eight(from + taken * kWord, *masks & 0xff, words + i * kWord);
    taken += expand_eight(from + taken * kWord, *masks >> 8, words + (i + 8) * kWord);
  }
  if (i < count) expand_group(from + taken * kWord, count - i, *masks, words + i * kWord);
}

// (Compressing stores are slow on some processors: it is done in a register.)
[[gnu::target("avx512f,popcnt")]] size_t squeeze_avx512(const uint8_t* words, size_t count, uint16_t* masks, uint8_t* to) {
  size_t left = 0, i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    const __m512i group = _mm512_loadu_si512(words + i * kWord);
    const __mmask16 mask = _mm512_test_epi32_mask(group, group);
    _mm512_storeu_si512(to + left * kWord, _mm512_maskz_compress_epi32(mask, group));
    *masks++ = mask;
    left += static_cast<size_t>(__builtin_popcount(mask));
  }
  return i < count ? left + squeeze_group(words + i * kWord, count - i, masks, to + left * kWord) : left;
}

[[gnu::target("avx512f,popcnt")]] void expand_avx512(const uint8_t* from, size_t count, const uint16_t* masks, uint8_t* words) {
  size_t taken = 0, i = 0;
  for (; i + kGroup <= count; i += kGroup, ++masks) {
    const __m512i packed = _mm512_loadu_si512(from + taken * kWord);
    _mm512_storeu_si512(words + i * kWord, _mm512_maskz_expand_epi32(*masks, packed));
    taken += static_cast<size_t>(__builtin_popcount(*masks));
  }
  if (i < count) expand_group(from + taken * kWord, count - i, *masks, words + i * kWord);
}

constexpr ZeroValues kAvx2 = {"avx2", squeeze_avx2, expand_avx2}, kAvx512 = {"avx512", squeeze_avx512, expand_avx512};
#endif

const ZeroValues& find_fastest_zero_values() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return kAvx512;
  if (__builtin_cpu_supports("avx2")) return kAvx2;
#endif
  return kPlain;
}

// The masks, the words that are not zero, and the bytes that are no whole word.
struct Layout {
  explicit Layout(size_t size) : words(size / kWord), masks((words + kGroup - 1) / kGroup), rest(size % kWord) {}
  size_t words, masks, rest;
  size_t bytes(size_t left) const { return masks * sizeof(uint16_t) + left * kWord + rest; }
};

// How many words the masks say there are; no number of them if they say so of words beyond the last.
size_t count_there(const uint16_t* masks, const Layout& layout) {
  size_t there = 0;
  for (size_t i = 0; i < layout.masks; ++i) there += static_cast<size_t>(__builtin_popcount(masks[i]));
  const size_t in_last = layout.words % kGroup;
  return in_last != 0 && masks[layout.masks - 1] >> in_last != 0 ? SIZE_MAX / kWord : there;
}

}  // namespace

const ZeroValues& plain_zero_values() { return kPlain; }
const ZeroValues& fastest_zero_values() {
  static const ZeroValues& fastest = find_fastest_zero_values();
  return fastest;
}

size_t squeeze_zeros(const ZeroValues& how, const uint8_t* from, size_t size, uint8_t* to) {
  const Layout layout(size);
  auto* masks = reinterpret_cast<uint16_t*>(to);
  const size_t left = how.squeeze(from, layout.words, masks, to + layout.bytes(0) - layout.rest);
  std::memcpy(to + layout.bytes(left) - layout.rest, from + size - layout.rest, layout.rest);
  return layout.bytes(left);
}

bool expand_zeros(const ZeroValues& how, const uint8_t* from, size_t stored, uint8_t* to, size_t size) {
  const Layout layout(size);
  const auto* masks = reinterpret_cast<const uint16_t*>(from);
  if (stored < layout.bytes(0)) return false;
  const size_t left = count_there(masks, layout);
  if (left > layout.words || stored != layout.bytes(left)) return false;
  how.expand(from + layout.bytes(0) - layout.rest, layout.words, masks, to);
  std::memcpy(to + size - layout.rest, from + stored - layout.rest, layout.rest);
  return true;
}

}  // namespace memfit::compression
