// Memory of the simulated CUDA device: host memory in mappings of its own, so that what is freed or was never opened to
// the device cannot be touched. New memory is filled with 0xFF, which is NaN as a float.
#include <cuda.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "fake_memory.h"
#include "fake_streams.h"

using namespace simulated;

namespace simulated {

std::mutex memory_mutex;
std::map<char*, Range> ranges;

}  // namespace simulated

namespace {

struct Handle {
  size_t bytes;
  int device;
  bool mapped = false, released = false;
  std::set<int> open_to = {};  // devices
};

std::map<char*, Handle*> mapped;  // device memory behind reserved addresses
size_t in_use = 0, peak = 0;
int64_t fail_lock_beyond = -1;  // bytes that may be page-locked; -1: any number
int64_t locked_bytes = 0;
std::atomic<int64_t> bytes_to_host{0};
std::atomic<bool> refuses_registering{false};  // of memory that the driver has not allocated
std::atomic<double> lock_bytes_per_s{0};  // 0: locking takes what it takes, as the rest here
std::atomic<double> link_bytes_per_s{0};  // of copies from and to the host
std::atomic<double> memory_bytes_per_s{0};  // of the device's own, read or written; on the virtual clock
std::atomic<int64_t> link_latency_ns{0};
std::atomic<double> link_slowing{0};  // of a copy while the other way is busy; on the virtual clock
std::atomic<double> pageable_bytes_per_s{0};  // of the host that reads what was copied to ordinary memory; on the virtual clock
int64_t locked_until_ns = 0;  // one piece after another, by a thread beside the program; on the virtual clock
std::atomic<bool> has_values{true};  // otherwise no byte is ever moved, and nothing is known of any
Way ways[2];  // of the link
constexpr size_t kShort = 64 << 10;  // bytes of a copy

int64_t pieces_left = -1;  // that the driver gives to be mapped, until it has no more memory; -1: any number
std::set<int> used = {0};  // devices: those that had memory

size_t capacity() {
  static size_t bytes = [] {
    const char* text = std::getenv("SIMULATED_GPU_BYTES");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : size_t{1} << 30;
  }();
  return bytes;
}

}  // namespace

namespace simulated {

// (Of the first device. The others have any number of bytes.)
bool account(size_t bytes, int device) {
  if (device != 0) return true;
  if (in_use + bytes > capacity()) return false;
  in_use += bytes;
  peak = std::max(peak, in_use);
  return true;
}

// The range that `address` is in; ranges.end() if it is ordinary memory.
RangeAt range_of(const void* address) {
  auto* at = static_cast<char*>(const_cast<void*>(address));
  auto next = ranges.upper_bound(at);
  if (next == ranges.begin()) return ranges.end();
  auto range = std::prev(next);
  return at < range->first + range->second.bytes ? range : ranges.end();
}

char* map_memory(size_t bytes, int protection) {
  void* memory = mmap(nullptr, bytes + kPage, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) die("the host has no more", "memory");
  auto address = (reinterpret_cast<uintptr_t>(memory) + kPage - 1) / kPage * kPage;
  return reinterpret_cast<char*>(address);
}

void unaccount(size_t bytes, int device) {
  if (device == 0) in_use -= bytes;
}

}  // namespace simulated

namespace {

bool is_hosts(Kind kind) { return kind == Kind::kLocked || kind == Kind::kManaged; }

Handle* behind(const void* address) {
  auto* at = static_cast<char*>(const_cast<void*>(address));
  auto next = mapped.upper_bound(at);
  if (next == mapped.begin()) return nullptr;
  auto page = std::prev(next);
  return at < page->first + page->second->bytes ? page->second : nullptr;
}

// -1: the host's.
int device_of(const void* address) {
  if (const Handle* handle = behind(address)) return handle->device;
  auto range = range_of(address);
  return range == ranges.end() || is_hosts(range->second.kind) ? -1 : range->second.device;
}

// Mapped memory is for the devices only that it was opened to. (Every page of a stretch is opened alike.)
bool may_reach(int device, const void* address) {
  const Handle* handle = behind(address);
  return device < 0 || handle == nullptr || handle->open_to.count(device) != 0;
}

// The driver knows each piece of locked memory by itself: a copy must not go from one into the next.
bool is_whole(RangeAt range, const void* address, size_t bytes) {
  return range == ranges.end() || static_cast<const char*>(address) + bytes <= range->first + range->second.bytes;
}

bool is_from_malloc(Kind kind) { return kind == Kind::kDevice || kind == Kind::kManaged; }
bool is_locked(RangeAt range) { return range != ranges.end() && range->second.kind == Kind::kLocked; }

}  // namespace

