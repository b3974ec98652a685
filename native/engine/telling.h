// Telling: which trials of slices say something of other numbers than those that they were made with.
//
// Two ways to add give the same zero for zeros, and the one element that a kernel computes without vectors may come out as
// it would with them. So slices are tried only where other numbers could not show what these have not shown.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "gate.h"
#include "split_rules.h"

namespace memfit {

// By the layouts: slices of `steps`.
bool could_tell(const Way& way, Inputs inputs, const std::vector<OutputLayout>& outputs, int64_t steps);
// By the numbers in the inputs, which are in memory.
bool tell(const Way& way, Inputs inputs);
// By those in one of them, as far as they count.
bool tells(const at::Tensor& tensor, Bits bits);

}  // namespace memfit
