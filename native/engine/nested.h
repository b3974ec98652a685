// Nested: calls inside of an op for which there is nothing to do, since all that they are given, or return, is in use
// already. Most are such. What they are told by is the calling thread's own: no lock is needed.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "observer.h"
#include "operands.h"
#include "pointers.h"
#include "thread_state.h"

namespace memfit {

// The thread's op uses the storage (`written`: and writes to it), and knows it: it is there, and stays.
inline bool is_in_use(const ThreadState& thread, const c10::Storage& storage, bool written) {
  const at::DataPtr& pointer = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (pointer.get_deleter() != &delete_by_block) return false;
  const std::vector<Block*>& own = written ? thread.wrote : thread.touched;
  const auto found = std::find(own.begin(), own.end(), pointer.get_context());  // by identity: it may be anybody's
  return found != own.end() && (*found)->resident();
}

// Its ops are no recipes, and it has so few storages that they are found at once.
inline bool knows_its_storages(const ThreadState& thread) {
  constexpr size_t kMost = 32;
  return thread.joined && !thread.tries && !thread.recomputing && thread.leaf == 0 && thread.touched.size() <= kMost;
}

inline bool is_settled(const ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, bool is_doubtful) {
  if (op.keeps_pointers || at::hasThreadLocalCallbacks()) return false;
  bool settled = true;
  each_operand(op, inputs, [&](size_t i, const c10::IValue& input) {
    if (!settled) return;
    const bool reads = op.reads(i), writes = op.may_write(i, is_doubtful);
    each_storage(input, [&](const c10::Storage& storage, Part part) {
      settled = settled && part == Part::kElements && ((!reads && !writes) || is_in_use(thread, storage, writes));
    });
  });
  return settled;
}

inline bool are_settled(const ThreadState& thread, c10::ArrayRef<c10::IValue> outputs) {
  bool settled = true;
  for (size_t i = 0; i < outputs.size() && settled; ++i) {
    settled = !is_opaque(outputs[i]);
    each_storage(outputs[i], [&](const c10::Storage& storage, Part part) {
      settled = settled && part == Part::kElements && is_in_use(thread, storage, /*written=*/false);
    });
  }
  return settled;
}

}  // namespace memfit
