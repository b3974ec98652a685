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
  // Whether an output comes out the same over an input, by call and input; and a call's outputs once more.
  std::unordered_map<uint64_t, bool> over, again;

  static uint64_t key_of(const Recipe& call);
  static uint64_t key_of(const Recipe& call, size_t operand);
  static std::optional<bool> find(const std::unordered_map<uint64_t, bool>& tried, uint64_t key) {
    const auto found = tried.find(key);
    return found == tried.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<bool> comes_out_again(const Recipe& call) const;
  // Whether all do: nothing where that of one is not known, and none is known not to.
  std::optional<bool> come_out_again(const std::vector<const Recipe*>& calls) const;
};

}  // namespace memfit