extern "C" {

int64_t simulated_in_use() { return static_cast<int64_t>(in_use); }
int64_t simulated_peak() { return static_cast<int64_t>(peak); }
int64_t simulated_locked() { return locked_bytes; }
int64_t simulated_to_host() { return bytes_to_host; }
int64_t simulated_pieces() { return static_cast<int64_t>(mapped.size()); }
void simulated_reset_peak() { peak = in_use; }
void simulated_link(double bytes_per_s, int64_t latency_ns) {
  link_bytes_per_s = bytes_per_s;
  link_latency_ns = latency_ns;
}
void simulated_link_both_ways(double slowing) { link_slowing = slowing; }
void simulated_pageable(double bytes_per_s) { pageable_bytes_per_s = bytes_per_s; }
void simulated_memory(double bytes_per_s) { memory_bytes_per_s = bytes_per_s; }
void simulated_locking(double bytes_per_s) { lock_bytes_per_s = bytes_per_s; }
void simulated_refuse_registering() { refuses_registering = true; }
void simulated_forget_values() { has_values = false; }
int simulated_has_values() { return has_values; }
void simulated_pieces_left(int64_t pieces) { pieces_left = pieces; }
void simulated_lock_limit(int64_t bytes) { fail_lock_beyond = bytes; }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (entered("cudaMalloc") != cudaSuccess) return cudaErrorInitializationError;
  std::lock_guard<std::mutex> lock(memory_mutex);
  bytes = (bytes + 4095) / 4096 * 4096;
  const int device = current_device();
  used.insert(device);
  if (!account(bytes, device)) return fail(cudaErrorMemoryAllocation);
  char* made = map_memory(bytes, PROT_READ | PROT_WRITE);
  if (has_values) std::memset(made, 0xFF, bytes);
  ranges[made] = {bytes, Kind::kDevice, device};
  *memory = made;
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  if (entered("cudaFree") != cudaSuccess) return cudaErrorInitializationError;
  wait_for_device();
  if (memory == nullptr) return cudaSuccess;
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto range = ranges.find(static_cast<char*>(memory));
  if (range == ranges.end() || !is_from_malloc(range->second.kind)) return fail(cudaErrorInvalidValue);
  unaccount(range->second.kind == Kind::kManaged ? pages_on_device(range->second) * kPage : range->second.bytes, range->second.device);
  // The addresses stay reserved, and nobody may touch them.
  mmap(memory, range->second.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  ranges.erase(range);
  return cudaSuccess;
}

static cudaError_t lock_memory(void* memory, size_t bytes) {
  const double seconds = lock_bytes_per_s > 0 ? static_cast<double>(bytes) / lock_bytes_per_s : 0;
  const bool is_modelled = is_virtual();
  if (!is_modelled && seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  std::lock_guard<std::mutex> lock(memory_mutex);
  if (fail_lock_beyond >= 0 && locked_bytes + static_cast<int64_t>(bytes) > fail_lock_beyond)
    return fail(cudaErrorMemoryAllocation);
  if (range_of(memory) != ranges.end()) return fail(cudaErrorHostMemoryAlreadyRegistered);
  if (is_modelled) locked_until_ns = std::max(locked_until_ns, host_now()) + static_cast<int64_t>(1e9 * seconds);
  ranges[static_cast<char*>(memory)] = {.bytes = bytes, .kind = Kind::kLocked, .ready_ns = is_modelled ? locked_until_ns : 0};
  locked_bytes += static_cast<int64_t>(bytes);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  if (entered("cudaHostRegister") != cudaSuccess) return cudaErrorInitializationError;
  return refuses_registering ? fail(cudaErrorNotSupported) : lock_memory(memory, bytes);
}
static cudaError_t unlock_memory(void* memory) {
  wait_for_device();
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto range = ranges.find(static_cast<char*>(memory));
  if (!is_locked(range)) return fail(cudaErrorHostMemoryNotRegistered);
  locked_bytes -= static_cast<int64_t>(range->second.bytes);
  ranges.erase(range);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  if (entered("cudaHostUnregister") != cudaSuccess) return cudaErrorInitializationError;
  return unlock_memory(memory);
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  if (entered("cudaHostAlloc") != cudaSuccess) return cudaErrorInitializationError;
  *memory = map_memory(bytes, PROT_READ | PROT_WRITE);
  const cudaError_t error = lock_memory(*memory, bytes);
  host_waits_until(locked_until_ns);
  return error;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }
cudaError_t cudaFreeHost(void* memory) { return memory == nullptr ? cudaSuccess : unlock_memory(memory); }

// Pages are made when they are touched, if ever: most of a locked piece is not.
int madvise(void* address, size_t bytes, int advice) {
  if (advice == MADV_POPULATE_WRITE || advice == MADV_HUGEPAGE) return 0;
  return static_cast<int>(syscall(SYS_madvise, address, bytes, advice));
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (entered("cudaMemGetInfo") != cudaSuccess) return cudaErrorInitializationError;
  std::lock_guard<std::mutex> lock(memory_mutex);
  *total = capacity();
  *free = capacity() - in_use;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  if (entered("cudaPointerGetAttributes") != cudaSuccess) return cudaErrorInitializationError;
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto range = range_of(pointer);
  *attributes = {};
  attributes->device = -1;
  if (range == ranges.end()) return attributes->type = cudaMemoryTypeUnregistered, cudaSuccess;
  const bool is_host = range->second.kind == Kind::kLocked;
  const bool is_managed = range->second.kind == Kind::kManaged;
  attributes->type = is_host ? cudaMemoryTypeHost : is_managed ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
  attributes->device = is_host ? 0 : device_of(pointer);
  attributes->devicePointer = attributes->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}

namespace {

// What a copy takes: at its rate, and a while until it begins.
int64_t copy_ns(size_t bytes, double bytes_per_s, int64_t latency_ns) {
  return bytes_per_s > 0 ? latency_ns + static_cast<int64_t>(1e9 * static_cast<double>(bytes) / bytes_per_s) : 0;
}

std::function<void()> copying(void* to, const void* from, size_t bytes, int64_t real_ns) {
  return [=] {
    std::memcpy(to, from, bytes);
    if (real_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(real_ns));
  };
}

std::function<void()> copying_staged(void* to, const void* from, size_t bytes) {
  const auto* begin = static_cast<const char*>(from);
  return [to, staged = std::vector<char>(begin, begin + bytes)] { std::memcpy(to, staged.data(), staged.size()); };
}

// Ordinary memory is read before the call returns, and written before it returns.
cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  bool from_ordinary, to_ordinary, from_host, to_host;
  int64_t ready_ns = 0;
  {
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto source = range_of(from), target = range_of(to);
    for (RangeAt range : {source, target})
      if (range != ranges.end()) ready_ns = std::max(ready_ns, range->second.ready_ns);
    if (!is_whole(source, from, bytes) || !is_whole(target, to, bytes)) return fail(cudaErrorInvalidValue);
    from_ordinary = source == ranges.end();
    to_ordinary = target == ranges.end();
    from_host = from_ordinary || is_hosts(source->second.kind);
    to_host = to_ordinary || is_hosts(target->second.kind);
  }
  auto *low = static_cast<const char*>(from), *high = static_cast<const char*>(to);
  if (low < high + bytes && high < low + bytes) die("a copy overlaps", "itself");
  const bool over_link = from_host || to_host, is_modelled = is_virtual();
  const int64_t ns = over_link ? copy_ns(bytes, link_bytes_per_s, link_latency_ns) : copy_ns(2 * bytes, memory_bytes_per_s, 0);
  std::function<void()> work;
  if (has_values && from_ordinary)
    work = copying_staged(to, from, bytes);
  else if (has_values)
    work = copying(to, from, bytes, over_link && !to_ordinary && !is_modelled ? ns : 0);
  host_waits_until(ready_ns);
  Turn turn{.is_short = bytes <= kShort, .slowing = link_slowing};
  if (over_link) turn.way = &ways[from_host], turn.other = &ways[!from_host];
  give(stream, std::move(work), true, ns, turn);
  if (to_host && !from_host) bytes_to_host += static_cast<int64_t>(bytes);
  if (to_ordinary) wait_for_stream(stream);
  if (to_ordinary && bytes > kShort) host_takes(copy_ns(bytes, pageable_bytes_per_s, 0));
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (entered("cudaMemcpyAsync") != cudaSuccess) return cudaErrorInitializationError;
  {
    std::lock_guard<std::mutex> lock(memory_mutex);
    if (!may_reach(device_of(from), to) || !may_reach(device_of(to), from)) return fail(cudaErrorInvalidValue);
  }
  return copy(to, from, bytes, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  wait_for_stream(nullptr);
  return error;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  if (entered("cudaMemcpyPeerAsync") != cudaSuccess) return cudaErrorInitializationError;
  return copy(to, from, bytes, stream);
}
int simulated_is_used(int device) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  return used.count(device) != 0;
}
// Whether a kernel of `device` may touch the address: none may touch the host's ordinary memory.
int simulated_may_reach(int device, const void* address) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto range = range_of(address);
  if (range == ranges.end()) return false;
  if (range->second.kind == Kind::kManaged) touched(range, device);
  return may_reach(device, address);
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  if (entered("cudaMemsetAsync") != cudaSuccess) return cudaErrorInitializationError;
  std::function<void()> work;
  if (has_values) work = [memory, value, bytes] { std::memset(memory, value, bytes); };
  give(stream, std::move(work), true, copy_ns(bytes, memory_bytes_per_s, 0));
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) { return cudaMemsetAsync(memory, value, bytes, nullptr); }

}  // extern "C"

