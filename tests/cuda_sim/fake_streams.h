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

class Way;

// What a stream is given. `delayed`: work that takes a random time, if delays are on. On the virtual clock it takes `ns`,
// and its turn on a `way`; while the `other` way is busy it is done so much more slowly.
struct Turn {
  Way* way = nullptr;
  bool is_short = false;
  const Way* other = nullptr;
  double slowing = 0;  // 0.1: what takes 100 ns alone takes 110
};

// One direction of the link, on the virtual clock. The streams' copies take turns on it: a short one waits for the copy
// under way, a long one for all that were asked for before it.
class Way {
 public:
  // When a copy begins that is `ready` then and takes `ns`, or more. (Nobody asks for a moment before `now` any more.)
  int64_t take(int64_t ready, int64_t* ns, const Turn& turn, int64_t now);
  // How long the copies that were asked for so far are under way in [begin, end).
  int64_t busy(int64_t begin, int64_t end) const;

 private:
  struct Taken {
    int64_t begin, end;
  };
  std::deque<Taken> taken_;  // in order
};

MomentPtr give(cudaStream_t stream, std::function<void()> work, bool delayed, int64_t ns = 0, Turn turn = {});
void wait_for(const MomentPtr& moment);  // on the host
bool has_passed(const MomentPtr& moment);
void wait_for_stream(cudaStream_t stream);
void wait_for_device();

int current_device();  // of the calling thread

// Whether times are modelled: work takes what is said when it is given, and the host what its calls take.
bool is_virtual();
// The host does something else for so long, or until a moment, on the virtual clock.
void host_takes(int64_t ns);
void host_waits_until(int64_t ns);
int64_t host_now();

// The runtime's function `name` was called: counted, and ends the process if a host function does it. An error in a forked
// child, where CUDA answers nothing.
cudaError_t entered(const char* name);
bool is_forked();
[[noreturn]] void die(const char* what, const char* name);
cudaError_t fail(cudaError_t error);

}  // namespace simulated
