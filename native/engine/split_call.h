// SplitCall: the call that is about to reach its kernel, and is to be tried or run in slices there.
// Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gate.h"
#include "split_rules.h"

namespace memfit {

struct Block;

struct SplitCall {
  const OpInfo* op = nullptr;
  int depth = 0;  // of its op in the thread's frame
  uint64_t key = 0;
  bool is_tried = false;  // it runs whole first, and then in slices, to be compared
  bool is_mapped = false;  // some of its bytes are where they wait: each trial reads them from there
  std::vector<Way> ways;
  size_t workspace_bytes = 0;  // that it needed, once it has run whole
  // Otherwise it runs in slices of one of these lengths, ascending:
  Way way;
  std::vector<int64_t> steps;
  size_t allocated_bytes = 0;  // by the whole call: what it is known again by
  std::vector<OutputLayout> outputs;
  bool is_forced = false;       // its outputs are made away though there is room
  std::vector<Block*> streams;  // of each cut: whose bytes are read where they are
};

// The kernels look at this first. It points into the thread's state, and is null but between such an op's beginning and its
// kernel.
inline thread_local SplitCall* split_call = nullptr;

}  // namespace memfit
