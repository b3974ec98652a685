#include "slicing.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "engine.h"
#include "observer.h"
#include "pointers.h"
#include "slices.h"
#include "split_sizes.h"
#include "splitting.h"
#include "warnings.h"
#include "written.h"

namespace memfit {

namespace {

// While it lives, the thread's state says so.
class Marked {
 public:
  explicit Marked(bool ThreadState::*mark) : mark_(mark) { this_thread().*mark_ = true; }
  Marked(const Marked&) = delete;
  Marked& operator=(const Marked&) = delete;
  ~Marked() { this_thread().*mark_ = false; }

 private:
  bool ThreadState::*mark_;
};

}  // namespace

// An output that slices fill, one after another.
class Slicing::Output {
 public:
  // `away`: its block, if its bytes go to the tier.
  Output(at::Tensor tensor, int64_t dim, Block* away)
      : tensor_(std::move(tensor)), strip_(Strip::of(tensor_, dim)), dim_(dim), away_(away) {}

  void take(const at::Tensor& slice, int64_t begin, int64_t end) {
    if (dim_ == kEmpty) return;
    c10::SmallVector<int64_t, 5> sizes(tensor_.sizes().begin(), tensor_.sizes().end());
    sizes[dim_] = end - begin;
    if (slice.scalar_type() != tensor_.scalar_type() || !is_laid_out_as(slice, sizes, dense_strides(sizes, tensor_.strides())))
      throw TierFailure("a slice came out in another layout than it had when it was tried");
    const char* from = address_of(slice) + static_cast<size_t>(slice.storage_offset()) * slice.itemsize();
    each_chunk(strip_, begin, end, [&](size_t to, size_t at, size_t bytes) { put(to, from + at, bytes); });
  }
  void finish() {
    if (held_ != 0) write(at_, page_.data(), std::exchange(held_, 0));
  }
  const at::Tensor& tensor() const { return tensor_; }
  size_t written() const { return written_; }

 private:
  void put(size_t to, const char* from, size_t bytes) {
    if (away_ == nullptr)
      std::memcpy(address_of(tensor_) + to, from, bytes);
    else
      append(to, from, bytes);
  }

  // Whole pages, each once: a page that two slices share waits for the second.
  void append(size_t to, const char* from, size_t bytes) {
    if (held_ != 0) {
      const size_t part = std::min(bytes, page_.size() - held_);
      std::memcpy(page_.data() + held_, from, part);
      held_ += part, from += part, bytes -= part, to += part;
      if (held_ < page_.size()) return;
      write(at_, page_.data(), std::exchange(held_, 0));
    }
    const size_t whole = bytes / page_.size() * page_.size();
    if (whole != 0) write(to, from, whole);
    held_ = bytes - whole;
    at_ = to + whole;
    std::memcpy(page_.data(), from + whole, held_);
  }

  void write(size_t at, const char* from, size_t bytes) {
    away_->tier->write_part(away_->extent, away_->bytes, at, from, bytes);
    written_ += bytes;
  }

  at::Tensor tensor_;
  Strip strip_;
  int64_t dim_;
  Block* away_;
  std::array<char, Tier::kAlignment> page_;
  size_t held_ = 0, at_ = 0;  // bytes that wait for the rest of their page, and its place
  size_t written_ = 0;
};

struct Slicing::Plan {
  int64_t steps = 0;
  std::vector<bool> away;  // of each output
};

void Slicing::run(std::unique_ptr<SplitCall> call, const Kernel& kernel, Stack& stack) {
  if (call->is_tried)
    trials_.run(*call, kernel, stack);
  else
    run_in_slices(*call, kernel, stack);
}

// The longest slices for which there is room, if there is any; the outputs that fit beside the shortest ones are in the arena.
Slicing::Plan Slicing::plan(const SplitCall& call, Inputs inputs) {
  Plan plan;
  engine_.governing([&](Session& session) {
    const Arena& arena = *session.memory.arena;
    const ThreadState& thread = this_thread();
    const bool is_planned = session.planned.maps_any(thread);
    size_t room = std::max(arena.ranges.largest_free(), session.residency.widest_window(/*running=*/true));
    const size_t output_room = is_planned ? std::max(room, arena.plan()->widest_gap()) : room;
    if (is_planned) room = std::max(room, arena.plan()->widest_gap_beside_op());
    const size_t least = slice_bytes(call.way, inputs, call.outputs, call.steps.front());
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      const OutputLayout& output = call.outputs[i];
      const size_t bytes = arena.round(output.bytes());
      const bool is_even = std::any_of(call.steps.begin(), call.steps.end(), [&](int64_t steps) { return is_in_pages(call, i, steps); });
      const bool is_wanted_away =
          is_planned ? session.planned.will_be_mapped(thread, output.bytes()) || bytes > output_room : bytes + 2 * least > room;
      const bool is_away = bytes != 0 && is_even && (call.is_forced || is_wanted_away);
      plan.away.push_back(is_away);
      if (!is_away && !is_planned) room -= std::min(room, bytes);
    }
    for (int64_t steps : call.steps) {
      bool is_even = true;
      for (size_t i = 0; i < call.outputs.size(); ++i) is_even &= !plan.away[i] || is_in_pages(call, i, steps);
      const size_t bytes = slice_bytes(call.way, inputs, call.outputs, steps);
      if (is_even && (plan.steps == 0 ? bytes : bytes * 2) <= room) plan.steps = steps;
    }
  });
  return plan;
}

