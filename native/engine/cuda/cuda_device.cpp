#include "cuda_device.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../lanes.h"
#include "../ranges.h"
#include "../tier.h"
#include "adaptor.h"
#include "slab.h"
#include "stream_lane.h"
#include "virtual_memory.h"

namespace memfit {

Device& find_device(c10::Device name) {
  if (name.is_cpu()) return host();
  if (!name.is_cuda()) throw std::invalid_argument("memfit does not support " + name.str() + "; it supports cpu and cuda");
  return cuda::cuda_device(name.has_index() ? name.index() : c10::cuda::current_device());
}

}  // namespace memfit

namespace memfit::cuda {

namespace {

thread_local const cudaStream_t* copy_stream_of_thread = nullptr;

constexpr size_t kMostPieces = 64;  // of an overlapping move; more would take longer than the link and back

// Memory left to the driver, the libraries' own needs and torch's other streams when no budget says otherwise.
constexpr size_t kReserve = size_t{512} << 20;

constexpr size_t kWorthGivingBack = size_t{32} << 20;

struct Kept {
  size_t reserved = 0, allocated = 0;
  size_t idle() const { return reserved - std::min(allocated, reserved); }
};

Kept kept_by_torch(c10::DeviceIndex device) {
  if (!native_allocator().initialized()) return {};
  const auto stats = native_allocator().getDeviceStats(device);
  const auto now = [](const c10::CachingAllocator::StatArray& array) {
    return static_cast<size_t>(array[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current);
  };
  return {now(stats.reserved_bytes), now(stats.allocated_bytes)};
}

constexpr size_t kMostPassed = 16;  // moments that an early copy may go back to, and iterations that the GPU may be behind

constexpr size_t kMostStamps = size_t{1} << 18;  // who records for so long has no use for the times, nor for so many events

}  // namespace

InStream::InStream(cudaStream_t stream) : stream_(stream), before_(copy_stream_of_thread) { copy_stream_of_thread = &stream_; }
InStream::~InStream() { copy_stream_of_thread = before_; }
const cudaStream_t* InStream::current() { return copy_stream_of_thread; }

CudaDevice::CudaDevice(int index)
    : Device(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index))), index_(index) {}

CudaDevice& cuda_device(int index) {
  static auto* devices = new std::array<std::unique_ptr<CudaDevice>, 64>;  // never destroyed: storages may outlive statics
  int count = c10::cuda::device_count();
  if (index < 0 || index >= count)
    throw std::invalid_argument("cuda:" + std::to_string(index) + " does not exist: torch sees " + std::to_string(count) + " GPUs");
  std::unique_ptr<CudaDevice>& device = devices->at(static_cast<size_t>(index));
  if (!device) device = std::make_unique<CudaDevice>(index);
  return *device;
}

cudaStream_t CudaDevice::copy_stream() const {
  const cudaStream_t* named = InStream::current();
  return named != nullptr ? *named : compute_;
}

size_t CudaDevice::limit(size_t budget) const {
  OnDevice guard(index_);
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for the GPU's memory");
  free += kept_by_torch(name().index()).reserved;  // which is adopted, or given back
  size_t most = budget != 0 ? std::min(budget, total) : free - std::min(free, kReserve);
  return most / page_at(most) * page_at(most);
}

std::unique_ptr<AddressSpace> CudaDevice::reserve(size_t addresses, size_t bytes) {
  return cuda::reserve(index_, addresses, bytes, {[this](size_t mapped, size_t most) { make_way(mapped, most); },
                                                  [this] {
                                                    if (exhausted_) exhausted_();
                                                    release_cached();
                                                  }});
}

// While a model moves in, torch keeps what it leaves: together they are to be no more than the arena may become, or than
// there was before. (To give memory back waits for the GPU: a little at a time is not worth that.)
void CudaDevice::make_way(size_t mapped, size_t most) {
  const Kept kept = kept_by_torch(name().index());
  if (mapped + kept.reserved <= std::max(most, before_) || kept.idle() < spared_ + kWorthGivingBack) return;
  release_cached();
  spared_ = kept_by_torch(name().index()).idle();
}

c10::Allocator& CudaDevice::ordinary() { return native_allocator(); }
c10::Allocator& CudaDevice::own() { return adaptor(); }

void CudaDevice::install() {
  OnDevice guard(index_);
  compute_ = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(index_)).stream();
  before_ = kept_by_torch(name().index()).reserved;
  spared_ = 0;
  install_adaptor(*this);
}


