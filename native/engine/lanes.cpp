#include "lanes.h"

#include "device.h"
#include "fingerprint.h"
#include "signals.h"

namespace memfit {

ThreadLane::~ThreadLane() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ThreadLane::push(std::shared_ptr<Copy> copy) {
  if (pushed_) pushed_(*copy);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(copy));
  }
  changed_.notify_all();
}

void ThreadLane::wait(Copy& copy) {
  std::unique_lock<std::mutex> lock(mutex_);
  copy.waited_from = copy.waited_until = host().stamp();
  if (copy.done) return;
  changed_.wait(lock, [&] { return copy.done; });
  copy.waited_until = host().stamp();
}

void ThreadLane::perform(Copy& copy) {
  auto copying = [&copy] {
    // Before the bytes go and after they have come: whoever writes to them meanwhile is found out.
    const bool out = copy.direction == Copy::Direction::kOut;
    if (out && copy.takes_print) copy.print = fingerprint(copy.memory, copy.bytes);
    if (out)
      copy.tier->write(copy.extent, copy.memory, copy.bytes);
    else
      copy.tier->get(copy.extent, copy.memory, copy.bytes);
    if (!out && copy.takes_print) copy.print = fingerprint(copy.memory, copy.bytes);
  };
  copy.began = host().stamp();
  try {
    if (perform_)
      perform_(copy, copying);
    else
      copying();
  } catch (const std::exception& error) {
    copy.error = error.what();
  }
  copy.ended = host().stamp();
}

void ThreadLane::run() {
  leave_signals_to_others();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::shared_ptr<Copy> copy = queue_.front();
    lock.unlock();
    perform(*copy);
    lock.lock();
    queue_.pop_front();
    copy->done = true;
    changed_.notify_all();
  }
}

}  // namespace memfit
