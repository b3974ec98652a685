// Adds the time until it goes to a sum of nanoseconds, or to two.
#pragma once

#include <chrono>
#include <cstdint>

namespace memfit {

class Stopwatch {
 public:
  explicit Stopwatch(uint64_t& sum, uint64_t* other = nullptr, bool on = true) : sum_(sum), other_(other), on_(on) {
    if (on_) began_ = std::chrono::steady_clock::now();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    if (!on_) return;
    auto ns = static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - began_).count());
    sum_ += ns;
    if (other_ != nullptr) *other_ += ns;
  }

 private:
  uint64_t& sum_;
  uint64_t* other_;
  bool on_;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace memfit
