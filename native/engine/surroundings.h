// Surroundings: what decides what an op computes, besides its inputs.
#pragma once

#include <ATen/Context.h>

namespace memfit {

struct Surroundings {
  int threads = 1;  // a sum is cut into as many parts
  bool grad_mode = false;
  bool deterministic = false, warns_only = false, fills = false;  // as of `torch.use_deterministic_algorithms`
  bool onednn = true, onednn_deterministic = false;
  at::Float32Precision products = at::Float32Precision::NONE, convolutions = at::Float32Precision::NONE;  // oneDNN's

  static Surroundings now();
  bool operator==(const Surroundings&) const = default;
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
