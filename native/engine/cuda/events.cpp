#include "events.h"

#include <string>

#include "../tier.h"

namespace memfit::cuda {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // it is told here, and shall not come up again elsewhere
  throw TierFailure(std::string(what) + ": " + cudaGetErrorString(error));
}

OnDevice::OnDevice(int device) {
  int current = 0;
  check(cudaGetDevice(&current), "asking for the current CUDA device");
  if (current == device) return;
  check(cudaSetDevice(device), "choosing the CUDA device");
  before_ = current;
}

OnDevice::~OnDevice() {
  if (before_ >= 0) (void)cudaSetDevice(before_);
}

cudaEvent_t Events::take() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, flags_), "making a CUDA event");
  return event;
}

// A wait that was ordered before the event is recorded anew still waits for the old moment.
void Events::give_back(cudaEvent_t event) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(event);
}

Mark::Mark(Events& events, cudaStream_t stream) : events_(events), event_(events.take()) {
  cudaError_t error = cudaEventRecord(event_, stream);
  if (error == cudaSuccess) return;
  events_.give_back(event_);
  check(error, "recording a CUDA event");
}

void Mark::hold_back(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_, 0), "ordering CUDA streams"); }

bool Mark::has_passed() const {
  cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  check(error, "asking for a CUDA event");
  return true;
}

int64_t between(const Mark& from, const Mark& to) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, from.event(), to.event()), "reading the GPU's clock");
  return static_cast<int64_t>(1e6 * static_cast<double>(milliseconds));
}

void order(Events& events, cudaStream_t earlier, cudaStream_t later) { Mark(events, earlier).hold_back(later); }

}  // namespace memfit::cuda
