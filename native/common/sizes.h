// Sizes that the engine keeps to, and that planning and tracing in Python have to know.
#pragma once

#include <cstddef>

namespace memfit {

// A storage is small up to these bytes, but never above this part of the budget (one of so many). Small storages lie
// on the shelf, and leave it only if nothing else makes room.
inline constexpr std::size_t kLargestSmallBytes = std::size_t{16} << 10;
inline constexpr std::size_t kSmallShare = 256;

// Every storage's offset in the arena is a multiple of this (bytes).
inline constexpr std::size_t kHostAlignment = 64;
inline constexpr std::size_t kCudaAlignment = 512;

}  // namespace memfit
