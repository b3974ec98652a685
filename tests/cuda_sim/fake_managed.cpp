// Managed memory of the simulated CUDA runtime, and the host's memory that kernels reach. Pages that are on the device count
// as its own. They come there when a kernel touches memory that was neither advised to stay with the host nor opened, or of
// which nothing has been anywhere yet.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "fake_memory.h"
#include "fake_streams.h"

extern "C" int simulated_has_values();

namespace simulated {

namespace {

bool refuses_managed = false;
int64_t prefetched = 0;  // bytes, to the device

// The first and the last page, and one more, of a part of it.
std::pair<size_t, size_t> pages_of(RangeAt range, const void* memory, size_t bytes) {
  const auto offset = static_cast<size_t>(static_cast<const char*>(memory) - range->first);
  return {offset / kPage, (offset + bytes + kPage - 1) / kPage};
}

void put(Range& range, std::pair<size_t, size_t> pages, int device) {
  for (size_t page = pages.first; page < std::min(pages.second, range.there.size()); ++page) {
    if (range.there[page] == (device >= 0)) continue;
    if (device < 0)
      unaccount(kPage, range.device);
    else if (!account(kPage, range.device))
      die("there is no room on the device for", "managed pages");
    range.there[page] = device >= 0;
  }
}

}  // namespace

void touched(RangeAt range, int device) {
  Range& managed = range->second;
  if (!managed.is_anywhere || (!managed.stays_with_host && !managed.is_open)) put(managed, {0, managed.there.size()}, device);
}

size_t pages_on_device(const Range& range) { return static_cast<size_t>(std::count(range.there.begin(), range.there.end(), true)); }

}  // namespace simulated

using namespace simulated;

extern "C" {

void simulated_refuse_managed() { refuses_managed = true; }
int64_t simulated_prefetched() { return prefetched; }
int64_t simulated_managed() {
  std::lock_guard<std::mutex> lock(memory_mutex);
  int64_t bytes = 0;
  for (const auto& [address, range] : ranges)
    if (range.kind == Kind::kManaged) bytes += static_cast<int64_t>(range.bytes);
  return bytes;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const bool is_managed = attribute == cudaDevAttrManagedMemory || attribute == cudaDevAttrConcurrentManagedAccess;
  return *value = is_managed && !refuses_managed, cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void** on_device, void* memory, unsigned) {
  if (entered("cudaHostGetDevicePointer") != cudaSuccess) return cudaErrorInitializationError;
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto range = range_of(memory);
  if (range == ranges.end() || range->second.kind != Kind::kLocked) return fail(cudaErrorInvalidValue);
  return *on_device = memory, cudaSuccess;
}

cudaError_t cudaMallocManaged(void** memory, size_t bytes, unsigned) {
  if (entered("cudaMallocManaged") != cudaSuccess) return cudaErrorInitializationError;
  if (refuses_managed) return fail(cudaErrorNotSupported);
  std::lock_guard<std::mutex> lock(memory_mutex);
  bytes = (bytes + kPage - 1) / kPage * kPage;
  char* made = map_memory(bytes, PROT_READ | PROT_WRITE);
  if (simulated_has_values()) std::memset(made, 0xFF, bytes);
  ranges[made] = {.bytes = bytes, .kind = Kind::kManaged, .device = current_device(), .there = std::vector<bool>(bytes / kPage)};
  *memory = made;
  return cudaSuccess;
}

// What is advised of a part is taken for advice on the whole.
cudaError_t cudaMemAdvise(const void* memory, size_t, cudaMemoryAdvise advice, cudaMemLocation place) {
  if (entered("cudaMemAdvise") != cudaSuccess) return cudaErrorInitializationError;
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto range = range_of(memory);
  if (range == ranges.end() || range->second.kind != Kind::kManaged) return fail(cudaErrorInvalidValue);
  if (advice == cudaMemAdviseSetPreferredLocation) range->second.stays_with_host = place.type == cudaMemLocationTypeHost;
  if (advice == cudaMemAdviseSetAccessedBy) range->second.is_open = place.type == cudaMemLocationTypeDevice;
  return cudaSuccess;
}

cudaError_t cudaMemPrefetchAsync(const void* memory, size_t bytes, cudaMemLocation place, unsigned, cudaStream_t stream) {
  if (entered("cudaMemPrefetchAsync") != cudaSuccess) return cudaErrorInitializationError;
  {
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto range = range_of(memory);
    if (range == ranges.end() || range->second.kind != Kind::kManaged || bytes == 0) return fail(cudaErrorInvalidValue);
    const auto* end = range->first + range->second.bytes;
    if (static_cast<const char*>(memory) + bytes > end) return fail(cudaErrorInvalidValue);
    range->second.is_anywhere = true;
  }
  const int device = place.type == cudaMemLocationTypeDevice ? place.id : -1;
  auto work = [memory, bytes, device] {
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto range = range_of(memory);
    if (range == ranges.end()) die("managed memory was freed before it was", "prefetched");
    put(range->second, pages_of(range, memory, bytes), device);
    if (device >= 0) prefetched += static_cast<int64_t>(bytes);
  };
  give(stream, work, true);
  return cudaSuccess;
}

}  // extern "C"
