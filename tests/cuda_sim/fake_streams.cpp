// Streams, events and host functions of the simulated CUDA runtime.
#include "fake_streams.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace simulated {

namespace {

std::mutex mutex;
std::condition_variable passed;  // some moment has
thread_local bool in_host_function = false;
thread_local bool in_stream = false;
bool in_child = false;
[[maybe_unused]] const int forks_are_noticed = pthread_atfork(nullptr, nullptr, [] { in_child = true; });
int64_t waits = 0;  // by threads of the host's
thread_local cudaError_t last_error = cudaSuccess;
int64_t longest_delay_us = 0;
uint64_t seed = 0;
uint64_t streams_made = 0;
int64_t calls = 0;        // of the runtime's functions
int64_t call_ns = 0;      // what each takes on the virtual clock; 0: times are real
int64_t virtual_now = 0;  // the host's

constexpr size_t kMostPending = 1024;  // launches that a stream has taken and not done: who gives it more waits

int64_t real_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
int64_t now_ns() { return call_ns > 0 ? virtual_now : real_ns(); }

}  // namespace

struct Stream {
  struct Work {
    std::function<void()> action;
    bool delayed;
    MomentPtr moment;
  };

  explicit Stream(bool blocking_) : blocking(blocking_), number(streams_made++) {
    reseed();
    std::thread([this] { run(); }).detach();
  }

  // Some runs have a stream that is much slower than the others.
  void reseed() {
    random.seed(static_cast<uint32_t>(seed * 1000003 + number));
    const int64_t speeds[] = {0, 1, 1, 4};
    slowness = speeds[random() % 4];
  }

  void run() {
    in_stream = true;
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      arrived.wait(lock, [this] { return !queue.empty() || closing; });
      if (queue.empty()) break;
      Work work = std::move(queue.front());
      queue.pop_front();
      int64_t delay = work.delayed && longest_delay_us > 0 ? static_cast<int64_t>(random() % longest_delay_us) * slowness : 0;
      lock.unlock();
      if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
      if (work.action) work.action();
      work.action = nullptr;
      lock.lock();
      if (call_ns == 0) work.moment->time_ns = now_ns();
      work.moment->passed = true;
      passed.notify_all();
    }
    lock.unlock();
    delete this;
  }

  MomentPtr push(std::function<void()> action, bool delayed, int64_t ns = 0, Turn turn = {}, int64_t not_before = 0) {
    int64_t begins = std::max({last->time_ns, now_ns(), not_before});
    if (turn.way != nullptr) begins = turn.way->take(begins, &ns, turn, now_ns());
    last = std::make_shared<Moment>(Moment{false, call_ns > 0 ? begins + ns : 0});
    queue.push_back({std::move(action), delayed, last});
    arrived.notify_one();
    if (call_ns > 0) wait_for_a_place();
    return last;
  }

  // (On the virtual clock: the thread that does the work may be behind.)
  void wait_for_a_place() {
    ends.push_back(last->time_ns);
    if (ends.size() <= kMostPending) return;
    virtual_now = std::max(virtual_now, ends.front());
    ends.pop_front();
  }

  bool blocking;
  uint64_t number;
  std::minstd_rand random;
  int64_t slowness = 1;
  std::condition_variable arrived;
  std::deque<Work> queue;
  std::deque<int64_t> ends;  // of the last that it was given, on the virtual clock
  MomentPtr last = std::make_shared<Moment>(Moment{true, now_ns()});
  bool closing = false;
};

namespace {

std::set<Stream*>& streams() {
  static auto* all = new std::set<Stream*>;
  return *all;
}

Stream* legacy() {
  static auto* stream = new Stream(true);
  return stream;
}

Stream* find(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return legacy();
  auto* known = reinterpret_cast<Stream*>(stream);
  if (streams().count(known) == 0) die("a stream that does not exist was used", "");
  return known;
}

// `stream` goes on when the moment has passed.
void hold_back(Stream* stream, const MomentPtr& moment) {
  stream->push([moment] { wait_for(moment); }, false, 0, {}, moment->time_ns);
}

// The host has come to it.
bool is_over(const MomentPtr& moment) { return moment->passed && moment->time_ns <= now_ns(); }

// What the legacy default stream does comes after what the blocking streams were given before, and the reverse.
void synchronise_with_legacy(Stream* stream) {
  if (stream == legacy()) {
    for (Stream* other : streams())
      if (other->blocking && !is_over(other->last)) hold_back(stream, other->last);
  } else if (stream->blocking && !is_over(legacy()->last)) {
    hold_back(stream, legacy()->last);
  }
}

}  // namespace

