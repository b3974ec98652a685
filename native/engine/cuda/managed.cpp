#include "managed.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "../ranges.h"
#include "cuda_device.h"
#include "events.h"

namespace memfit::cuda {

namespace {

constexpr size_t kChunk = size_t{2} << 20;  // the driver takes a GPU's memory for managed pages by so many bytes

// Where pages are to be, as this version of the runtime wants it said.
#if CUDART_VERSION >= 13000
using Place = cudaMemLocation;
Place at_host() { return {cudaMemLocationTypeHost, 0}; }
Place at_device(int device) { return {cudaMemLocationTypeDevice, device}; }
cudaError_t prefetch(const void* memory, size_t bytes, Place place, cudaStream_t stream) {
  return cudaMemPrefetchAsync(memory, bytes, place, 0, stream);
}
#else
using Place = int;
Place at_host() { return cudaCpuDeviceId; }
Place at_device(int device) { return device; }
cudaError_t prefetch(const void* memory, size_t bytes, Place place, cudaStream_t stream) {
  return cudaMemPrefetchAsync(memory, bytes, place, stream);
}
#endif

bool has(int device, cudaDeviceAttr attribute) {
  int value = 0;
  const bool is_known = cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess;
  if (!is_known) (void)cudaGetLastError();
  return is_known && value != 0;
}

}  // namespace

class ManagedMemory::Lent final : public HostMemory {
 public:
  Lent(std::shared_ptr<ManagedMemory> of, Stretch stretch) : of_(std::move(of)), stretch_(stretch) {}
  ~Lent() override { of_->give_back(stretch_); }

  char* address() const override { return stretch_.memory; }
  size_t come(size_t most) override {
    there_ = std::min(most, stretch_.bytes) / kChunk * kChunk;
    move(there_, at_device(of_->device_.index()));
    return there_;
  }
  void go_home() override { move(std::exchange(there_, 0), at_host()); }

 private:
  void move(size_t bytes, Place place) {
    if (bytes == 0) return;
    OnDevice guard(of_->device_.index());
    of_->device_.compute_moves_on();
    check(prefetch(stretch_.memory, bytes, place, of_->device_.compute()), "moving managed memory");
  }

  std::shared_ptr<ManagedMemory> of_;
  Stretch stretch_;
  size_t there_ = 0;
};

ManagedMemory::~ManagedMemory() { free_idle(); }

std::unique_ptr<HostMemory> ManagedMemory::take(size_t bytes) {
  OnDevice guard(device_.index());
  // Without the second a GPU takes all managed pages as a kernel begins, whatever they were told.
  if (!has(device_.index(), cudaDevAttrManagedMemory) || !has(device_.index(), cudaDevAttrConcurrentManagedAccess)) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  return std::make_unique<Lent>(shared_from_this(), find(round_up(bytes, kChunk)));
}

// The smallest that is long enough. (Those that are too short make way for a longer one.)
ManagedMemory::Stretch ManagedMemory::find(size_t bytes) {
  auto best = idle_.end();
  for (auto each = idle_.begin(); each != idle_.end(); ++each)
    if (each->bytes >= bytes && (best == idle_.end() || each->bytes < best->bytes)) best = each;
  if (best == idle_.end()) {
    free_idle();
    return make(bytes);
  }
  const Stretch found = *best;
  idle_.erase(best);
  return found;
}

ManagedMemory::Stretch ManagedMemory::make(size_t bytes) {
  void* memory = nullptr;
  check(cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal), "asking for managed memory");
  try {
    check(cudaMemAdvise(memory, bytes, cudaMemAdviseSetPreferredLocation, at_host()), "keeping managed memory at the host");
    check(cudaMemAdvise(memory, bytes, cudaMemAdviseSetAccessedBy, at_device(device_.index())), "opening managed memory to the GPU");
    // Pages that are nowhere yet would be made where they are first touched.
    check(prefetch(memory, bytes, at_host(), device_.compute()), "making managed memory at the host");
  } catch (...) {
    (void)cudaFree(memory);
    throw;
  }
  return {static_cast<char*>(memory), bytes};
}

void ManagedMemory::give_back(Stretch stretch) {
  std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(stretch);
}

// (That waits for the GPU.)
void ManagedMemory::free_idle() {
  for (const Stretch& stretch : std::exchange(idle_, {})) (void)cudaFree(stretch.memory);
}

}  // namespace memfit::cuda
