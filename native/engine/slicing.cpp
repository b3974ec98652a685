#include "slicing.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "engine.h"
#include "observer.h"
#include "pointers.h"
#include "slices.h"
#include "splitting.h"

namespace memfit {

namespace {

at::Tensor tensor_in(c10::Storage storage, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                               c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

// A new one of its own storage.
at::Tensor new_tensor(c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const at::Tensor dense = at::detail::empty_cpu(sizes, dtype);
  dense.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return dense;
}

// While it lives, what the thread allocates is a slice's.
class IsSlicing {
 public:
  IsSlicing() { this_thread().is_slicing = true; }
  IsSlicing(const IsSlicing&) = delete;
  IsSlicing& operator=(const IsSlicing&) = delete;
  ~IsSlicing() { this_thread().is_slicing = false; }
};

}  // namespace

// An output that slices fill, one after another.
class Slicing::Output {
 public:
  // `away`: its block, if its bytes go to the tier.
  Output(at::Tensor tensor, int64_t dim, Block* away)
      : tensor_(std::move(tensor)), strip_(Strip::of(tensor_, dim)), dim_(dim), away_(away) {}

  void take(const at::Tensor& slice, int64_t begin, int64_t end) {
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
    run_and_try(*call, kernel, stack);
  else
    run_in_slices(*call, kernel, stack);
}

void Slicing::fail(const std::string& why) {
  Failure failure;
  engine_.governing([&](Session& session) {
    session.refusals.refuse_by_tier(this_thread(), why);
    failure = this_thread().failure;
  });
  if (failure.kind == Failure::Kind::kNone) failure = Refusals::of_tier(this_thread(), why);  // its session is over
  raise(failure);
}

// The longest slices for which there is room, if there is any; the outputs that fit beside the shortest ones are in the arena.
Slicing::Plan Slicing::plan(const SplitCall& call, Inputs inputs) {
  Plan plan;
  engine_.governing([&](Session& session) {
    const Arena& arena = *session.memory.arena;
    const ThreadState& thread = this_thread();
    const bool is_planned = session.planned.maps_any(thread);
    size_t room = std::max(arena.ranges.largest_free(), session.residency.widest_window(/*running=*/true));
    if (is_planned) room = std::max(room, session.memory.arena->plan()->widest_gap());
    const size_t least = Splitting::slice_bytes(call.way, inputs, call.outputs, call.steps.front());
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      const OutputLayout& output = call.outputs[i];
      const size_t bytes = arena.round(output.bytes());
      const bool is_even = std::any_of(call.steps.begin(), call.steps.end(), [&](int64_t steps) { return Splitting::is_in_pages(call, i, steps); });
      const bool is_wanted_away =
          is_planned ? session.planned.will_be_mapped(thread, output.bytes()) || bytes > room : bytes + 2 * least > room;
      const bool is_away = is_even && (call.is_forced || is_wanted_away);
      plan.away.push_back(is_away);
      if (!is_away && !is_planned) room -= std::min(room, bytes);
    }
    for (int64_t steps : call.steps) {
      bool is_even = true;
      for (size_t i = 0; i < call.outputs.size(); ++i) is_even &= !plan.away[i] || Splitting::is_in_pages(call, i, steps);
      const size_t bytes = Splitting::slice_bytes(call.way, inputs, call.outputs, steps);
      if (is_even && (plan.steps == 0 ? bytes : bytes * 2) <= room) plan.steps = steps;
    }
  });
  return plan;
}

at::Tensor Slicing::make_output(const OutputLayout& layout, bool is_away) {
  if (!is_away) return new_tensor(layout.dtype, layout.sizes, layout.strides);
  Block* block = nullptr;
  engine_.governing([&](Session& session) { block = session.allocation.allocate_away(this_thread(), layout.bytes()); });
  if (block == nullptr) fail("its session has ended");
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

void Slicing::read(const Block* block, const at::Tensor& whole, const Cut& cut, int64_t begin, int64_t end, char* to) {
  const Strip strip = Strip::of(whole, cut.dim);
  const char* here = address_of(whole);
  if (here == nullptr && (block == nullptr || block->extent == nullptr)) fail("its bytes are not there");
  uint64_t bytes_in = 0;
  each_chunk(strip, begin, end, [&](size_t from, size_t at, size_t bytes) {
    if (here != nullptr)
      std::memcpy(to + at, here + from, bytes);
    else
      block->tier->get_part(block->extent, block->bytes, from, to + at, bytes), bytes_in += bytes;
  });
  if (bytes_in != 0) engine_.governing([&](Session& session) { session.stats.slice_bytes_in += bytes_in; });
}

at::Tensor Slicing::slice_of(const SplitCall& call, size_t number, const at::Tensor& whole, int64_t begin, int64_t end) {
  const Cut& cut = call.way.cuts[number];
  c10::SmallVector<int64_t, 5> sizes(whole.sizes().begin(), whole.sizes().end());
  sizes[cut.dim] = end - begin;
  if (!whole.is_non_overlapping_and_dense())  // its elements lie anywhere: it is in the arena, whole
    return tensor_in(whole.storage(), whole.scalar_type(), sizes, whole.strides(), whole.storage_offset() + begin * whole.stride(cut.dim));
  const Strip strip = Strip::of(whole, cut.dim);
  const size_t offset = strip.chunk_at(0, begin);
  const bool is_here = address_of(whole) != nullptr;
  if (is_here && strip.outer == 1 && offset % kLine == 0)
    return tensor_in(whole.storage(), whole.scalar_type(), sizes, whole.strides(), static_cast<int64_t>(offset / whole.itemsize()));
  const at::Tensor copy = new_tensor(whole.scalar_type(), sizes, dense_strides(sizes, whole.strides()));
  if (cut.is_read) read(call.streams.empty() ? nullptr : call.streams[number], whole, cut, begin, end, address_of(copy));
  return copy;
}

Slicing::Stack Slicing::slices(const SplitCall& call, const Stack& stack, int64_t begin, int64_t end) {
  Stack arguments = stack;
  for (size_t i = 0; i < call.way.cuts.size(); ++i) {
    const Cut& cut = call.way.cuts[i];
    const at::Tensor slice = slice_of(call, i, tensor_at(inputs_in(stack), cut.argument, cut.item), begin, end);
    if (cut.item < 0) {
      arguments[cut.argument] = slice;
      continue;
    }
    std::vector<at::Tensor> items = arguments[cut.argument].toTensorVector();
    items[cut.item] = slice;
    arguments[cut.argument] = std::move(items);
  }
  return arguments;
}

// One element of each row, and the target that has become its only one.
Slicing::Stack Slicing::gathered(const SplitCall& call, const Stack& stack) {
  const at::Tensor& scores = stack[0].toTensor();
  const at::Tensor& target = stack[1].toTensor();
  const int64_t rows = scores.size(0), columns = scores.size(1), ignored = stack[4].toInt();
  const size_t itemsize = scores.itemsize(), offset = static_cast<size_t>(scores.storage_offset()) * itemsize;
  const at::Tensor few = new_tensor(scores.scalar_type(), {rows, 1}, {1, 1}), first = new_tensor(at::kLong, {rows}, {1});
  const auto* wanted = reinterpret_cast<const int64_t*>(address_of(target)) + target.storage_offset();
  auto* named = reinterpret_cast<int64_t*>(address_of(first));
  const Block* block = call.streams.empty() ? nullptr : call.streams[0];
  const char* here = address_of(scores);
  uint64_t pages = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const bool is_one = wanted[row] >= 0 && wanted[row] < columns && wanted[row] != ignored;
    named[row] = is_one ? 0 : wanted[row];  // what is none is refused, or ignored, as it would be
    char* to = address_of(few) + static_cast<size_t>(row) * itemsize;
    const size_t from = offset + static_cast<size_t>(row * columns + (is_one ? wanted[row] : 0)) * itemsize;
    if (!is_one)
      std::memset(to, 0, itemsize);
    else if (here != nullptr)
      std::memcpy(to, here + from, itemsize);
    else
      block->tier->get_part(block->extent, block->bytes, from, to, itemsize), ++pages;
  }
  if (pages != 0) engine_.governing([&](Session& session) { session.stats.slice_bytes_in += pages * Tier::kAlignment; });
  Stack arguments = stack;
  arguments[0] = few;
  arguments[1] = first;
  return arguments;
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

void Slicing::run_in_slices(const SplitCall& call, const Kernel& kernel, Stack& stack) try {
  const size_t allocated_before = this_thread().allocated;
  for (size_t i = 0; i < call.way.cuts.size(); ++i) {
    const Cut& cut = call.way.cuts[i];
    const Block* block = call.streams[i];
    if (block != nullptr && !is_behind(tensor_at(inputs_in(stack), cut.argument, cut.item).storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks(), *block))
      return kernel(stack);  // not what was looked at: it says itself what it lacks
  }
  if (call.way.gathers) {
    stack = gathered(call, stack);
    kernel(stack);
    this_thread().allocated = allocated_before + call.allocated_bytes;
    return count(call, 1, 0);
  }
  const Plan plan = this->plan(call, inputs_in(stack));
  if (plan.steps != 0 && runs_by(plan, call, kernel, stack)) return;
  engine_.governing([&](Session& session) { session.ops.use_whole(this_thread(), *call.op, inputs_in(stack), call.streams); });
  kernel(stack);
} catch (const TierFailure& error) {
  fail(error.what());
}

bool Slicing::runs_by(const Plan& plan, const SplitCall& call, const Kernel& kernel, Stack& stack) try {
  const size_t allocated_before = this_thread().allocated;
  std::vector<Output> outputs;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const at::Tensor tensor = make_output(call.outputs[i], plan.away[i]);
    Block* away = nullptr;
    if (plan.away[i]) engine_.governing([&](Session& session) { away = session.lasting.books.find(*tensor.storage().unsafeGetStorageImpl()); });
    outputs.emplace_back(tensor, call.way.outputs[i], away);
  }
  const IsSlicing slicing;
  uint64_t slices_run = 0, written = 0;
  for (int64_t begin = 0; begin < call.way.length; begin += plan.steps, ++slices_run) {
    const int64_t end = std::min(begin + plan.steps, call.way.length);
    Stack arguments = slices(call, stack, begin, end);
    kernel(arguments);
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i].take(arguments[i].toTensor(), begin, end);
  }
  stack.clear();
  for (Output& output : outputs) {
    output.finish();
    written += output.written();
    stack.emplace_back(output.tensor());
  }
  while (stack.size() < call.op->returns) stack.emplace_back(at::Tensor());  // that were not asked for
  this_thread().allocated = allocated_before + call.allocated_bytes;
  count(call, slices_run, written);
  return true;
} catch (const std::exception&) {
  if (this_thread().failure.kind != Failure::Kind::kBudget) throw;
  Refusals::forget(this_thread());
  return false;
}

}  // namespace memfit