// A product, one with a sum, and their gradients, in both precisions: cuBLAS and cublasLt take their workspaces, in this
// thread and in autograd's. An arena has them at its low end then, and not in the midst of a plan's zone. Where torch
// raises (it is told to be deterministic, without `CUBLAS_WORKSPACE_CONFIG`) the program's own products do too.
void CudaDevice::warm_up() try {
  OnDevice guard(index_);
  try {
    checksums_ = std::make_unique<Checksums>(name(), compute_);
  } catch (const std::exception&) {
    // Nothing is compared then.
  }
  at::RecordFunctionGuard unseen(/*is_enabled=*/false);
  c10::impl::ExcludeDispatchKeyGuard by_torch(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  c10::InferenceMode no_inference(/*enabled=*/false);
  c10::AutoGradMode with_grad(true);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    at::Tensor square = at::ones({16, 16}, at::TensorOptions().dtype(type).device(name())).requires_grad_();
    (at::mm(square, square) + at::addmm(square.select(0, 0), square, square)).sum().backward();
  }
} catch (const c10::Error&) {
}

void CudaDevice::cool_down() { checksums_.reset(); }

void CudaDevice::session_ended(bool in_use) {
  stamps_.clear();
  clock_.reset();
  users_.clear();
  passed_.clear();
  ends_.clear();
  compute_moves_on();
  exhausted_ = nullptr;
  managed_.reset();
  if (!in_use) remove_adaptor();
}

// It may be another stream's, which would use it again at once.
void CudaDevice::free_ordinary(void* memory) {
  c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator = native_allocator();
  at::DataPtr pointer(memory, memory, allocator.raw_deleter(), name());
  allocator.recordStream(pointer, c10::cuda::getStreamFromExternal(compute_, name().index()));
}

void CudaDevice::release_cached() { native_allocator().emptyCache(); }

bool CudaDevice::allocated(const void* address) const {
  cudaPointerAttributes attributes;
  bool known = cudaPointerGetAttributes(&attributes, address) == cudaSuccess;
  if (!known) (void)cudaGetLastError();
  return known && attributes.type == cudaMemoryTypeDevice && attributes.device == index_;
}

void CudaDevice::hold_back(cudaStream_t stream, uint64_t& seen) {
  if (!is_together_) return order(events_, compute_, stream);
  if (moment_ == nullptr) moment_ = std::make_unique<Mark>(events_, compute_), ++moments_;
  if (std::exchange(seen, moments_) != moments_) moment_->hold_back(stream);
}

void CudaDevice::copy(void* to, const void* from, size_t bytes) {
  OnDevice guard(index_);
  compute_moves_on();
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, compute_), "copying on the GPU");
}

// Behind the first moment that is later than the last use of the bytes. (The place they go to may be read until a place is
// given up for the last time, and is written to behind that.)
void CudaDevice::copy_early(const Moments& moments, const std::function<void()>& copying) {
  OnDevice guard(index_);
  if (early_ == nullptr) check(cudaStreamCreateWithFlags(&early_, cudaStreamNonBlocking), "making a stream for copies");
  if (std::exchange(epoch_, moments.epoch) != moments.epoch) passed_.clear();
  if (passed_.empty() || passed_.back().at < moments.now) passed_.push_back({moments.now, std::make_unique<Mark>(events_, compute_)});
  if (passed_.size() > kMostPassed) passed_.pop_front();
  const auto later = std::find_if(passed_.begin(), passed_.end(), [&](const Passed& each) { return each.at > moments.idle_since; });
  if (later != passed_.end())
    later->mark->hold_back(early_);
  else
    order(events_, compute_, early_);
  delay(early_);
  const auto join = [this] { order(events_, early_, compute_), compute_moves_on(); };
  try {
    InStream early(early_);
    copying();
  } catch (...) {  // a part of it may be under way all the same
    join();
    throw;
  }
  join();
}

// Piece by piece, each no longer than the two are apart: the runtime's copies must not overlap.
bool CudaDevice::slide(void* to, const void* from, size_t bytes) {
  const bool is_up = std::less<const void*>()(from, to);
  const auto apart = static_cast<size_t>(std::abs(static_cast<const char*>(from) - static_cast<char*>(to)));
  if (bytes / apart > kMostPieces) return false;
  for (size_t done = 0; done < bytes; done += apart) {
    const size_t size = std::min(apart, bytes - done), at = is_up ? bytes - done - size : done;
    copy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, size);
  }
  return true;
}

Checksums& CudaDevice::checksums() {
  if (checksums_ == nullptr) throw TierFailure("no bytes can be compared on the GPU, which had no room for that when the session began");
  compute_moves_on();
  return *checksums_;
}

bool CudaDevice::have_same_bytes(void* spent, const void* other, size_t bytes) { return checksums().are_same(spent, other, bytes); }
uint64_t CudaDevice::fingerprint_of(const void* address, size_t bytes) { return checksums().of(address, bytes); }

