#include "checksums.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "../recipe.h"
#include "adaptor.h"
#include "events.h"

namespace memfit::cuda {

namespace {

constexpr size_t kWord = sizeof(int64_t);
// The scratch: results, what is being mixed and what that needs, and a word for the last bytes of either address.
constexpr size_t kParts = 3, kTails = 2;
// A part's share of the GPU's memory, and bytes.
constexpr size_t kShare = size_t{64} << 10, kLeastPart = size_t{4} << 10, kLargestPart = size_t{4} << 20;

// The finalizer of MurmurHash3 (Austin Appleby, public domain), after the place has been mixed into the word.
constexpr int64_t kPlace = static_cast<int64_t>(0x9E3779B97F4A7C15ull);
constexpr int64_t kFirst = static_cast<int64_t>(0xFF51AFD7ED558CCDull), kSecond = static_cast<int64_t>(0xC4CEB9FE1A85EC53ull);
constexpr int64_t kShift = 33;

size_t part_on(c10::Device device) {
  OnDevice guard(device.index());
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for the GPU's memory");
  return std::clamp(total / kShare / kWord * kWord, kLeastPart, kLargestPart);
}

void add(at::Tensor sums, const at::Tensor& others) { sums.add_(others); }
void unite(at::Tensor sums, const at::Tensor& others) { sums.bitwise_or_(others); }

}  // namespace

Checksums::Checksums(c10::Device device, cudaStream_t stream)
    : device_(device), stream_(stream), part_bytes_(part_on(device)),
      scratch_(static_cast<char*>(adaptor().raw_alloc(kParts * part_bytes_ + kTails * kWord))) {}

Checksums::~Checksums() { adaptor().raw_delete(scratch_); }

bool Checksums::are_same(const void* one, const void* other, size_t bytes) {
  const auto difference = [](const std::vector<at::Tensor>& words, size_t, at::Tensor mixed) { at::bitwise_xor_out(mixed, words[0], words[1]); };
  return reduce({one, other}, bytes, difference, unite) == 0;
}

uint64_t Checksums::of(const void* address, size_t bytes) {
  const auto hash = [&](const std::vector<at::Tensor>& words, size_t first, at::Tensor mixed) {
    const auto begin = static_cast<int64_t>(first), count = mixed.numel();
    at::Tensor shifted = this->words(part(2), static_cast<size_t>(count));
    const auto fold = [&] { mixed.bitwise_xor_(at::bitwise_right_shift_out(shifted, mixed, kShift)); };
    at::arange_out(mixed, begin, begin + count, 1).mul_(kPlace).bitwise_xor_(words[0]);
    fold();
    mixed.mul_(kFirst);
    fold();
    mixed.mul_(kSecond);
    fold();
  };
  return reduce({address}, bytes, hash, add);
}

// By halves, in place: a kernel that reduces may ask for memory.
uint64_t Checksums::reduce(const std::vector<const void*>& addresses, size_t bytes, const Mix& mix, Join join) {
  c10::cuda::CUDAStreamGuard in_order(c10::cuda::getStreamFromExternal(stream_, device_.index()));
  const at::DisableRecordFunctionGuard unseen;
  const c10::impl::ForceDispatchKeyGuard keys(backend_keys());
  const WithoutSession by_torch;
  check(cudaMemsetAsync(part(0), 0, part_bytes_, stream_), "clearing scratch on the GPU");
  const size_t whole = bytes / kWord, tail = bytes % kWord, most = part_bytes_ / kWord;
  const auto absorb = [&](const std::vector<const void*>& from, size_t first, size_t count) {
    std::vector<at::Tensor> these;
    for (const void* address : from) these.push_back(words(address, count));
    const at::Tensor mixed = words(part(1), count);
    mix(these, first, mixed);
    join(words(part(0), count), mixed);
  };
  std::vector<const void*> from(addresses.size());
  for (size_t first = 0; first < whole; first += most) {
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<const char*>(addresses[i]) + first * kWord;
    absorb(from, first, std::min(most, whole - first));
  }
  if (tail != 0) {
    check(cudaMemsetAsync(part(kParts), 0, kTails * kWord, stream_), "clearing scratch on the GPU");
    for (size_t i = 0; i < from.size(); ++i) {
      from[i] = part(kParts) + i * kWord;
      check(cudaMemcpyAsync(part(kParts) + i * kWord, static_cast<const char*>(addresses[i]) + whole * kWord, tail, cudaMemcpyDeviceToDevice, stream_), "copying on the GPU");
    }
    absorb(from, whole, 1);
  }
  for (size_t left = std::min(most, std::max(whole, size_t{1})); left > 1;) {
    const size_t half = (left + 1) / 2;
    join(words(part(0), left - half), words(part(0) + half * kWord, left - half));
    left = half;
  }
  uint64_t found = 0;
  check(cudaMemcpyAsync(&found, part(0), kWord, cudaMemcpyDeviceToHost, stream_), "copying from the GPU");
  check(cudaStreamSynchronize(stream_), "waiting for a comparison");
  return found;
}

at::Tensor Checksums::words(const void* address, size_t count) const {
  return at::for_blob(const_cast<void*>(address), {static_cast<int64_t>(count)}).options(at::TensorOptions().dtype(at::kLong).device(device_)).target_device(device_).make_tensor();
}

}  // namespace memfit::cuda
