#include "splitting.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "observer.h"
#include "operands.h"
#include "pointers.h"
#include "split_sizes.h"

namespace memfit {

namespace {

constexpr size_t kLeastSplit = size_t{64} << 10;  // bytes of a working set: smaller ones are not split

// A tensor of the host's whose elements lie in a storage, and nothing else.
bool is_splittable(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (is_wrapper(*impl) || !impl->has_storage() || impl->layout() != at::kStrided || impl->has_symbolic_sizes_strides()) return false;
  return impl->is_cpu() && !tensor.is_conj() && !tensor.is_neg() && !impl->is_quantized() && !impl->is_nested();
}

// Autocast, or a mode of Python's, has the call first: what computes is another.
bool is_computed_elsewhere(const OpInfo& op) {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return !(op.autocasts - keys.excluded_).empty() || (keys.included_ - keys.excluded_).has(c10::DispatchKey::Python) ||
         (keys.included_ - keys.excluded_).has_any(c10::functorch_transforms_ks);
}

}  // namespace

// The storages of a call's tensors, each once, as far as the engine knows them.
struct Splitting::Operands {
  std::vector<Block*> blocks;
  std::vector<int> uses;  // of each: how many of the tensors lie in it
  size_t bytes = 0;

  int uses_of(const Block* block) const {
    const auto found = std::find(blocks.begin(), blocks.end(), block);
    return found == blocks.end() ? 0 : uses[found - blocks.begin()];
  }
};

bool Splitting::is_worth_trying(size_t bytes) {
  largest_ = std::max(largest_, bytes);
  return is_pressed() || (bytes >= kLeastSplit && bytes >= largest_ / 4);
}

// A plan has room for all other ops, whole.
bool Splitting::is_planned(const ThreadState& thread) const {
  return on_.memory.arena->plan() == nullptr || is_forced() || on_.planned.maps_any(thread);
}

// A profiler that notes shapes asks for the addresses of what is put off: it comes in for that, if it leaves as much room again.
bool Splitting::defers(const ThreadState& thread, const OpInfo& op, Inputs inputs) const {
  if (!op.passes_on || !is_allowed() || !is_planned(thread) || on_.stats.budget_bytes == 0 || on_.gate.is_empty() || is_computed_elsewhere(op)) return false;
  size_t bytes = 0;
  for (const c10::IValue& input : inputs)
    each_tensor(input, [&](const at::Tensor& tensor) {
      if (tensor.defined() && is_splittable(tensor)) bytes += tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
    });
  const size_t limit = on_.memory.arena->ranges.limit();
  if (at::hasThreadLocalCallbacks() && bytes <= limit / 2) return false;
  return is_forced() || bytes >= limit / 4;
}

// What has not been tried yet is: where there is a limit, if it turns out that it runs mapped; where there is none, if that
// is asked for.
void Splitting::op_begins(ThreadState& thread, const OpInfo& op, Inputs inputs, bool may_map) {
  if (!is_allowed() || !thread.working.is_outermost(thread.depth) || thread.is_apart()) return;
  if (on_.memory.device->is_asynchronous() || is_computed_elsewhere(op)) return;
  if (!is_planned(thread)) return;
  const bool is_limited = on_.stats.budget_bytes != 0;
  const bool may_not_fit = !is_limited || is_forced() || may_be_too_large(op, inputs);
  const std::optional<Operands> operands = may_not_fit ? operands_of(inputs) : std::nullopt;
  if (!operands) return;
  auto call = std::make_unique<SplitCall>();
  call->op = &op;
  call->depth = thread.depth;
  call->key = Gate::key_of(op, inputs);
  const Answer* answer = on_.gate.find(call->key);
  if (answer == nullptr) {
    if (!is_limited && !tries_ahead_ && !is_forced()) return;
    call->is_tried = true;
    call->ways = op.split_rule->ways(inputs);
    if (call->ways.empty()) return;
  } else if (is_limited || is_forced()) {
    const bool is_split = is_to_be_split(thread, *call, op, inputs, *answer, *operands);
    if (is_split) note_need(thread, op, call->ways, inputs, *answer);
    const bool stays_whole = is_planned_for_ && may_map && thread.row >= 0 && !is_forced();
    if (!is_split || stays_whole) {
      thread.expected = std::max(thread.expected, answer->workspace_bytes);
      return;
    }
    thread.whole_workspace += answer->workspace_bytes;
    make_way(thread, *call, inputs, *operands, available(operands->blocks));
  } else {
    return note_need(thread, op, op.split_rule->ways(inputs), inputs, *answer);
  }
  thread.split = std::move(call);
  split_call = thread.split.get();
}

// Something waits that the plan has no room for, and that slices would not be read from.
bool Splitting::waits_apart(const ThreadState& thread, const SplitCall& call, const Operands& operands) const {
  return std::any_of(operands.blocks.begin(), operands.blocks.end(), [&](const Block* block) {
    const bool is_read = std::find(call.streams.begin(), call.streams.end(), block) != call.streams.end();
    return !is_read && !block->resident() && on_.planned.maps(thread, *block);
  });
}

bool Splitting::is_to_be_split(const ThreadState& thread, SplitCall& call, const OpInfo& op, Inputs inputs, const Answer& answer, const Operands& operands) const {
  if (answer.equal.empty()) return false;
  const size_t room = available(operands.blocks);
  const bool is_mapped = on_.planned.maps_any(thread);
  if (!is_forced() && !is_mapped && operands.bytes + answer.workspace_bytes <= room) return false;
  call.ways = op.split_rule->ways(inputs);
  call.allocated_bytes = answer.allocated_bytes;
  return choose(call, inputs, answer, operands, room) && !(is_mapped && waits_apart(thread, call, operands));
}

// (Most ops are small: that is soon seen.)
bool Splitting::may_be_too_large(const OpInfo& op, Inputs inputs) const {
  size_t bytes = on_.gate.most_workspace(op);
  for (const c10::IValue& input : inputs)
    each_tensor(input, [&](const at::Tensor& tensor) {
      if (tensor.defined() && is_splittable(tensor)) bytes += tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
    });
  return bytes >= on_.memory.arena->ranges.limit() / 4;
}

void Splitting::note_need(ThreadState& thread, const OpInfo& op, const std::vector<Way>& ways, Inputs inputs, const Answer& answer) const {
  const std::optional<Operands> operands = operands_of(inputs);
  SplitCall call;
  call.ways = ways;
  if (!operands || !choose(call, inputs, answer, *operands, SIZE_MAX)) return;
  if (call.way.mask >= 0) {
    if (thread.op == &op && !is_planned_for_) thread.parts_bytes = parts_bytes(op, call.way, inputs, *operands);  // by plan it is mapped
    return;
  }
  for (Block* block : call.streams)
    if (block != nullptr && std::find(thread.sliced.begin(), thread.sliced.end(), block) == thread.sliced.end()) thread.sliced.push_back(block);
  if (!call.way.gathers)
    for (const OutputLayout& output : answer.outputs) thread.sliced_output_bytes += on_.memory.arena->round(output.bytes());
  thread.slice_bytes = std::max(thread.slice_bytes, slice_bytes(call.way, inputs, answer.outputs, call.steps.front()));
}

// The most that a part needs, in slices where it may; 0 if one of them has not been tried.
size_t Splitting::parts_bytes(const OpInfo& op, const Way& way, Inputs inputs, const Operands& operands) const {
  std::vector<c10::IValue> values(inputs.begin(), inputs.end());
  const Inputs given(values.data(), values.size());
  size_t most = 0;
  for (const c10::List<bool>& wanted : parts_asked_for(values[way.mask].toBoolList())) {
    values[way.mask] = wanted;
    const Answer* answer = on_.gate.find(Gate::key_of(op, given));
    if (answer == nullptr) return 0;
    SplitCall call;
    if (!answer->equal.empty()) call.ways = op.split_rule->ways(given);
    size_t bytes = operands.bytes + answer->workspace_bytes;
    if (choose(call, given, *answer, operands, SIZE_MAX)) bytes = whole_bytes(call, operands) + 2 * slice_bytes(call.way, given, call.outputs, call.steps.front());
    most = std::max(most, bytes);
  }
  return most;
}

size_t Splitting::need_of(const ThreadState& thread, size_t workspace) const {
  if (thread.slice_bytes == 0 && thread.parts_bytes == 0) return 0;
  std::vector<const Block*> used(thread.touched.begin(), thread.touched.end());
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  size_t whole = workspace, split = workspace - std::min(workspace, thread.sliced_output_bytes) + 2 * thread.slice_bytes;
  for (const Block* block : used) {
    const size_t bytes = block->born_in == thread.serial ? 0 : on_.memory.arena->round(block->bytes);
    whole += bytes;
    if (std::find(thread.sliced.begin(), thread.sliced.end(), block) == thread.sliced.end()) split += bytes;
  }
  if (thread.slice_bytes == 0) split = thread.parts_bytes;
  return split < whole ? on_.memory.arena->round(split) : 0;
}

// Nothing where one of the tensors is not plain.
std::optional<Splitting::Operands> Splitting::operands_of(Inputs inputs) const {
  Operands operands;
  bool are_plain = true;
  for (const c10::IValue& input : inputs)
    each_tensor(input, [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !are_plain) return;
      are_plain = is_splittable(tensor);
      Block* block = are_plain ? on_.books.find(*tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()) : nullptr;
      if (block == nullptr) return;
      Books::attach(*block, tensor.storage());
      const auto found = std::find(operands.blocks.begin(), operands.blocks.end(), block);
      if (found != operands.blocks.end()) {
        ++operands.uses[found - operands.blocks.begin()];
        return;
      }
      operands.blocks.push_back(block);
      operands.uses.push_back(1);
      operands.bytes += on_.memory.arena->round(block->bytes);
    });
  return are_plain ? std::optional(std::move(operands)) : std::nullopt;
}

