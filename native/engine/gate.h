// Gate: of which calls it is known that slices give the same bits, and how long these slices are.
//
// It is tried on this machine, by kind of call (slicing.h); the answers of one process may be told to another.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "split_rules.h"

namespace memfit {

struct OpInfo;

// One of a call's outputs: dense, and the only tensor of its storage.
struct OutputLayout {
  std::vector<int64_t> sizes, strides;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  size_t bytes() const;
};

// Plain data.
struct Answer {
  struct Equal {
    int32_t way = 0;
    int64_t steps = 0;  // of a slice
  };
  std::string op;
  std::vector<OutputLayout> outputs;
  size_t workspace_bytes = 0;  // the window that it needed when it ran whole,
  size_t allocated_bytes = 0;  // and all that it allocated
  std::vector<Equal> equal;    // none: it is never split
};

class Gate {
 public:
  // Calls with the same key are computed alike: of the same op, on tensors of the same layout, in the same surroundings.
  static uint64_t key_of(const OpInfo& op, Inputs inputs);

  const Answer* find(uint64_t key) const;
  void note(uint64_t key, Answer answer);
  const std::unordered_map<uint64_t, Answer>& all() const { return answers_; }
  // Of all calls of the op that may be split; 0: there are none.
  size_t most_workspace(const OpInfo& op) const;
  bool is_empty() const { return answers_.empty(); }
  void replace(std::unordered_map<uint64_t, Answer> answers);

 private:
  void count(const Answer& answer);

  std::unordered_map<uint64_t, Answer> answers_;
  std::unordered_map<std::string, size_t> most_workspace_;
};

}  // namespace memfit