void CudaDevice::finish() {
  OnDevice guard(index_);
  check(cudaDeviceSynchronize(), "waiting for the GPU");
}

std::unique_ptr<Medium> CudaDevice::slab(size_t capacity) { return make_slab(*this, capacity); }

std::unique_ptr<Medium> CudaDevice::through_host(std::unique_ptr<Medium> inner) {
  return through_buffer(*this, std::move(inner));
}

std::unique_ptr<HostMemory> CudaDevice::host_memory(size_t bytes) {
  if (managed_ == nullptr) managed_ = std::make_shared<ManagedMemory>(*this);
  return managed_->take(bytes);
}

// A tier whose copies are no streams' needs a thread that waits for the GPU at each copy.
std::unique_ptr<Lane> CudaDevice::make_lane(const Tier& tier) {
  if (tier.is_direct()) return make_stream_lane(*this);
  OnDevice guard(index_);
  cudaStream_t made = nullptr;
  check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "making a stream for copies");
  std::shared_ptr<CUstream_st> stream(made, [](cudaStream_t s) { (void)cudaStreamDestroy(s); });
  auto pushed = [this](Copy& copy) {
    OnDevice on_device(index_);
    copy.marks = std::make_shared<Mark>(events_, compute_);
  };
  auto perform = [this, stream](Copy& copy, const std::function<void()>& copying) {
    OnDevice on_device(index_);
    static_cast<Mark*>(copy.marks.get())->hold_back(stream.get());
    InStream lane(stream.get());
    try {
      copying();
    } catch (...) {
      (void)cudaStreamSynchronize(stream.get());
      throw;
    }
    check(cudaStreamSynchronize(stream.get()), "waiting for a copy");  // not every medium behind a tier waits itself
  };
  return std::make_unique<ThreadLane>(pushed, perform);
}

std::optional<c10::Stream> CudaDevice::compute_stream() const {
  return c10::cuda::getStreamFromExternal(compute_, name().index()).unwrap();
}

bool CudaDevice::is_aside() const {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(index_)).stream() != compute_;
}

void CudaDevice::follow() {
  OnDevice guard(index_);
  order(events_, compute_, c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(index_)).stream());
}

void CudaDevice::lead() {
  OnDevice guard(index_);
  compute_moves_on();
  order(events_, c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(index_)).stream(), compute_);
}

void CudaDevice::used_by(const void* address, cudaStream_t stream) {
  std::lock_guard<std::mutex> lock(users_mutex_);
  users_[address].push_back(stream);
}

void CudaDevice::released(const void* address) {
  std::lock_guard<std::mutex> lock(users_mutex_);
  auto users = users_.find(address);
  if (users == users_.end()) return;
  OnDevice guard(index_);
  compute_moves_on();
  for (cudaStream_t stream : users->second) order(events_, stream, compute_);
  users_.erase(users);
}

int64_t CudaDevice::stamp() {
  if (stamps_.size() >= kMostStamps) return 0;
  OnDevice guard(index_);
  stamps_.push_back(std::make_unique<Mark>(timed_events_, compute_));
  return static_cast<int64_t>(stamps_.size());  // 0 is no ticket
}

int64_t CudaDevice::time_of(int64_t ticket) {
  if (ticket == 0) return 0;
  const Mark& mark = *stamps_.at(static_cast<size_t>(ticket) - 1);
  check(cudaEventSynchronize(mark.event()), "waiting for a CUDA event");
  return time_of(mark);
}

int64_t CudaDevice::time_of(const Mark& mark) const { return clock_ == nullptr ? 0 : between(*clock_, mark); }

void CudaDevice::restart_clock() {
  OnDevice guard(index_);
  stamps_.clear();
  clock_ = std::make_unique<Mark>(timed_events_, compute_);
}

void CudaDevice::note_iteration(uint64_t& known, uint64_t& ns) {
  OnDevice guard(index_);
  ends_.push_back(std::make_unique<Mark>(timed_events_, compute_));
  for (; ends_.size() > 1 && ends_[1]->has_passed(); ends_.pop_front())
    ++known, ns += static_cast<uint64_t>(between(*ends_[0], *ends_[1]));
  if (ends_.size() > kMostPassed) ends_.pop_front();
}

void CudaDevice::delay(cudaStream_t stream) {
  if (longest_delay_us_ == 0) return;
  auto microseconds = static_cast<int64_t>(random_()) % longest_delay_us_;
  auto sleep = [](void* us) { std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<intptr_t>(us))); };
  check(cudaLaunchHostFunc(stream, sleep, reinterpret_cast<void*>(microseconds)), "delaying a stream");
}

}  // namespace memfit::cuda
