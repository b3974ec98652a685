// Events of the CUDA runtime, used again and again: making one costs more than recording it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace memfit::cuda {

// Raises TierFailure. `what` says which step failed; the runtime's own words follow.
void check(cudaError_t error, const char* what);

// On whose device the calling thread's calls are, until this goes.
class OnDevice {
 public:
  explicit OnDevice(int device);
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice();

 private:
  int before_ = -1;
};

class Events {
 public:
  explicit Events(unsigned flags) : flags_(flags) {}
  cudaEvent_t take();
  void give_back(cudaEvent_t event);

 private:
  unsigned flags_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

// One moment in a stream's order.
class Mark {
 public:
  Mark(Events& events, cudaStream_t stream);
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark() { events_.give_back(event_); }

  // Work that `stream` is given from now on comes after this moment.
  void hold_back(cudaStream_t stream) const;
  bool has_passed() const;
  cudaEvent_t event() const { return event_; }

 private:
  Events& events_;
  cudaEvent_t event_;
};

// The time (ns) from one moment to another, which have passed.
int64_t between(const Mark& from, const Mark& to);

// `later` comes after everything that `earlier` has been given so far.
void order(Events& events, cudaStream_t earlier, cudaStream_t later);

}  // namespace memfit::cuda
