// AddressSpace: a stretch of addresses, with bytes behind them where somebody has asked for some.
#pragma once

#include <cstddef>

namespace memfit {

class AddressSpace {
 public:
  virtual ~AddressSpace() = default;
  virtual char* base() const = 0;
  virtual size_t size() const = 0;
  // The bytes of the page that `offset` is in.
  virtual size_t page_at(size_t offset) const = 0;
  // From now on there are bytes behind [from, to). Raises TierFailure when the device has no more.
  virtual void back(size_t from, size_t to) = 0;
  // Nobody needs the bytes of [from, to): whole pages of them go back to the system.
  virtual void drop(size_t from, size_t to) = 0;
};

}  // namespace memfit
