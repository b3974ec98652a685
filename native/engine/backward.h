#pragma once

#include <cstdint>
#include <optional>

namespace memfit {

// The sequence number of the autograd node that runs on this thread; none outside a backward pass.
std::optional<int64_t> node_that_runs();

}  // namespace memfit
