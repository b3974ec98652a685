#include "slices.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine.h"
#include "refusals.h"

namespace memfit {

void Slices::fail(const std::string& why) {
  Failure failure;
  engine_.governing([&](Session& session) {
    session.refusals.refuse_by_tier(this_thread(), why);
    failure = this_thread().failure;
  });
  if (failure.kind == Failure::Kind::kNone) failure = Refusals::of_tier(this_thread(), why);  // its session is over
  raise(failure);
}

void Slices::read(const Block* block, const at::Tensor& whole, const Cut& cut, int64_t begin, int64_t end, char* to) {
  const Strip strip = Strip::of(whole, cut.dim);
  const char* here = address_if_here(whole);
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

at::Tensor Slices::slice_of(const SplitCall& call, size_t number, const at::Tensor& whole, int64_t begin, int64_t end) {
  const Cut& cut = call.way.cuts[number];
  c10::SmallVector<int64_t, 5> sizes(whole.sizes().begin(), whole.sizes().end());
  sizes[cut.dim] = end - begin;
  if (!whole.is_non_overlapping_and_dense())  // its elements lie anywhere: it is in the arena, whole
    return tensor_in(whole.storage(), whole.scalar_type(), sizes, whole.strides(), whole.storage_offset() + begin * whole.stride(cut.dim));
  const Strip strip = Strip::of(whole, cut.dim);
  const size_t offset = strip.chunk_at(0, begin);
  const bool is_here = address_if_here(whole) != nullptr;
  if (is_here && strip.outer == 1 && offset % kLine == 0)
    return tensor_in(whole.storage(), whole.scalar_type(), sizes, whole.strides(), static_cast<int64_t>(offset / whole.itemsize()));
  const at::Tensor copy = new_tensor(whole.scalar_type(), sizes, dense_strides(sizes, whole.strides()));
  if (cut.is_read && whole.numel() != 0) read(call.streams.empty() ? nullptr : call.streams[number], whole, cut, begin, end, address_of(copy));
  return copy;
}

Stack Slices::cut(const SplitCall& call, const Stack& stack, int64_t begin, int64_t end) {
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

Stack Slices::run(const SplitCall& call, const Kernel& kernel, const Stack& stack, int64_t begin, int64_t end) {
  const Stack given = cut(call, stack, begin, end);
  Stack results = given;
  kernel(results);
  for (const Cut& cut : call.way.cuts) {
    if (!cut.is_written) continue;
    const at::Tensor& whole = tensor_at(inputs_in(stack), cut.argument, cut.item);
    const at::Tensor& slice = tensor_at(inputs_in(given), cut.argument, cut.item);
    if (slice.storage().unsafeGetStorageImpl() == whole.storage().unsafeGetStorageImpl()) continue;
    each_chunk(Strip::of(whole, cut.dim), begin, end,
               [&](size_t to, size_t at, size_t bytes) { std::memcpy(address_of(whole) + to, address_of(slice) + at, bytes); });
  }
  return results;
}

// One element of each row, and the target that has become its only one.
Stack Slices::gathered(const SplitCall& call, const Stack& stack) {
  const at::Tensor& scores = stack[0].toTensor();
  const at::Tensor& target = stack[1].toTensor();
  const int64_t rows = scores.size(0), columns = scores.size(1), ignored = stack[4].toInt();
  const size_t itemsize = scores.itemsize(), offset = static_cast<size_t>(scores.storage_offset()) * itemsize;
  const at::Tensor few = new_tensor(scores.scalar_type(), {rows, 1}, {1, 1}), first = new_tensor(at::kLong, {rows}, {1});
  const auto* wanted = reinterpret_cast<const int64_t*>(address_of(target)) + target.storage_offset();
  auto* named = reinterpret_cast<int64_t*>(address_of(first));
  const Block* block = call.streams.empty() ? nullptr : call.streams[0];
  const char* here = address_if_here(scores);
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

}  // namespace memfit
