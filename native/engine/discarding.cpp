#include "discarding.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

#include "observer.h"
#include "operands.h"
#include "pointers.h"
#include "stopwatch.h"
#include "thread_state.h"
#include "values.h"

namespace memfit {

bool Discarding::may_go(const Block& block, By by) const {
  const bool is_own = !is_over_ && memory_.holds(block) && books_.is_of_session(block) && may_move(block, turns_);
  const bool is_idle = is_own && block.aside == 0 && !block.copy;
  return is_idle && (by == By::kPlan || (block.dirty && !block.recomputed && block.swapped < 0));
}

// (A call that takes half of the arena may have had it to itself, or have run on mapped storages.)
std::optional<uint64_t> Discarding::ns_to_make(const Block& block) const {
  if (!flags_.drops || !block.value || !block.value->recipe || !may_go(block, By::kEviction) || block.not_made_at == books_.now()) return std::nullopt;
  const std::vector<const Recipe*> calls = Values::chain(*block.value);
  const size_t most = memory_.arena->limit() / 2;
  const bool is_room = std::all_of(calls.begin(), calls.end(), [most](const Recipe* call) { return call->bytes <= most; });
  return is_room ? tried_.ns_again(calls) : std::nullopt;
}

// (What is to be made from it is made by a chain of re-runs that is longer then, and not too long.)
bool Discarding::can_be_made(Block& block) const {
  const auto is_short = [&](const Block* dependent) { return Values::sources(*dependent, &block).has_value(); };
  const auto& dependents = block.value->dependents;
  if (Values::sources(block, nullptr, &this_thread()) && std::all_of(dependents.begin(), dependents.end(), is_short)) return true;
  block.not_made_at = books_.now();
  return false;
}

bool Discarding::discard(Block& block, By by) {
  if (!may_go(block, by)) return false;
  auto sources = Values::sources(block, nullptr, by == By::kEviction ? &this_thread() : nullptr);
  c10::StorageImpl* storage = sources ? movable_storage(block) : nullptr;
  if (storage == nullptr) return false;
  auto discarded = made_from(block, std::move(*sources), by);
  moves_.leave_arena(block, *storage);
  books_.discarded(block, std::move(discarded));
  ++stats_.discards;
  stats_.bytes_discarded += block.bytes;
  return true;
}

// Its bytes are there still.
std::unique_ptr<Discarded> Discarding::made_from(Block& block, std::vector<ValueRef> sources, By by) {
  auto discarded = std::make_unique<Discarded>();
  discarded->value = block.value;
  discarded->sources = std::move(sources);
  discarded->is_planned = by == By::kPlan;
  discarded->is_compared = by == By::kStress || !memory_.device->is_asynchronous();
  if (discarded->is_compared) take_print(block);
  if (block.extent != nullptr) block.tier->release(std::exchange(block.extent, nullptr));
  block.tier = memory_.tier;
  return discarded;
}

void Discarding::hand_over(Block& block, std::vector<ValueRef> sources) {
  auto discarded = made_from(block, std::move(sources), By::kPlan);
  block.device->released(block.address());  // whoever else uses the bytes comes before the op
  books_.leaves(block);
  block.region = nullptr;
  block.arena.reset();
  books_.discarded(block, std::move(discarded));
  ++stats_.handovers;
  stats_.bytes_handed_over += block.bytes;
}

// (On a host the fingerprint is the copy's too, which is compared before that is trusted.)
void Discarding::set_aside(Block& block, bool is_tried) {
  if (!may_move(block, turns_)) return;
  if (memory_.device->is_asynchronous() ? is_tried : block.dirty) take_print(block);
  moves_.evict(block);
}

void Discarding::take_print(Block& block) {
  Stopwatch stopwatch(stats_.check_ns);
  block.print = memory_.device->fingerprint_of(block.address(), block.bytes);
}

void Discarding::compare(const Block& block, const Block& made) {
  if (block.discarded && !block.discarded->is_compared) return;
  if (!is_same(block.print, made)) throw std::runtime_error("they came out different");
}

bool Discarding::is_same(uint64_t print, const Block& made) {
  Stopwatch stopwatch(stats_.check_ns);
  return memory_.device->fingerprint_of(made.address(), made.bytes) == print;
}

void Discarding::iteration_ends() {
  if (!flags_.drops) return;
  for (Block* block : books_.all())
    if (!block->discarded) Values::forget_recipe(*block);
}

// The storage is dying, and another takes its place. (A reference to the program's own would show: autograd adds in place
// to what nobody else has.)
bool Discarding::outlives_its_storage(Block& block) {
  if (!block.value || block.value->dependents.empty() || do_without(block)) return false;
  at::DataPtr pointer(block.resident() ? block.address() : nullptr, &block, &delete_by_block, block.device->name());
  auto kept = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), block.bytes, std::move(pointer),
                                                    &block.device->own(), /*resizable=*/true);
  block.storage = c10::weak_intrusive_ptr<c10::StorageImpl>(kept);
  block.storage_address = kept.get();
  if (!block.resident()) set_absent(*kept);
  block.temporary = true;
  for (Block* dependent : block.value->dependents) dependent->discarded->keeps.push_back(kept);
  return true;
}

