#include "lanes.h"

#include <pthread.h>

#include <csignal>

namespace memfit {

namespace {

void perform(Copy& copy) {
  copy.began = Copy::Clock::now();
  try {
    if (copy.direction == Copy::Direction::kOut)
      copy.tier->write(copy.slot, copy.memory, copy.bytes);
    else
      copy.tier->get(copy.slot, copy.memory, copy.bytes);
  } catch (const std::exception& error) {
    copy.error = error.what();
  }
  copy.ended = Copy::Clock::now();
}

}  // namespace

Lane::~Lane() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Lane::push(std::shared_ptr<Copy> copy) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(copy));
  }
  changed_.notify_all();
}

void Lane::wait(const Copy& copy) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return copy.done; });
}

bool Lane::is_done(const Copy& copy) {
  std::lock_guard<std::mutex> lock(mutex_);
  return copy.done;
}

void Lane::run() {
  sigset_t all;  // a signal is for the threads that run Python
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
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
