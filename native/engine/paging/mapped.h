// Mapped: a storage's bytes, at addresses that lead to where they wait.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../tier.h"

namespace memfit {

// With it the addresses go.
class Mapped {
 public:
  virtual ~Mapped() = default;
  virtual char* address() const = 0;
  // All that was written is in the tier. Raises TierFailure, with nothing lost.
  virtual void settle() = 0;
  struct How {
    bool for_writing;
    bool is_undisturbed;  // until the call is over nobody uses what is mapped
  };
  // Rows of so many bytes that begin at these offsets, which ascend, are wanted next.
  virtual void bring(const std::vector<size_t>& offsets, size_t bytes, How how) { (void)offsets, (void)bytes, (void)how; }
  // Few of its bytes come in for a row.
  virtual bool is_for_rows() const { return true; }
  // Why some of its bytes are not what they should be; empty if all is well. Who touches them cannot be told.
  virtual std::string failure() = 0;
};

// The tier lies in memory, where ops can read and write it.
class InTier final : public Mapped {
 public:
  InTier(std::shared_ptr<Tier> tier, char* address) : tier_(std::move(tier)), address_(address) {}
  char* address() const override { return address_; }
  void settle() override {}
  std::string failure() override { return {}; }

 private:
  std::shared_ptr<Tier> tier_;  // it is there as long as somebody may look
  char* address_;
};

}  // namespace memfit
