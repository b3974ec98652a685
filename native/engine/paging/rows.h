// The rows of a table that an op is about to read or write, where its arguments say which.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <vector>

namespace memfit {

struct OpInfo;

struct Rows {
  const c10::StorageImpl* table = nullptr;  // nullptr: it does not say
  bool are_written = false;
  size_t row_bytes = 0;
  std::vector<size_t> offsets;  // in bytes, ascending, each once
};

// The indices are in memory.
Rows rows_used_by(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs);

}  // namespace memfit
