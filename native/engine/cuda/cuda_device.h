// One GPU as a Device. What a session does on it happens in the order of its compute stream: the stream that was
// current when the session began.
// It implements Device, whose methods it has.
#pragma once

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../device.h"
#include "adaptor.h"
#include "checksums.h"
#include "common/sizes.h"
#include "events.h"
#include "managed.h"
#include "virtual_memory.h"

namespace memfit::cuda {

// Copies that the calling thread makes go to `stream` instead of the compute stream, until this goes.
class InStream {
 public:
  explicit InStream(cudaStream_t stream);
  InStream(const InStream&) = delete;
  InStream& operator=(const InStream&) = delete;
  ~InStream();
  // Of the calling thread; nullptr: none was named.
  static const cudaStream_t* current();

 private:
  cudaStream_t stream_;
  const cudaStream_t* before_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index);

  int index() const { return index_; }
  cudaStream_t compute() const { return compute_; }
  // The stream of the calling thread's copies.
  cudaStream_t copy_stream() const;
  Events& events() { return events_; }
  Events& timed_events() { return timed_events_; }
  // The time (ns) of a moment that has passed, counted from the clock's last start.
  int64_t time_of(const Mark& mark) const;
  // `stream` goes on when the compute stream has come to this moment. `seen`: which the last one was that it waited for.
  void hold_back(cudaStream_t stream, uint64_t& seen);
  // The compute stream is given something by the engine: it has come to another moment.
  void compute_moves_on() { moment_.reset(); }
  // Hold `stream` up for a random while, as `delay_copies` has said.
  void delay(cudaStream_t stream);

  size_t alignment() const override { return kCudaAlignment; }
  size_t page_at(size_t offset) const override { return page_bytes(index_, offset); }
  size_t limit(size_t budget) const override;
  std::unique_ptr<AddressSpace> reserve(size_t addresses, size_t bytes) override;
  c10::Allocator& ordinary() override;
  c10::Allocator& own() override;
  void install() override;
  void warm_up() override;
  void cool_down() override;
  void session_ended(bool in_use) override;
  bool keeps_history() const override { return native_allocator().initialized() && native_allocator().isHistoryEnabled(); }
  bool is_placed(const void* address) const override { return in_memory_pool(address); }
  void free_ordinary(void* memory) override;
  void release_cached() override;
  void on_exhausted(std::function<void()> action) override { exhausted_ = std::move(action); }
  bool allocated(const void* address) const override;
  void copy(void* to, const void* from, size_t bytes) override;
  void begin_together() override { is_together_ = true; }
  void end_together() override { is_together_ = false, compute_moves_on(); }
  void copy_early(const Moments& moments, const std::function<void()>& copying) override;
  bool slide(void* to, const void* from, size_t bytes) override;
  bool have_same_bytes(void* spent, const void* other, size_t bytes) override;
  uint64_t fingerprint_of(const void* address, size_t bytes) override;
  void finish() override;
  std::unique_ptr<Medium> slab(size_t capacity) override;
  std::unique_ptr<Medium> through_host(std::unique_ptr<Medium> inner) override;
  std::unique_ptr<HostMemory> host_memory(size_t bytes) override;
  void delay_copies(int64_t longest_us) override { longest_delay_us_ = longest_us; }
  std::unique_ptr<Lane> make_lane(const Tier& tier) override;
  std::optional<c10::Stream> compute_stream() const override;
  bool is_aside() const override;
  void follow() override;
  void lead() override;
  void released(const void* address) override;
  bool is_asynchronous() const override { return true; }
  int64_t stamp() override;
  int64_t time_of(int64_t ticket) override;
  void restart_clock() override;
  void note_iteration(uint64_t& known, uint64_t& ns) override;

  // Another stream uses the storage at `address` until it has come to where it is when the storage is freed.
  void used_by(const void* address, cudaStream_t stream);

 private:
  void make_way(size_t mapped, size_t most);
  Checksums& checksums();

  int index_;
  cudaStream_t compute_ = nullptr;
  std::function<void()> exhausted_;
  std::unique_ptr<Checksums> checksums_;    // of the session that is warm
  std::shared_ptr<ManagedMemory> managed_;  // of the session, once it has asked for some
  size_t before_ = 0;  // bytes that torch had when the session began,
  size_t spared_ = 0;  // and those that it has kept when it was last told to give back what is idle
  Events events_{cudaEventDisableTiming}, timed_events_{cudaEventDefault};
  std::unique_ptr<Mark> clock_;  // where time began
  std::vector<std::unique_ptr<Mark>> stamps_;
  std::deque<std::unique_ptr<Mark>> ends_;  // of iterations: the last one whose time is known, and those since
  std::mutex users_mutex_;
  std::unordered_map<const void*, std::vector<cudaStream_t>> users_;
  // This moment of the compute stream, once somebody has asked for it while copies begin together; and how many there were.
  bool is_together_ = false;
  std::unique_ptr<Mark> moment_;
  uint64_t moments_ = 0;
  // Moments of the compute stream, by the engine's clock, all of one epoch; and the stream of copies that need wait for
  // no later one.
  struct Passed {
    uint64_t at;
    std::unique_ptr<Mark> mark;
  };
  std::deque<Passed> passed_;
  uint64_t epoch_ = 0;
  cudaStream_t early_ = nullptr;  // kept for all sessions
  int64_t longest_delay_us_ = 0;
  std::minstd_rand random_;
};

// The device's object, made when it is first asked for. Raises std::invalid_argument when it is not there.
CudaDevice& cuda_device(int index);

}  // namespace memfit::cuda
