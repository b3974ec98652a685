// TriedCalls: what was tried in a session, and what came of it. The same calls on tensors of the same layout, in the same
// surroundings, have the same key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "recipe.h"

namespace memfit {

struct TriedCalls {
  // A call's outputs, made once more.
  struct Again {
    bool is_same = false;  // they come out so
    uint64_t ns = 0;       // how long it took
  };
  std::unordered_map<uint64_t, bool> over;  // whether an output comes out the same over an input, by call and input
  std::unordered_map<uint64_t, Again> again;

  static uint64_t key_of(const Recipe& call);
  static uint64_t key_of(const Recipe& call, size_t operand);
  std::optional<bool> comes_out_over(uint64_t key) const;
  std::optional<bool> comes_out_again(const Recipe& call) const;
  // Whether all do: nothing where that of one is not known, and none is known not to.
  std::optional<bool> come_out_again(const std::vector<const Recipe*>& calls) const;
  // How long they take, one after the other; nothing where that of one is not known, or it does not come out the same.
  std::optional<uint64_t> ns_again(const std::vector<const Recipe*>& calls) const;
};

}  // namespace memfit
