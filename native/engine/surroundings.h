// Surroundings: what decides what an op computes, besides its inputs.
#pragma once

#include <ATen/Context.h>

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>

namespace memfit {

struct Surroundings {
  static constexpr size_t kFlags = 12, kPrecisions = 4, kReductions = 2;

  int threads = 1;  // a sum is cut into as many parts
  bool grad_mode = false;
  bool deterministic = false, warns_only = false;  // as of `torch.use_deterministic_algorithms`
  std::bitset<kFlags> flags;                       // of the libraries and the kernels that are chosen between
  std::array<at::Float32Precision, kPrecisions> precisions{};  // of products and convolutions
  std::array<at::CuBLASReductionOption, kReductions> reductions{};  // of products of 16 bits

  static Surroundings now();
  bool operator==(const Surroundings&) const = default;
  uint64_t hash() const;  // the same in every process
};

// As they were then, while it lives. All but the grad mode are the process's, not the thread's.
class Within {
 public:
  explicit Within(const Surroundings& then);
  ~Within();
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;

 private:
  const Surroundings before_;
  const bool differ_;
};

}  // namespace memfit
