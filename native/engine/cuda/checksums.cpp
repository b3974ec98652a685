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

// The scratch: results, what is being mixed and what that needs, and a lane for the last bytes.
constexpr size_t kLane = sizeof(int64_t), kParts = 3;
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
      scratch_(static_cast<char*>(adaptor().raw_alloc(kParts * part_bytes_ + kLane))) {}

// Ops without a session, that nobody sees, in the order of the stream.
struct Checksums::ByTorch {
  explicit ByTorch(const Checksums& sums) : in_order(c10::cuda::getStreamFromExternal(sums.stream_, sums.device_.index())) {}

  c10::cuda::CUDAStreamGuard in_order;
  const at::DisableRecordFunctionGuard unseen;
  const c10::impl::ForceDispatchKeyGuard keys{backend_keys()};
  const WithoutSession without;
};

Checksums::~Checksums() { adaptor().raw_delete(scratch_); }

bool Checksums::are_same(void* spent, const void* other, size_t bytes) {
  const ByTorch by_torch(*this);
  char* own = static_cast<char*>(spent);
  const size_t words = bytes / kLane, tail = bytes % kLane;
  const auto add = [this](char* lanes, const void* others, size_t count) { tensor(lanes, count, at::kLong).bitwise_xor_(tensor(others, count, at::kLong)); };
  const Join either = [](at::Tensor some, const at::Tensor& others) { some.bitwise_or_(others); };
  put_in_lane(part(0), own + words * kLane, tail);
  put_in_lane(part(1), static_cast<const char*>(other) + words * kLane, tail);
  add(part(0), part(1), 1);
  if (words == 0) return read(part(0)) == 0;
  add(own, other, words);
  join(own, words, either);
  either(tensor(own, 1, at::kLong), tensor(part(0), 1, at::kLong));
  return read(own) == 0;
}

// Words are of 32 bits, and lanes of 64: so no bit of a word is lost in its lane, whatever power it is multiplied by. What is
// not linear comes at the end: it takes a dozen kernels.
uint64_t Checksums::of(const void* address, size_t bytes) {
  const ByTorch by_torch(*this);
  const size_t count = absorb(address, bytes);
  at::Tensor lanes = tensor(part(0), count, at::kLong), mixed = tensor(part(1), count, at::kLong), shifted = tensor(part(2), count, at::kLong);
  const auto fold = [&] { lanes.bitwise_xor_(at::bitwise_right_shift_out(shifted, lanes, kShift)); };
  lanes.bitwise_xor_(at::arange_out(mixed, static_cast<int64_t>(count)).mul_(kPlace));
  fold();
  lanes.mul_(kFirst);
  fold();
  lanes.mul_(kSecond);
  fold();
  join(part(0), count, [](at::Tensor some, const at::Tensor& others) { some.add_(others); });
  return read(part(0));
}

// As many words at a time as there are lanes, the last bytes as one of their own. Returns the number of lanes in use.
size_t Checksums::absorb(const void* address, size_t bytes) {
  check(cudaMemsetAsync(part(0), 0, part_bytes_, stream_), "clearing scratch on the GPU");
  const size_t word = c10::elementSize(at::kInt), whole = bytes / word, tail = bytes % word, most = part_bytes_ / kLane;
  const char* words = static_cast<const char*>(address);
  const auto take = [this](const char* from, size_t count) {
    at::Tensor lanes = tensor(part(0), count, at::kLong);
    at::add_out(lanes, tensor(from, count, at::kInt), lanes, kMultiplier);
  };
  for (size_t first = 0; first < whole; first += most) take(words + first * word, std::min(most, whole - first));
  if (tail != 0) {
    put_in_lane(part(kParts), words + whole * word, tail);
    take(part(kParts), 1);
  }
  return std::min(most, std::max(whole, size_t{1}));
}

// The rest of it is zeros.
void Checksums::put_in_lane(char* lane, const void* bytes, size_t count) const {
  check(cudaMemsetAsync(lane, 0, kLane, stream_), "clearing scratch on the GPU");
  if (count != 0) check(cudaMemcpyAsync(lane, bytes, count, cudaMemcpyDeviceToDevice, stream_), "copying on the GPU");
}

// By halves, in place, into the first: a kernel that reduces may ask for memory.
void Checksums::join(char* lanes, size_t count, Join join) const {
  while (count > 1) {
    const size_t half = (count + 1) / 2;
    join(tensor(lanes, count - half, at::kLong), tensor(lanes + half * kLane, count - half, at::kLong));
    count = half;
  }
}

uint64_t Checksums::read(const char* lane) const {
  uint64_t found = 0;
  check(cudaMemcpyAsync(&found, lane, sizeof(found), cudaMemcpyDeviceToHost, stream_), "copying from the GPU");
  check(cudaStreamSynchronize(stream_), "waiting for a comparison");
  return found;
}

at::Tensor Checksums::tensor(const void* address, size_t count, at::ScalarType type) const {
  return at::for_blob(const_cast<void*>(address), {static_cast<int64_t>(count)}).options(at::TensorOptions().dtype(type).device(device_)).target_device(device_).make_tensor();
}

}  // namespace memfit::cuda
