// Fork: a child gets a copy of the arena and reads what was swapped out from the tier it shares with its parent.
//
// The parent reuses no slot that the child might read until every child has ended (or called exec): each child
// holds the write end of a pipe, which closes by itself. The child itself neither swaps nor uses the arena.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "engine.h"

namespace memfit {

void Engine::before_fork() {
  mutex_.lock();
  settle_all();  // a child has no lanes
  // (No child can read a GPU's storages.)
  if (!active() || forked_ || device_->is_asynchronous() || tier_->used() == 0) return;
  if (pipe2(fork_pipe_, O_CLOEXEC) != 0) fork_pipe_[0] = fork_pipe_[1] = -1;
  tier_->freeze();
}

void Engine::after_fork_in_parent() {
  if (active() && tier_->frozen() && fork_pipe_[0] != kNoFork) {
    if (fork_pipe_[1] >= 0) close(fork_pipe_[1]);
    children_.push_back(fork_pipe_[0]);  // without a pipe (-1) the child counts as alive for good
    fork_pipe_[0] = fork_pipe_[1] = kNoFork;
  }
  mutex_.unlock();
}

void Engine::after_fork_in_child() {
  // Only the forking thread lives on, and it owns the mutex; a fresh one has no memory of waiters.
  new (&mutex_) std::mutex();
  new (&turn_) std::condition_variable_any();
  forked_ = true;
  for (std::unique_ptr<Lane>& lane : lanes_) (void)lane.release();  // its thread is not in this process
  recorder_.stop();
}

void Engine::thaw_if_alone() {
  auto has_ended = [](int end) {
    pollfd state{end, POLLIN, 0};
    if (poll(&state, 1, 0) <= 0 || (state.revents & POLLHUP) == 0) return false;
    close(end);
    return true;
  };
  children_.erase(std::remove_if(children_.begin(), children_.end(), has_ended), children_.end());
  if (children_.empty()) tier_->thaw();
}

void Engine::install_fork_handlers() {
  static bool installed = false;
  if (std::exchange(installed, true)) return;
  pthread_atfork([] { Engine::get().before_fork(); }, [] { Engine::get().after_fork_in_parent(); },
                 [] { Engine::get().after_fork_in_child(); });
}

}  // namespace memfit
