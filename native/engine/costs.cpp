#include "costs.h"

#include <algorithm>

namespace memfit {

double Costs::of_leaving(const Block& block) const { return per_op_away(block, std::min(ns_of_copies(block), ns_of_making(block))); }

// With nothing known of the future, the least recently used block is taken to be the last one needed.
double Costs::per_op_away(const Block& block, double ns) const {
  const uint64_t distance = forecast_.distance(block);
  const double away = distance != 0 ? static_cast<double>(distance) : 1.0 + static_cast<double>(books_.now() - block.last_use);
  return ns / away + 1e-9 * static_cast<double>(block.bytes);
}

double Costs::ns_of_copies(const Block& block) const {
  return static_cast<double>(block.bytes) * ((block.dirty ? 1 / out_per_ns_ : 0.0) + (forecast_.read_again(block) ? 1 / in_per_ns_ : 0.0));
}

double Costs::ns_of_making(const Block& block) const {
  const std::optional<uint64_t> ns = discarding_.ns_to_make(block);
  return !ns ? kNever : forecast_.read_again(block) ? static_cast<double>(*ns) : 0.0;
}

}  // namespace memfit