int64_t Way::take(int64_t ready, int64_t* ns, const Turn& turn, int64_t now) {
  while (!taken_.empty() && taken_.front().end <= now) taken_.pop_front();
  if (turn.is_short) {
    const auto way = std::find_if(taken_.begin(), taken_.end(), [&](const Taken& each) { return each.begin <= ready && ready < each.end; });
    return way == taken_.end() ? ready : way->end;
  }
  if (!taken_.empty()) ready = std::max(ready, taken_.back().end);
  if (turn.other != nullptr) *ns += static_cast<int64_t>(turn.slowing * static_cast<double>(turn.other->busy(ready, ready + *ns)));
  taken_.push_back({ready, ready + *ns});
  return ready;
}

int64_t Way::busy(int64_t begin, int64_t end) const {
  int64_t ns = 0;
  for (const Taken& each : taken_) ns += std::max(std::min(each.end, end) - std::max(each.begin, begin), int64_t{0});
  return ns;
}

MomentPtr give(cudaStream_t stream, std::function<void()> work, bool delayed, int64_t ns, Turn turn) {
  std::lock_guard<std::mutex> lock(mutex);
  Stream* known = find(stream);
  synchronise_with_legacy(known);
  return known->push(std::move(work), delayed, ns, turn);
}

void wait_for(const MomentPtr& moment) {
  std::unique_lock<std::mutex> lock(mutex);
  passed.wait(lock, [&] { return moment->passed; });
  if (in_stream) return;
  waits += 1;
  if (call_ns > 0) virtual_now = std::max(virtual_now, moment->time_ns);
}

// (On the virtual clock a moment that has come is waited for: the streams' threads may be behind.)
bool has_passed(const MomentPtr& moment) {
  std::unique_lock<std::mutex> lock(mutex);
  if (call_ns == 0) return moment->passed;
  if (moment->time_ns > virtual_now) return false;
  passed.wait(lock, [&] { return moment->passed; });
  return true;
}

bool is_virtual() {
  std::lock_guard<std::mutex> lock(mutex);
  return call_ns > 0;
}

void host_takes(int64_t ns) {
  std::lock_guard<std::mutex> lock(mutex);
  if (call_ns > 0) virtual_now += ns;
}

void host_waits_until(int64_t ns) {
  std::lock_guard<std::mutex> lock(mutex);
  if (call_ns > 0) virtual_now = std::max(virtual_now, ns);
}

int64_t host_now() {
  std::lock_guard<std::mutex> lock(mutex);
  return now_ns();
}

void wait_for_stream(cudaStream_t stream) { wait_for(give(stream, nullptr, false)); }

void wait_for_device() {
  std::vector<MomentPtr> moments;
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (Stream* stream : streams()) moments.push_back(stream->last);
    moments.push_back(legacy()->last);
  }
  for (const MomentPtr& moment : moments) wait_for(moment);
}

void die(const char* what, const char* name) {
  std::fprintf(stderr, "simulated CUDA: %s %s\n", what, name);
  std::abort();
}

bool is_forked() { return in_child; }

cudaError_t entered(const char* name) {
  if (in_host_function) die("a host function called", name);
  if (in_child) return fail(cudaErrorInitializationError);
  std::lock_guard<std::mutex> lock(mutex);
  calls += 1;
  if (call_ns > 0) virtual_now += call_ns;
  return cudaSuccess;
}

cudaError_t fail(cudaError_t error) { return last_error = error; }

}  // namespace simulated

using namespace simulated;

struct CUevent_st {
  MomentPtr moment = std::make_shared<Moment>(Moment{true, 0});  // one that was never recorded counts as passed
  bool timed;
};

namespace {
int64_t events_alive = 0;
}