at::Tensor Slicing::make_output(const OutputLayout& layout, bool is_away) {
  if (!is_away) return new_tensor(layout.dtype, layout.sizes, layout.strides);
  Block* block = nullptr;
  engine_.governing([&](Session& session) { block = session.allocation.allocate_away(this_thread(), layout.bytes()); });
  if (block == nullptr) slices_.fail("its session has ended");
  auto impl = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), layout.bytes(),
                                                    at::DataPtr(nullptr, block, &delete_by_block, c10::kCPU),
                                                    c10::GetCPUAllocator(), /*resizable=*/true);
  const c10::Storage storage(std::move(impl));
  engine_.governing([&](Session&) {
    Books::attach(*block, storage);
    set_absent(*storage.unsafeGetStorageImpl());
  });
  return tensor_in(storage, layout.dtype, layout.sizes, layout.strides, 0);
}

// In the order in which the whole op allocates them: so each is the storage that the plan takes it for.
std::vector<Slicing::Output> Slicing::make_outputs(const Plan& plan, const SplitCall& call) {
  std::vector<size_t> bytes, order;
  for (const OutputLayout& layout : call.outputs) {
    order.push_back(bytes.size());
    bytes.push_back(layout.bytes());
  }
  engine_.governing([&](Session& session) { session.planned.order_outputs(this_thread(), bytes, order); });
  std::vector<at::Tensor> made(bytes.size());
  {
    const Marked making(&ThreadState::makes_outputs);
    for (size_t i : order) made[i] = make_output(call.outputs[i], plan.away[i]);
  }
  std::vector<Output> outputs;
  for (size_t i = 0; i < made.size(); ++i) {
    Block* away = nullptr;
    if (plan.away[i]) engine_.governing([&](Session& session) { away = session.lasting.books.find(*made[i].storage().unsafeGetStorageImpl()); });
    outputs.emplace_back(made[i], call.way.outputs[i], away);
  }
  return outputs;
}

void Slicing::count(const SplitCall& call, uint64_t slices, uint64_t written) {
  engine_.governing([&](Session& session) {
    ++session.stats.split_ops;
    session.stats.slices += slices;
    session.stats.slice_bytes_out += written;
    if (!call.is_forced) session.notices.add("split " + call.op->name, call.op->name + " does not fit the budget at once: it runs in slices, with the same bits, and " +
                                                      "is slower for it (--split never makes that an error)");
  });
}

void Slicing::run_in_slices(const SplitCall& call, const Kernel& own_kernel, Stack& stack) try {
  const size_t allocated_before = this_thread().allocated;
  SaidOnce said;
  const Kernel kernel = [&](Stack& each) {
    said.run_begins();
    own_kernel(each);
  };
  if (call.way.mask >= 0) return run_in_parts(call, said, stack);
  for (size_t i = 0; i < call.way.cuts.size(); ++i) {
    const Cut& cut = call.way.cuts[i];
    const Block* block = call.streams[i];
    if (block != nullptr && !is_behind(tensor_at(inputs_in(stack), cut.argument, cut.item).storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks(), *block))
      return kernel(stack);  // not what was looked at: it says itself what it lacks
  }
  if (call.way.gathers) {
    {
      const Marked slicing(&ThreadState::is_slicing);
      stack = slices_.gathered(call, stack);
    }
    kernel(stack);
    this_thread().allocated = allocated_before + call.allocated_bytes;
    return count(call, 1, 0);
  }
  const Plan plan = this->plan(call, inputs_in(stack));
  if (plan.steps != 0 && runs_by(plan, call, kernel, stack)) return;
  engine_.governing([&](Session& session) { session.ops.use_whole(this_thread(), *call.op, inputs_in(stack), call.streams); });
  kernel(stack);
} catch (const TierFailure& error) {
  slices_.fail(error.what());
}

bool Slicing::runs_by(const Plan& plan, const SplitCall& call, const Kernel& kernel, Stack& stack) {
  const Written before(call.way, inputs_in(stack));
  try {
    run_by(plan, call, kernel, stack);
    return true;
  } catch (const std::exception&) {
    before.put_back();
    if (this_thread().failure.kind != Failure::Kind::kBudget) throw;
    Refusals::forget(this_thread());
    return false;
  }
}

void Slicing::run_by(const Plan& plan, const SplitCall& call, const Kernel& kernel, Stack& stack) {
  const size_t allocated_before = this_thread().allocated;
  std::vector<Output> outputs = make_outputs(plan, call);
  const Marked slicing(&ThreadState::is_slicing);
  uint64_t slices_run = 0, written = 0;
  for (int64_t begin = 0; begin < call.way.length; begin += plan.steps, ++slices_run) {
    const int64_t end = std::min(begin + plan.steps, call.way.length);
    const Stack made = slices_.run(call, kernel, stack, begin, end);
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i].take(made[call.way.first + i].toTensor(), begin, end);
  }
  stack.assign(call.way.first, at::Tensor());
  for (Output& output : outputs) {
    output.finish();
    written += output.written();
    stack.emplace_back(output.tensor());
  }
  while (stack.size() < call.op->returns) stack.emplace_back(at::Tensor());  // that were not asked for
  this_thread().allocated = allocated_before + call.allocated_bytes;
  count(call, slices_run, written);
}

}  // namespace memfit
