#include "backward.h"

#include <torch/csrc/autograd/function.h>

namespace memfit {

std::optional<int64_t> node_that_runs() {
  auto node = torch::autograd::get_current_node();
  if (!node) return std::nullopt;
  return static_cast<int64_t>(node->sequence_nr());
}

}  // namespace memfit
