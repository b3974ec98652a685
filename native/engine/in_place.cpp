#include "in_place.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include "observer.h"
#include "operands.h"
#include "pointers.h"
#include "values.h"

namespace memfit {

namespace {

bool has_layout_of(const Operand& operand, const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return operand.dtype == impl->dtype() && operand.offset == impl->storage_offset() && operand.device == impl->device() &&
         impl->sizes() == c10::IntArrayRef(operand.sizes) && impl->strides() == c10::IntArrayRef(operand.strides);
}

bool have_same_layout(const Operand& one, const Operand& other) {
  return one.sizes == other.sizes && one.strides == other.strides && one.offset == other.offset && one.dtype == other.dtype;
}

}  // namespace

// Every byte of the output's storage is one of its elements; and whatever else reads the input's storage reads each
// element where the output has it.
std::vector<size_t> InPlace::candidates(const Recipe& recipe, const at::Tensor& output) {
  std::vector<size_t> found;
  const c10::TensorImpl* impl = output.unsafeGetTensorImpl();
  if (is_wrapper(*impl) || !impl->has_storage() || impl->layout() != at::kStrided || !output.is_non_overlapping_and_dense()) return found;
  if (impl->unsafe_storage().nbytes() != static_cast<size_t>(output.numel()) * output.itemsize()) return found;
  for (size_t i = 0; i < recipe.operands.size(); ++i) {
    const Operand& operand = recipe.operands[i];
    if (!operand.value || operand.item >= 0 || recipe.op->may_write(operand.argument) || !has_layout_of(operand, output)) continue;
    if (operand.value->bytes != impl->unsafe_storage().nbytes()) continue;
    const bool is_alike = std::all_of(recipe.operands.begin(), recipe.operands.end(), [&](const Operand& other) {
      return other.storage != operand.storage || have_same_layout(other, operand);
    });
    if (is_alike) found.push_back(i);
  }
  return found;
}

std::optional<bool> InPlace::can_be_made_again(const Value& value) const {
  return tried_.come_out_again(Values::chain(value));
}

// Within one op of the program's: what it hands over it does not read again.
void InPlace::op_starts(ThreadState& thread, c10::ArrayRef<const c10::IValue> inputs) const {
  auto& all = thread.handovers;
  if (all.empty()) return;
  for (const c10::IValue& input : inputs)
    each_storage(input, [&](const c10::Storage& storage, Part) {
      const Block* block = books_.find(*storage.unsafeGetStorageImpl());
      all.erase(std::remove_if(all.begin(), all.end(), [&](const auto& each) { return block != nullptr && each.first == block->id; }),
                all.end());
    });
}

// The output of the call that runs comes out the same over the block.
bool InPlace::was_tried(const ThreadState& thread, const Block& block) const {
  if (!thread.recipe) return false;
  for (size_t i = 0; i < thread.recipe->operands.size(); ++i) {
    const ValueRef& value = thread.recipe->operands[i].value;
    if (value && value->block == &block && tried_.comes_out_over(TriedCalls::key_of(*thread.recipe, i)) == true) return true;
  }
  return false;
}

bool InPlace::may_give(const ThreadState& thread, const Block& block) const {
  const bool is_here = !thread.aside && memory_.holds(block) && memory_.arena->plan()->contains(block.region);
  const bool is_its_own = block.active == 1 && block.touched_by == thread.serial && block.aside == 0 && !block.copy;
  const bool may_move = !block.pinned && !block.held && !block.dead && books_.is_of_session(block) && movable_storage(block) != nullptr;
  const bool is_compared = !memory_.device->is_asynchronous();
  const bool can_return = block.value && (is_compared || can_be_made_again(*block.value).value_or(false));
  return is_here && is_its_own && may_move && can_return && was_tried(thread, block);
}

InPlace::Offer InPlace::offer(const ThreadState& thread, const Block& block) const {
  const Region* next = thread.captures && memory_.arena->plan() != nullptr ? memory_.arena->plan()->next() : nullptr;
  if (next == nullptr) return {};
  auto giver = std::find_if(thread.touched.begin(), thread.touched.end(), [&](const Block* each) {
    return !each->dead && memory_.holds(*each) && each->region->offset == next->offset && each->bytes == block.bytes;
  });
  if (giver == thread.touched.end()) return {};
  auto sources = may_give(thread, **giver) ? Values::sources(**giver, nullptr, &thread) : std::nullopt;
  return sources ? Offer{*giver, std::move(*sources)} : Offer{nullptr, {}, true};
}

void InPlace::settle(ThreadState& thread, Offer offer) {
  if (offer.giver == nullptr || !offer.giver->region->is_free()) return;
  discarding_.hand_over(*offer.giver, std::move(offer.sources));
  thread.gave.push_back(offer.giver);
}

Region* InPlace::take_over(ThreadState& thread, Block& block) {
  Block* giver = std::exchange(thread.over, nullptr);
  if (!giver->resident() || giver->bytes != block.bytes || !memory_.holds(*giver)) return nullptr;
  books_.leaves(*giver);
  Region* region = std::exchange(giver->region, nullptr);
  region->owner = &block;
  giver->arena.reset();
  thread.gave.push_back(giver);
  thread.heir = block.id;
  return region;
}

void InPlace::op_ends(ThreadState& thread) const {
  for (const Block* giver : thread.gave)
    if (c10::StorageImpl* storage = giver->dead || giver->resident() ? nullptr : storage_behind(*giver)) set_absent(*storage);
  thread.gave.clear();
  thread.over = nullptr;
}

}  // namespace memfit