// The driver's part. Its functions are not exported: the runtime hands out their addresses.
namespace simulated {

CUresult granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  return *bytes = kPage, CUDA_SUCCESS;
}

CUresult address_reserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  if (bytes % kPage != 0) return CUDA_ERROR_INVALID_VALUE;
  char* made = map_memory(bytes, PROT_NONE);
  std::lock_guard<std::mutex> lock(memory_mutex);
  ranges[made] = {bytes, Kind::kReserved};
  *address = reinterpret_cast<CUdeviceptr>(made);
  return CUDA_SUCCESS;
}

CUresult address_free(CUdeviceptr address, size_t bytes) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto range = ranges.find(reinterpret_cast<char*>(address));
  if (range == ranges.end() || range->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  auto first = mapped.lower_bound(range->first);
  if (first != mapped.end() && first->first < range->first + bytes) die("addresses were freed with memory", "behind them");
  munmap(range->first, bytes);
  ranges.erase(range);
  return CUDA_SUCCESS;
}

CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* prop, unsigned long long) {
  if (entered("cuMemCreate") != cudaSuccess) return CUDA_ERROR_NOT_INITIALIZED;
  std::lock_guard<std::mutex> lock(memory_mutex);
  if (bytes % kPage != 0) return CUDA_ERROR_INVALID_VALUE;
  if (pieces_left == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (pieces_left > 0) --pieces_left;
  if (!account(bytes, prop->location.id)) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(new Handle{bytes, prop->location.id});
  return CUDA_SUCCESS;
}

void free_if_unused(Handle* handle) {
  if (handle->mapped || !handle->released) return;
  unaccount(handle->bytes, handle->device);
  delete handle;
}

CUresult release(CUmemGenericAllocationHandle handle) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto* known = reinterpret_cast<Handle*>(handle);
  known->released = true;
  free_if_unused(known);
  return CUDA_SUCCESS;
}