extern "C" {

int64_t simulated_events() { return events_alive; }
int64_t simulated_waits() {
  std::lock_guard<std::mutex> lock(mutex);
  return waits;
}
int64_t simulated_calls() {
  std::lock_guard<std::mutex> lock(mutex);
  return calls;
}

// From now on times are modelled: a call of the runtime's takes the host so long.
void simulated_clock(int64_t new_call_ns) {
  wait_for_device();
  std::lock_guard<std::mutex> lock(mutex);
  virtual_now = real_ns();
  call_ns = new_call_ns;
}
int64_t simulated_now() { return host_now(); }
// `stream` is at work for so long, on the virtual clock.
void simulated_work(cudaStream_t stream, int64_t ns) { give(stream, nullptr, false, ns); }
void simulated_host_takes(int64_t ns) { host_takes(ns); }
void simulated_host_waits_until(int64_t ns) { host_waits_until(ns); }
int64_t simulated_streams() {
  std::lock_guard<std::mutex> lock(mutex);
  return static_cast<int64_t>(streams().size());
}
void simulated_delays(int64_t longest_us, uint64_t new_seed) {
  std::lock_guard<std::mutex> lock(mutex);
  longest_delay_us = longest_us;
  seed = new_seed;
  legacy()->reseed();
  for (Stream* stream : streams()) stream->reseed();
}

// What `stream` is given from now on comes so much later.
void simulated_pause(cudaStream_t stream, int64_t us) {
  give(stream, [us] { std::this_thread::sleep_for(std::chrono::microseconds(us)); }, false);
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  if (entered("cudaStreamCreate") != cudaSuccess) return cudaErrorInitializationError;
  std::lock_guard<std::mutex> lock(mutex);
  auto* made = new Stream((flags & cudaStreamNonBlocking) == 0);
  streams().insert(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
// What it was given is still done.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (entered("cudaStreamDestroy") != cudaSuccess) return cudaErrorInitializationError;
  std::lock_guard<std::mutex> lock(mutex);
  Stream* known = find(stream);
  streams().erase(known);
  known->closing = true;
  known->arrived.notify_one();
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (entered("cudaStreamSynchronize") != cudaSuccess) return cudaErrorInitializationError;
  wait_for_stream(stream);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (entered("cudaDeviceSynchronize") != cudaSuccess) return cudaErrorInitializationError;
  wait_for_device();
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (entered("cudaStreamQuery") != cudaSuccess) return cudaErrorInitializationError;
  MomentPtr last;
  {
    std::lock_guard<std::mutex> lock(mutex);
    last = find(stream)->last;
  }
  return has_passed(last) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (entered("cudaStreamWaitEvent") != cudaSuccess) return cudaErrorInitializationError;
  std::lock_guard<std::mutex> lock(mutex);
  Stream* known = find(stream);
  synchronise_with_legacy(known);
  hold_back(known, event->moment);
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) { return *priority = 0, cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*, cudaGraph_t*,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (entered("cudaLaunchHostFunc") != cudaSuccess) return cudaErrorInitializationError;
  auto work = [function, data] {
    in_host_function = true;
    function(data);
    in_host_function = false;
  };
  give(stream, work, true);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (entered("cudaEventCreate") != cudaSuccess) return cudaErrorInitializationError;
  *event = new CUevent_st{.timed = (flags & cudaEventDisableTiming) == 0};
  __atomic_add_fetch(&events_alive, 1, __ATOMIC_RELAXED);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (entered("cudaEventDestroy") != cudaSuccess) return cudaErrorInitializationError;
  __atomic_sub_fetch(&events_alive, 1, __ATOMIC_RELAXED);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (entered("cudaEventRecord") != cudaSuccess) return cudaErrorInitializationError;
  event->moment = give(stream, nullptr, false);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) { return cudaEventRecord(event, stream); }
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (entered("cudaEventQuery") != cudaSuccess) return cudaErrorInitializationError;
  return has_passed(event->moment) ? cudaSuccess : fail(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (entered("cudaEventSynchronize") != cudaSuccess) return cudaErrorInitializationError;
  wait_for(event->moment);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (entered("cudaEventElapsedTime") != cudaSuccess) return cudaErrorInitializationError;
  if (!from->timed || !to->timed || from->moment->time_ns == 0) return fail(cudaErrorInvalidResourceHandle);
  if (!has_passed(from->moment) || !has_passed(to->moment)) return fail(cudaErrorNotReady);
  *milliseconds = static_cast<float>(static_cast<double>(to->moment->time_ns - from->moment->time_ns) * 1e-6);
  return cudaSuccess;
}

}  // extern "C"
