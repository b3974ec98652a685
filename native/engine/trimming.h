// Trimming: a result that needs less than half of its storage gets a smaller one.
//
// A reduced loss (`mse_loss`, `smooth_l1_loss`, `binary_cross_entropy`) is one number in the storage of its terms, which
// would lie there for as long as the program keeps the loss.
#pragma once

#include <ATen/core/ivalue.h>

#include "allocation.h"
#include "books.h"
#include "memory.h"
#include "stats.h"
#include "thread_state.h"

namespace memfit {

class Trimming {
 public:
  Trimming(Books& books, const Memory& memory, Stats& stats, Allocation& allocation)
      : books_(books), memory_(memory), stats_(stats), allocation_(allocation) {}

  // The thread's outermost op is about to end, and nobody has seen its outputs yet.
  void op_ends(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::IValue> outputs);

 private:
  void trim(ThreadState& thread, const at::Tensor& tensor);
  void exchange(ThreadState& thread, const c10::Storage& storage, Block& large, size_t bytes);

  Books& books_;
  const Memory& memory_;
  Stats& stats_;
  Allocation& allocation_;
};

}  // namespace memfit
