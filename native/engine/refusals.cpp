#include "refusals.h"

#include <algorithm>
#include <map>
#include <utility>

#include "observer.h"
#include "operands.h"
#include "pointers.h"

namespace memfit {

namespace {

constexpr size_t kLongestList = 8;  // kinds of things that are named one by one

// "3 x a; b; 2 more".
std::string listed(const std::map<std::string, size_t>& counts) {
  std::string text;
  size_t named = 0, rest = 0;
  for (const auto& [what, count] : counts) {
    if (named++ >= kLongestList) {
      rest += count;
      continue;
    }
    text += (text.empty() ? "" : "; ") + (count > 1 ? std::to_string(count) + " x " : std::string()) + what;
  }
  return rest == 0 ? text : text + "; " + std::to_string(rest) + " more";
}

}  // namespace

std::string describe(c10::ArrayRef<const c10::IValue> values) {
  std::map<std::string, size_t> counts;
  for (const c10::IValue& value : values)
    each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) return;
      const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
      if (storage.sym_nbytes().is_heap_allocated()) return;  // of a tensor with symbols for sizes, which the compiler traces
      size_t bytes = storage.nbytes();
      ++counts[shape_of(tensor) + " of a storage of " + format_bytes(bytes)];
    });
  return listed(counts);
}

std::string op_under_way(const ThreadState& thread) {
  return thread.op != nullptr && thread.depth > 0 ? thread.op->name : "an allocation outside any op";
}

std::string in_words(const Failure& failure) {
  std::string text = failure.message;
  if (!failure.source.empty()) text += "; at " + failure.source;
  if (!failure.why.empty()) text += "\n  why: " + failure.why;
  if (!failure.remedy.empty()) text += "\n  try: " + failure.remedy;
  return text;
}

void Refusals::tell_why(const ThreadState& thread, Failure& failure, size_t request, bool is_input) const {
  const size_t own = thread.input_bytes + thread.window.live() + (is_input ? 0 : request);
  const bool holes = own + immovable_bytes() <= memory_.arena->ranges.limit();
  failure.required_bytes = smallest_budget(thread, request, is_input);
  failure.message = "memfit: the budget of " + format_bytes(stats_.budget_bytes) + share_of_peak(stats_.budget_bytes) +
                    " cannot be met: " + op_under_way(thread) + " needs at least " + format_bytes(own) + " at once";
  failure.why = "inputs " + format_bytes(thread.input_bytes) + ", allocated by it so far " +
                format_bytes(thread.window.live()) + (is_input ? ", of the inputs now " : ", asked for now ") +
                format_bytes(request);
  if (!thread.tensors.empty()) failure.why += "; its tensors: " + thread.tensors;
  const std::string stays = describe_immovable();
  if (holes)
    failure.why += "; it would fit, but the longest stretch that can be cleared has " + format_bytes(residency_.widest_window()) +
                   (stays.empty() ? ", between storages that running ops use" : ", between storages that cannot move");
  if (!stays.empty()) failure.why += "; cannot move: " + stays;
  const std::string share = share_of_peak(failure.required_bytes);
  failure.remedy = "a budget of at least " + format_bytes(failure.required_bytes) + (share.empty() ? "," : share) +
                   " which has room for what this op has asked for so far; `memfit trace` and `memfit info` give the "
                   "smallest feasible budget beforehand";
}

std::string Refusals::share_of_peak(size_t bytes) const {
  return peak_ == 0 ? "" : ", " + std::to_string((bytes * 100 + peak_ - 1) / peak_) + " % of the iteration's peak,";
}

// With the shelf as it is, and all that cannot move beside it, the op's inputs and its allocations so far are laid out
// anew under larger limits until this one fits. If they fit under the present limit, it is holes that refuse it: then
// the limit is raised until the last stretch is long enough, the others being where they are.
size_t Refusals::smallest_budget(const ThreadState& thread, size_t request, bool is_input) const {
  const Ranges& ranges = memory_.arena->ranges;
  OpWindow window = thread.window;
  if (!is_input) window.take(request, OpWindow::goes_high(request, std::max(thread.largest, request)));
  const size_t laid_out = immovable_bytes() + thread.input_bytes + window.length(ranges.alignment());
  if (laid_out > ranges.limit()) return std::max(laid_out + (stats_.budget_bytes - ranges.limit()), stats_.budget_bytes + 1);
  size_t last = 0;
  for (const Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit(); r = r->next)
    last = r->is_free() || residency_.may_move(*owner_of(r)) ? last + std::min(r->end(), ranges.limit()) - r->offset : 0;
  return stats_.budget_bytes + std::max(request - std::min(request, last), ranges.alignment());
}

