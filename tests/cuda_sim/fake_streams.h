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

// What a stream is given. `delayed`: work that takes a random time, if delays are on. On the virtual clock it takes
// `ns`, from when what it shares with other streams (one direction of the link) is `free_at`.
MomentPtr give(cudaStream_t stream, std::function<void()> work, bool delayed, int64_t ns = 0, int64_t* free_at = nullptr);
void wait_for(const MomentPtr& moment);  // on the host
bool has_passed(const MomentPtr& moment);
void wait_for_stream(cudaStream_t stream);
void wait_for_device();

int current_device();  // of the calling thread

// Whether times are modelled: work takes what is said when it is given, and the host what its calls take.
bool is_virtual();
// The host does something else for so long, on the virtual clock.
void host_takes(int64_t ns);

// The runtime's function `name` was called: counted, and ends the process if a host function does it. An error in a forked
// child, where CUDA answers nothing.
cudaError_t entered(const char* name);
bool is_forked();
[[noreturn]] void die(const char* what, const char* name);
cudaError_t fail(cudaError_t error);

}  // namespace simulated
