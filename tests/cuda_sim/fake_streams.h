// The simulated GPU's streams: each is a thread that does what it is given, in order. Device memory is host memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

namespace simulated {

// A moment in a stream's order: passed once the stream has come to it.
struct Moment {
  bool passed = false;
  int64_t time_ns = 0;
};
using MomentPtr = std::shared_ptr<Moment>;

// One direction of the link, on the virtual clock. The streams' copies take turns on it: a short one waits for the copy
// under way, a long one for all that were asked for before it.
class Way {
 public:
  // When a copy begins that is `ready` then and takes `ns`. (Nobody asks for a moment before `now` any more.)
  int64_t take(int64_t ready, int64_t ns, bool is_short, int64_t now);

 private:
  struct Taken {
    int64_t begin, end;
  };
  std::deque<Taken> taken_;  // in order
};

// What a stream is given. `delayed`: work that takes a random time, if delays are on. On the virtual clock it takes `ns`,
// and its turn on a `way`.
struct Turn {
  Way* way = nullptr;
  bool is_short = false;
};
MomentPtr give(cudaStream_t stream, std::function<void()> work, bool delayed, int64_t ns = 0, Turn turn = {});
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