// What the arena could have for the op, if all leaves that may while it runs. (A 64th is left for holes.)
size_t Splitting::available(const std::vector<Block*>& own) const {
  const size_t limit = on_.memory.arena->ranges.limit();
  size_t bytes = limit - limit / 64;
  for (const Block* block : on_.books.all()) {
    if (!on_.memory.holds(*block) || std::find(own.begin(), own.end(), block) != own.end()) continue;
    const bool is_used = block->active > (block->copy ? 1 : 0);
    const bool stays = block->small || block->pinned || block->held || !block->attached();
    if (is_used || stays) bytes -= std::min(bytes, block->region->size);
  }
  return bytes;
}

// What is in memory during all of the slices: what they are not read from, and outputs that cannot be made away.
size_t Splitting::whole_bytes(const SplitCall& call, const Operands& operands) const {
  size_t whole = operands.bytes;
  for (const Block* block : call.streams)
    if (block != nullptr) whole -= on_.memory.arena->round(block->bytes);
  for (size_t i = 0; i < call.outputs.size() && !call.way.gathers; ++i) {
    const bool may_be_away = std::any_of(call.steps.begin(), call.steps.end(), [&](int64_t steps) { return is_in_pages(call, i, steps); });
    if (!may_be_away) whole += on_.memory.arena->round(call.outputs[i].bytes());
  }
  return whole;
}