CUresult map(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto* at = reinterpret_cast<char*>(address);
  auto range = range_of(at);
  auto* known = reinterpret_cast<Handle*>(handle);
  if (range == ranges.end() || range->second.kind != Kind::kReserved || known->bytes != bytes || mapped.count(at) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  known->mapped = true;
  mapped[at] = known;
  return CUDA_SUCCESS;
}

CUresult unmap(CUdeviceptr address, size_t bytes) {
  if (entered("cuMemUnmap") != cudaSuccess) return CUDA_ERROR_NOT_INITIALIZED;
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto* at = reinterpret_cast<char*>(address);
  auto found = mapped.find(at);
  if (found == mapped.end() || found->second->bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  found->second->mapped = false;
  free_if_unused(found->second);
  mapped.erase(found);
  return CUDA_SUCCESS;
}

// What is behind a page that nobody could touch before is not nought.
CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto* at = reinterpret_cast<char*>(address);
  for (size_t done = 0; done < bytes;) {
    auto page = mapped.find(at + done);
    if (page == mapped.end()) return CUDA_ERROR_INVALID_VALUE;
    Handle& handle = *page->second;
    mprotect(at + done, handle.bytes, PROT_READ | PROT_WRITE);
    if (handle.open_to.empty() && has_values) std::memset(at + done, 0xFF, handle.bytes);
    for (size_t i = 0; i < count; ++i) handle.open_to.insert(access[i].location.id);
    done += handle.bytes;
  }
  return CUDA_SUCCESS;
}

}  // namespace simulated
