#include "codecs.h"

#include <algorithm>
#include <cstring>

#include "lz4/lz4.h"
#include "shuffle.h"

namespace memfit::compression {

namespace {

// Of planes: a byte for each that says whether it is constant, the byte of which it consists if so, the others, and what
// no shuffle takes.
size_t drop_planes(size_t width, const uint8_t* from, size_t size, Scratch& scratch) {
  const size_t whole = shuffled_bytes(size, width), plane = whole / width;
  if (plane == 0) return 0;
  fastest_shuffles().bytes(from, whole, width, scratch.shuffled);
  uint8_t* flags = scratch.packed;
  uint8_t* to = flags + width;
  for (size_t i = 0; i < width; ++i) {
    const uint8_t* at = scratch.shuffled + i * plane;
    flags[i] = std::memcmp(at, at + 1, plane - 1) == 0;
    const size_t taken = flags[i] != 0 ? 1 : plane;
    std::memcpy(to, at, taken);
    to += taken;
  }
  std::memcpy(to, from + whole, size - whole);
  return static_cast<size_t>(to - scratch.packed) + size - whole;
}

bool restore_planes(size_t width, size_t stored, uint8_t* to, size_t size, Scratch& scratch) {
  const size_t whole = shuffled_bytes(size, width), plane = whole / width;
  const uint8_t* flags = scratch.packed;
  if (plane == 0 || stored < width) return false;
  size_t needed = width + size - whole;
  for (size_t i = 0; i < width; ++i) needed += flags[i] != 0 ? 1 : plane;
  if (stored != needed) return false;
  const uint8_t* from = flags + width;
  for (size_t i = 0; i < width; ++i) {
    uint8_t* at = scratch.shuffled + i * plane;
    flags[i] != 0 ? std::memset(at, *from, plane) : std::memcpy(at, from, plane);
    from += flags[i] != 0 ? 1 : plane;
  }
  fastest_shuffles().bytes_back(scratch.shuffled, whole, width, to);
  std::memcpy(to + whole, from, size - whole);
  return true;
}

size_t pack_bits(size_t width, const uint8_t* from, size_t size, Scratch& scratch) {
  const size_t whole = shuffled_bytes(size, width);
  fastest_shuffles().bits(from, whole, width, scratch.shuffled);
  std::memcpy(scratch.shuffled + whole, from + whole, size - whole);
  return static_cast<size_t>(LZ4_compress_default(reinterpret_cast<const char*>(scratch.shuffled), reinterpret_cast<char*>(scratch.packed),
                                                  static_cast<int>(size), static_cast<int>(size - 1)));
}

bool unpack_bits(size_t width, size_t stored, uint8_t* to, size_t size, Scratch& scratch) {
  const int found = LZ4_decompress_safe(reinterpret_cast<const char*>(scratch.packed), reinterpret_cast<char*>(scratch.shuffled),
                                        static_cast<int>(stored), static_cast<int>(size));
  if (found != static_cast<int>(size)) return false;
  const size_t whole = shuffled_bytes(size, width);
  fastest_shuffles().bits_back(scratch.shuffled, whole, width, to);
  std::memcpy(to + whole, scratch.shuffled + whole, size - whole);
  return true;
}

size_t packed(const Codec& codec, const uint8_t* from, size_t size, Scratch& scratch) {
  switch (codec.kind) {
    case Kind::kZeros: return squeeze_zeros(fastest_zero_values(), from, size, scratch.packed);
    case Kind::kPlanes: return drop_planes(codec.width, from, size, scratch);
    case Kind::kBits: return pack_bits(codec.width, from, size, scratch);
    case Kind::kRaw: break;
  }
  return 0;
}

}  // namespace

Scratch& scratch() {
  thread_local std::unique_ptr<Scratch> own(new Scratch);  // (not `make_unique`, which would write zeros to all of it)
  return *own;
}

size_t compress(CodecId codec, const uint8_t* from, size_t size, Scratch& scratch) {
  if (size < 2) return 0;
  const size_t stored = packed(kCodecs[codec], from, size, scratch);
  return stored < size ? stored : 0;
}

bool decompress(CodecId codec, size_t stored, uint8_t* to, size_t size, Scratch& scratch) {
  switch (const Codec& how = kCodecs[codec]; how.kind) {
    case Kind::kZeros: return expand_zeros(fastest_zero_values(), scratch.packed, stored, to, size);
    case Kind::kPlanes: return restore_planes(how.width, stored, to, size, scratch);
    case Kind::kBits: return unpack_bits(how.width, stored, to, size, scratch);
    case Kind::kRaw: break;
  }
  return false;
}

}  // namespace memfit::compression
