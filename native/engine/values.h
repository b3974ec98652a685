// Values: which storages' bytes can be made again, and from what.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "books.h"
#include "recipe.h"

namespace memfit {

struct ThreadState;

class Values {
 public:
  // Longer chains of re-runs that no plan asks for are not begun; nor are they kept, so that what an optimizer makes of
  // its state, step after step, holds no memory.
  static constexpr int kDeepest = 4;

  // What the block's bytes are now.
  static const ValueRef& of(Block& block);
  // They are others from now on.
  static void end(Block& block);
  // Of what nothing is to be made from, and what is not to be made again.
  static void forget_planned_recipe(Block& block);
  static void forget_recipe(Block& block);
  static size_t held_by_plan(const Block& block);  // bytes of the heap, about
  // The recipes by which the value is made: its own, and those of what they read and is made again, too: what no storage has
  // any more, or what else `is_made` says.
  static std::vector<const Recipe*> chain(const Value& value, bool (*is_made)(const Value&) = is_gone);
  static bool is_gone(const Value& value) { return value.block == nullptr; }
  // The storages that the block's bytes are to be made from, none of them missing: values that exist, discarded ones
  // included, but not those of `gone`. Nothing when one is missing, or may change unseen, or the chain is too long.
  // What an op of `reader`'s, if given, only reads may be in use by that.
  static std::optional<std::vector<ValueRef>> sources(const Block& block, const Block* gone = nullptr, const ThreadState* reader = nullptr);
};

}  // namespace memfit
