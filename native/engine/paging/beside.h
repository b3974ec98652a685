// Beside: a mapped storage's bytes in memory of the host's that a GPU's ops reach, for a tier that they do not.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include "../block.h"
#include "../device.h"
#include "../stats.h"
#include "mapped.h"

namespace memfit {

// The device's memory that such bytes may take while ops use them.
struct Reserve {
  size_t bytes = 0;
  size_t taken = 0, peak = 0;
};

// What it does is in the compute stream's order. The block that it is of outlives it.
class Beside final : public Mapped {
 public:
  // `source`: where its bytes are in the tier; null: it has none yet. Raises TierFailure.
  Beside(const Block& block, std::unique_ptr<HostMemory> memory, Extent source, Stats& stats);
  ~Beside() override;
  // As much of it as the reserve has room for comes to the device until it is settled.
  void come(std::shared_ptr<Reserve> reserve);
  char* address() const override { return memory_->address(); }
  void settle() override;
  std::string failure() override { return {}; }

 private:
  void go_home();

  const Block& block_;
  std::unique_ptr<HostMemory> memory_;
  Stats& stats_;
  std::shared_ptr<Reserve> reserve_;
  size_t there_ = 0;  // bytes, on the device
};

}  // namespace memfit