// Whether there are any: those in which bytes can be read where they wait. Otherwise all are left, for bytes that are here.
bool Splitting::leave_lengths_to_stream(SplitCall& call, Inputs inputs) const {
  if (on_.memory.tier->is_memory() || call.way.gathers) return true;
  std::vector<int64_t> long_ones;
  std::copy_if(call.steps.begin(), call.steps.end(), std::back_inserter(long_ones), [&](int64_t steps) { return reads_pages(call.way, inputs, steps); });
  if (!long_ones.empty()) call.steps = long_ones;
  return !long_ones.empty();
}

// The first way in which what is whole and the shortest slices fit.
bool Splitting::choose(SplitCall& call, Inputs inputs, const Answer& answer, const Operands& operands, size_t room) const {
  call.outputs = answer.outputs;
  call.is_forced = is_forced();
  const auto fits = [room](size_t whole, size_t least) { return whole <= room && least <= room - whole; };
  for (size_t number = 0; number < call.ways.size(); ++number) {
    call.way = call.ways[number];
    call.steps.clear();
    for (const Answer::Equal& equal : answer.equal)
      if (equal.way == static_cast<int32_t>(number)) call.steps.push_back(equal.steps);
    if (call.steps.empty()) continue;
    if (call.way.mask >= 0) return true;
    std::sort(call.steps.begin(), call.steps.end());
    const bool may_stream = leave_lengths_to_stream(call, inputs);
    call.streams.clear();
    for (const Cut& cut : call.way.cuts) {
      const at::Tensor& tensor = tensor_at(inputs, cut.argument, cut.item);
      Block* block = on_.books.find(*tensor.storage().unsafeGetStorageImpl());
      const bool streams = may_stream && block != nullptr && !cut.is_written && operands.uses_of(block) == 1 && !block->discarded && !block->copy &&
                           tensor.is_non_overlapping_and_dense() && (!block->resident() || on_.memory.holds(*block));
      call.streams.push_back(streams ? block : nullptr);
    }
    const size_t whole = whole_bytes(call, operands);
    const bool has_stream = std::any_of(call.streams.begin(), call.streams.end(), [](const Block* block) { return block != nullptr; });
    const size_t least = slice_bytes(call.way, inputs, call.outputs, call.steps.front());
    if ((has_stream || whole < room) && fits(whole, least)) return true;
  }
  return false;
}

// Operands that are there stay as long as slices have a quarter of the room.
void Splitting::make_way(ThreadState& thread, const SplitCall& call, Inputs inputs, const Operands& operands, size_t room) {
  if (call.way.mask >= 0) thread.streamed = operands.blocks;  // each part brings in what it needs
  size_t whole = operands.bytes;
  std::vector<Block*> there;
  for (Block* block : call.streams) {
    if (block == nullptr) continue;
    whole -= on_.memory.arena->round(block->bytes);
    thread.streamed.push_back(block);
    if (block->resident()) there.push_back(block);
  }
  if (on_.planned.maps_any(thread)) return;
  on_.planned.drop();
  if (call.way.mask >= 0) return;
  size_t left = room - std::min(room, whole);
  left -= std::min(left, std::max(left / 4, slice_bytes(call.way, inputs, call.outputs, call.steps.front())));
  std::sort(there.begin(), there.end(), [](const Block* a, const Block* b) { return a->bytes < b->bytes; });
  for (Block* block : there) {
    const size_t bytes = on_.memory.arena->round(block->bytes);
    if ((!call.is_forced && bytes <= left) || !on_.residency.may_move(*block) || !on_.moves.evict(*block)) left -= std::min(left, bytes);
  }
}

}  // namespace memfit
