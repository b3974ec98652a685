// Split kernels: torch's kernels of the ops that may be split, each behind a few instructions that look whether the call is
// to be.
#pragma once

namespace memfit {

// Registers them in torch's dispatcher, the first time. They stay: while a kernel is removed, another thread may be about to
// call it.
void override_kernels();

}  // namespace memfit
