#include "needs.h"

#include <algorithm>
#include <utility>

#include "hash.h"
#include "thread_state.h"

namespace memfit {

namespace {

constexpr size_t kMostKnown = size_t{1} << 17;  // ops

// The same storages may be seen through larger or smaller views.
uint64_t key_of(const ThreadState& thread) { return mix(thread.need_key, thread.shape_key); }
constexpr uint64_t kNoShapes = 0;  // of an op whose storages' sizes say it all

}  // namespace

bool Needs::knows(ThreadState& thread) const {
  const uint64_t key = key_of(thread);
  if (thread.need.serial != thread.serial || thread.need.key != key) {
    auto found = needs_.find(key);
    thread.need = {thread.serial, key, found != needs_.end(), found != needs_.end() ? found->second.length : 0};
  }
  return thread.need.known;
}

bool Needs::is_nothing(uint64_t need_key) const {
  const auto found = needs_.find(mix(need_key, kNoShapes));
  return found != needs_.end() && found->second.length == 0;
}

size_t Needs::wanted(ThreadState& thread) const {
  return knows(thread) ? thread.need.length : std::max(thread.expected, 8 * thread.input_bytes + (size_t{1} << 16));
}

size_t Needs::learn(const ThreadState& thread, size_t alignment) {
  if (needs_.size() > kMostKnown) needs_.clear();  // sizes that never come back: those that do are learnt again
  Need& need = needs_[key_of(thread)];
  const uint64_t window = thread.window.hash();
  if (std::exchange(need.window, window) != window) need.length = std::max(need.length, thread.window.length(alignment));
  return need.length;
}

size_t Needs::whole(ThreadState& thread, size_t alignment) const {
  return knows(thread) ? thread.need.length : std::max(thread.window.length(alignment), thread.whole_workspace);
}

}  // namespace memfit