// What is to be made from the source will be made from what that was made from.
bool Discarding::do_without(Block& source) {
  const bool is_tried = flags_.drops && tried_.come_out_again(Values::chain(*source.value)) == true;
  std::vector<std::pair<Block*, std::vector<ValueRef>>> others;
  for (Block* dependent : source.value->dependents) {
    auto sources = dependent->discarded->is_planned || is_tried ? Values::sources(*dependent, &source) : std::nullopt;
    if (!sources) return false;
    others.emplace_back(dependent, std::move(*sources));
  }
  for (auto& [dependent, sources] : others) books_.depends_on(*dependent, std::move(sources));
  return true;
}

std::vector<Block*> Discarding::wanted_by(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, bool is_doubtful) {
  std::vector<Block*> wanted;
  if (books_.discarded() == 0) return wanted;
  const bool is_profiled = at::hasThreadLocalCallbacks();  // which may ask for the address of a view's input too
  for (size_t i = 0; i < inputs.size(); ++i)
    each_storage(inputs[i], [&](const c10::Storage& storage, Part part) {
      if (!memory_.device->has(storage.device())) return;
      Block* block = books_.find(*storage.unsafeGetStorageImpl());
      if (block == nullptr) return;
      const bool stays = part == Part::kDescription || op.keeps_pointers;
      const bool is_written = op.may_write(i, is_doubtful);
      if (block->discarded && (op.reads(i) || is_written || stays || is_profiled)) wanted.push_back(block);
      if ((is_written || stays) && block->value && (stays || !do_without(*block)))
        wanted.insert(wanted.end(), block->value->dependents.begin(), block->value->dependents.end());
    });
  return wanted;
}

std::vector<Block*> Discarding::wanted_with(Block& block) {
  std::vector<Block*> wanted;
  if (block.value) wanted = block.value->dependents;
  if (block.discarded) wanted.push_back(&block);
  return wanted;
}

void Discarding::come_back(Block& block, c10::StorageImpl& made) {
  Block* from = books_.find(made);
  c10::StorageImpl* storage = storage_behind(block);
  if (storage == nullptr && block.discarded) return books_.no_longer_discarded(block);  // nobody can read it any more
  if (storage == nullptr) return;
  const bool is_there = from != nullptr && is_behind(made._mutable_data_ptr_no_checks(), *from) && memory_.holds(*from);
  if (!is_there || from->bytes != block.bytes || from->active != 0) throw std::runtime_error("they came out elsewhere");
  compare(block, *from);
  books_.leaves(*from);
  data_of(made._mutable_data_ptr_no_checks()) = nullptr;
  block.region = std::exchange(from->region, nullptr);
  block.region->owner = &block;
  block.arena = std::move(from->arena);
  books_.arrives(block, *storage);
  block.dirty = block.recomputed = true;
  block.last_use = books_.now();
  if (block.extent != nullptr) block.tier->release(std::exchange(block.extent, nullptr));
  if (block.discarded) books_.no_longer_discarded(block);
  ++stats_.recomputations;
}

}  // namespace memfit
