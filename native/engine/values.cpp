#include "values.h"

#include <algorithm>
#include <unordered_set>

#include "thread_state.h"

namespace memfit {

namespace {

// Follows recipes to the storages that exist. Each value is looked at once: it may be an input of many.
class SourceSearch {
 public:
  explicit SourceSearch(const Block* gone, const ThreadState* reader = nullptr) : gone_(gone), reader_(reader) {}
  // Whoever uses the storages at the moment.
  static SourceSearch at_any_time() {
    SourceSearch search(nullptr);
    search.is_for_now_ = false;
    return search;
  }

  // `of_discarded`: what a storage needs that is to be made again itself, which has it to itself.
  bool collect_inputs(const Value& value, int depth, bool of_discarded = false) {
    if (depth == 0) return false;
    const int rest = value.recipe->is_planned ? depth : depth - 1;
    return std::all_of(value.recipe->operands.begin(), value.recipe->operands.end(), [&](const Operand& operand) {
      return !operand.value || collect(operand.value, rest, of_discarded);
    });
  }

  std::vector<ValueRef> found;

 private:
  bool collect(const ValueRef& value, int depth, bool of_discarded) {
    if (!seen_[of_discarded].insert(value.get()).second) return true;
    if (value->block == nullptr || value->block == gone_)
      return value->is_blank || (value->recipe && collect_inputs(*value, depth, of_discarded));
    const Block& block = *value->block;
    if (block.pinned || block.held || !block.attached()) return false;
    // Whoever uses it may be about to write to it, but for a copy.
    if (is_for_now_ && (block.active > (block.copy ? 1 : 0) + (is_only_read(block) ? 1 : 0) || block.aside > 0)) return false;
    if (!of_discarded) found.push_back(value);
    return !block.discarded || collect_inputs(*value, depth, /*of_discarded=*/true);
  }

  bool is_only_read(const Block& block) const {
    return reader_ != nullptr && block.touched_by == reader_->serial && block.written_by != reader_->serial;
  }

  const Block* gone_;
  const ThreadState* reader_;
  bool is_for_now_ = true;
  std::unordered_set<const Value*> seen_[2];
};

}  // namespace

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
  if (!value->recipe || value->recipe->is_planned || value.use_count() == 1) return;
  if (!SourceSearch::at_any_time().collect_inputs(*value, kDeepest)) value->recipe.reset();
}

void Values::forget_planned_recipe(Block& block) {
  if (held_by_plan(block) != 0) forget_recipe(block);
}

void Values::forget_recipe(Block& block) {
  if (block.value && block.value->dependents.empty()) block.value->recipe.reset();
}

size_t Values::held_by_plan(const Block& block) {
  const bool is_planned = block.value && block.value->recipe && block.value->recipe->is_planned;
  return is_planned ? block.value->recipe->held() : 0;
}

std::vector<const Recipe*> Values::chain(const Value& value, bool (*is_made)(const Value&)) {
  std::vector<const Recipe*> found;
  std::vector<const Value*> wanted{&value};
  while (!wanted.empty()) {
    const Recipe* recipe = wanted.back()->recipe.get();
    wanted.pop_back();
    if (recipe == nullptr || std::find(found.begin(), found.end(), recipe) != found.end()) continue;
    found.push_back(recipe);
    for (const Operand& operand : recipe->operands)  // (of what is blank any bytes will do)
      if (operand.value && !operand.value->is_blank && is_made(*operand.value)) wanted.push_back(operand.value.get());
  }
  return found;
}

std::optional<std::vector<ValueRef>> Values::sources(const Block& block, const Block* gone, const ThreadState* reader) {
  SourceSearch sources(gone, reader);
  if (!block.value || !block.value->recipe || block.value->is_blank || !sources.collect_inputs(*block.value, kDeepest)) return std::nullopt;
  return std::move(sources.found);
}

}  // namespace memfit
