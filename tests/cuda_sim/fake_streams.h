// The simulated GPU's streams: each is a thread that does what it is given, in order. Device memory is host memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace simulated {

// A moment in a stream's order: passed once the stream has come to it.
struct Moment {
  bool passed = false;
  int64_t time_ns = 0;
};
using MomentPtr = std::shared_ptr<Moment>;

// What a stream is given. `delayed`: work that takes a random time, if delays are on.
MomentPtr give(cudaStream_t stream, std::function<void()> work, bool delayed);
void wait_for(const MomentPtr& moment);  // on the host
bool has_passed(const MomentPtr& moment);
void wait_for_stream(cudaStream_t stream);
void wait_for_device();

int current_device();  // of the calling thread

// A host function must not call the runtime: ends the process if the calling thread runs one.
void refuse_in_host_function(const char* name);
[[noreturn]] void die(const char* what, const char* name);
cudaError_t fail(cudaError_t error);

}  // namespace simulated