size_t Refusals::immovable_bytes() const {
  size_t bytes = 0;
  for (const Block* block : books_.all())
    if (memory_.holds(*block) && block->active == block->collectives && !residency_.may_move(*block)) bytes += block->region->size;
  return bytes;
}

// "2 x 64 B pinned because raw memory escaped (numpy, data_ptr, DLPack, a Python number) at train.py:12; ..."
std::string Refusals::describe_immovable() const {
  std::map<std::string, size_t> counts;
  for (const Block* block : books_.all()) {
    if (!memory_.holds(*block) || block->active > block->collectives || residency_.may_move(*block)) continue;
    const char* why = block->pinned       ? " pinned because raw memory escaped (numpy, data_ptr, DLPack, a Python number)"
                      : block->collectives > 0 ? " given to collectives that have yet to complete"
                      : !block->attached() ? " of a library's workspace"
                      : block->small       ? " of small storages, which stay while ops run"
                                           : " made but not used by any op yet";
    std::string source = source_text(block->source);
    if (block->small && !block->pinned && block->attached() && !block->held) source.clear();
    ++counts[format_bytes(block->region->size) + why + (source.empty() ? "" : " at " + source)];
  }
  return listed(counts);
}

void Refusals::refuse(ThreadState& thread, size_t request, bool is_input) {
  if (thread.failure.kind != Failure::Kind::kNone) return;  // the tier's, or that of an outer call of the op, is the reason
  Failure failure;
  failure.kind = Failure::Kind::kBudget;
  tell_why(thread, failure, memory_.arena->round(request), is_input);
  fail(thread, std::move(failure));
}

Failure Refusals::of_tier(const ThreadState& thread, const std::string& why) {
  Failure failure;
  failure.kind = Failure::Kind::kTier;
  failure.message = "memfit: " + op_under_way(thread) + " could not get its bytes: " + why;
  return failure;
}

namespace {

Failure of_memfit(const ThreadState& thread, const std::string& why) {
  Failure failure;
  failure.kind = Failure::Kind::kTier;
  failure.message = "memfit: " + op_under_way(thread) + " could not get its bytes";
  failure.why = "an error of memfit's own, not of the program's: " + why;
  failure.remedy = "another budget may do without what fails; please file an issue with this message and, if you can, the script";
  return failure;
}

}  // namespace

void Refusals::fail(ThreadState& thread, Failure failure) {
  failure.op = op_under_way(thread);
  failure.tensors = thread.tensors;
  thread.failure = last_ = std::move(failure);
}

void Refusals::unforeseen(ThreadState& thread, const char* why, bool is_of_tier) noexcept {
  if (thread.failure.kind != Failure::Kind::kNone) return;
  try {
    fail(thread, is_of_tier ? of_tier(thread, why) : of_memfit(thread, why));
    thread.untold = true;
  } catch (...) {
    // There is no memory for a text either: whatever comes next will fail by itself.
  }
}

void Refusals::refuse_next(const std::string& message, size_t required_bytes) {
  next_.kind = Failure::Kind::kBudget;
  next_.message = message;
  next_.required_bytes = required_bytes;
  last_ = next_;
}

// (Not one of an op that runs again: whatever that raises is only the reason why it cannot.)
void Refusals::hand_on(ThreadState& thread) {
  if (!thread.recomputing && next_.kind != Failure::Kind::kNone) std::swap(thread.failure, next_);
}

void Refusals::put_off(ThreadState& thread) {
  if (std::exchange(thread.untold, false)) next_ = thread.failure;
  forget(thread);
}

// Seven texts are not made anew for every op, of which few fail.
void Refusals::forget(ThreadState& thread) {
  if (thread.failure.kind != Failure::Kind::kNone) thread.failure = Failure();
}

}  // namespace memfit
