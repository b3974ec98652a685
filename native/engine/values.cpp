#include "values.h"

#include <algorithm>

namespace memfit {

const ValueRef& Values::of(Block& block) {
  if (!block.value) {
    block.value = std::make_shared<Value>();
    block.value->block = &block;
    block.value->bytes = block.bytes;
  }
  return block.value;
}

void Values::end(Block& block) {
  if (!block.value) return;
  const ValueRef value = std::move(block.value);
  block.value.reset();
  value->block = nullptr;
  std::vector<ValueRef> ignored;
  if (value->recipe && value.use_count() > 1 && !collect_inputs(*value, kDeepest, ignored)) value->recipe.reset();
}

std::optional<std::vector<ValueRef>> Values::sources(const Block& block) {
  std::vector<ValueRef> found;
  if (!block.value || !block.value->recipe || !collect_inputs(*block.value, kDeepest, found)) return std::nullopt;
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

bool Values::collect(const ValueRef& value, int depth, std::vector<ValueRef>& found) {
  if (value->block == nullptr) return value->is_blank || (value->recipe && collect_inputs(*value, depth, found));
  const Block& block = *value->block;
  if (block.pinned || block.held || !block.attached()) return false;
  if (block.active > 0 || block.aside > 0) return false;  // whoever uses it may be about to write to it
  found.push_back(value);
  std::vector<ValueRef> its_own;  // which it has to itself
  return !block.discarded || collect_inputs(*value, depth, its_own);
}

bool Values::collect_inputs(const Value& value, int depth, std::vector<ValueRef>& found) {
  if (depth == 0) return false;
  return std::all_of(value.recipe->operands.begin(), value.recipe->operands.end(),
                     [&](const Operand& operand) { return !operand.value || collect(operand.value, depth - 1, found); });
}

}  // namespace memfit
