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

// The scratch: results, what is being mixed and what that needs, and a lane for the last bytes of either address.
constexpr size_t kLane = sizeof(int64_t), kParts = 3, kTails = 2;
// A part's share of the GPU's memory, and bytes.
constexpr size_t kShare = size_t{64} << 10, kLeastPart = size_t{4} << 10, kLargestPart = size_t{4} << 20;

// Knuth's, for MMIX (The Art of Computer Programming, 3.3.4): its powers modulo 2^64 have the longest period there is.
constexpr int64_t kMultiplier = 6364136223846793005;
// The finalizer of MurmurHash3 (Austin Appleby, public domain), after the place has been mixed into the lane.
constexpr int64_t kPlace = static_cast<int64_t>(0x9E3779B97F4A7C15ull);
constexpr int64_t kFirst = static_cast<int64_t>(0xFF51AFD7ED558CCDull), kSecond = static_cast<int64_t>(0xC4CEB9FE1A85EC53ull);
constexpr int64_t kShift = 33;

size_t part_on(c10::Device device) {
  OnDevice guard(device.index());
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for the GPU's memory");
  return std::clamp(total / kShare / kLane * kLane, kLeastPart, kLargestPart);
}

}  // namespace

Checksums::Checksums(c10::Device device, cudaStream_t stream)
    : device_(device), stream_(stream), part_bytes_(part_on(device)),
      scratch_(static_cast<char*>(adaptor().raw_alloc(kParts * part_bytes_ + kTails * kLane))) {}

// Ops without a session, that nobody sees, in the order of the stream.
struct Checksums::ByTorch {
  explicit ByTorch(const Checksums& sums) : in_order(c10::cuda::getStreamFromExternal(sums.stream_, sums.device_.index())) {}

  c10::cuda::CUDAStreamGuard in_order;
  const at::DisableRecordFunctionGuard unseen;
  const c10::impl::ForceDispatchKeyGuard keys{backend_keys()};
  const WithoutSession without;
};

Checksums::~Checksums() { adaptor().raw_delete(scratch_); }

bool Checksums::are_same(const void* one, const void* other, size_t bytes) {
  const ByTorch by_torch(*this);
  const size_t lanes = absorb({one, other}, bytes, at::kLong, [&](at::Tensor differences, const std::vector<at::Tensor>& words) {
    at::Tensor difference = tensor(part(1), words[0].numel(), at::kLong);
    differences.bitwise_or_(at::bitwise_xor_out(difference, words[0], words[1]));
  });
  return joined(lanes, [](at::Tensor some, const at::Tensor& others) { some.bitwise_or_(others); }) == 0;
}

// Words are of 32 bits, and lanes of 64: so no bit of a word is lost in its lane, whatever power it is multiplied by. What is
// not linear comes at the end: it takes a dozen kernels.
uint64_t Checksums::of(const void* address, size_t bytes) {
  const ByTorch by_torch(*this);
  const size_t count = absorb({address}, bytes, at::kInt, [](at::Tensor lanes, const std::vector<at::Tensor>& words) { at::add_out(lanes, words[0], lanes, kMultiplier); });
  at::Tensor lanes = tensor(part(0), count, at::kLong), mixed = tensor(part(1), count, at::kLong), shifted = tensor(part(2), count, at::kLong);
  const auto fold = [&] { lanes.bitwise_xor_(at::bitwise_right_shift_out(shifted, lanes, kShift)); };
  lanes.bitwise_xor_(at::arange_out(mixed, static_cast<int64_t>(count)).mul_(kPlace));
  fold();
  lanes.mul_(kFirst);
  fold();
  lanes.mul_(kSecond);
  fold();
  return joined(count, [](at::Tensor some, const at::Tensor& others) { some.add_(others); });
}

// As many words at a time as there are lanes, the last bytes as one of their own. Returns the number of lanes in use.
size_t Checksums::absorb(const std::vector<const void*>& addresses, size_t bytes, at::ScalarType type, const Absorb& absorb) {
  check(cudaMemsetAsync(part(0), 0, part_bytes_, stream_), "clearing scratch on the GPU");
  const size_t word = c10::elementSize(type), whole = bytes / word, tail = bytes % word, most = part_bytes_ / kLane;
  const auto take = [&](const std::vector<const char*>& from, size_t count) {
    std::vector<at::Tensor> words;
    for (const char* address : from) words.push_back(tensor(address, count, type));
    absorb(tensor(part(0), count, at::kLong), words);
  };
  std::vector<const char*> from(addresses.size());
  for (size_t first = 0; first < whole; first += most) {
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<const char*>(addresses[i]) + first * word;
    take(from, std::min(most, whole - first));
  }
  if (tail != 0) {
    check(cudaMemsetAsync(part(kParts), 0, kTails * kLane, stream_), "clearing scratch on the GPU");
    for (size_t i = 0; i < from.size(); ++i) {
      from[i] = part(kParts) + i * kLane;
      check(cudaMemcpyAsync(part(kParts) + i * kLane, static_cast<const char*>(addresses[i]) + whole * word, tail, cudaMemcpyDeviceToDevice, stream_), "copying on the GPU");
    }
    take(from, 1);
  }
  return std::min(most, std::max(whole, size_t{1}));
}

// By halves, in place: a kernel that reduces may ask for memory.
uint64_t Checksums::joined(size_t lanes, Join join) {
  while (lanes > 1) {
    const size_t half = (lanes + 1) / 2;
    join(tensor(part(0), lanes - half, at::kLong), tensor(part(0) + half * kLane, lanes - half, at::kLong));
    lanes = half;
  }
  uint64_t found = 0;
  check(cudaMemcpyAsync(&found, part(0), sizeof(found), cudaMemcpyDeviceToHost, stream_), "copying from the GPU");
  check(cudaStreamSynchronize(stream_), "waiting for a comparison");
  return found;
}

at::Tensor Checksums::tensor(const void* address, size_t count, at::ScalarType type) const {
  return at::for_blob(const_cast<void*>(address), {static_cast<int64_t>(count)}).options(at::TensorOptions().dtype(type).device(device_)).target_device(device_).make_tensor();
}

}  // namespace memfit::cuda
