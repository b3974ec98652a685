// The clock that codecs and media are timed by, which decides what pays: the system's, or that of a test.
#pragma once

#include <chrono>

namespace memfit::compression {

#if defined(MEMFIT_CODEC_CLOCK)
using Clock = MEMFIT_CODEC_CLOCK;
#else
using Clock = std::chrono::steady_clock;
#endif

template <typename Action>
double ns_of(const Action& action) {
  const auto began = Clock::now();
  action();
  return std::chrono::duration<double, std::nano>(Clock::now() - began).count();
}

}  // namespace memfit::compression
