// Fork: a child gets a copy of the arena and reads what was swapped out from the tier it shares with its parent.
//
// The parent reuses no extent that the child might read until every child has ended (or called exec). The child's
// engine is inert: it fetches what the child's ops read into ordinary memory, and does nothing else.
#include <ATen/record_function.h>
#include <pthread.h>

#include <new>
#include <utility>

#include "at_fork.h"
#include "engine.h"

namespace memfit {

void Engine::before_fork() {
  recomputing_.make_all();  // a child has no engine that could
  at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);  // torch's lock, which a child may find taken for good
  lasting_.mutex.lock();
  if (session_ && session_->is_open()) session_->before_fork();
  AtFork::take_all();  // last: a copy under way may need one of them to come to its end
}

void Session::before_fork() {
  copies.settle_all();  // a child has no lanes,
  paging.before_fork();  // and none who would serve its faults
  if (memory.lifelines == nullptr || memory.tier->used() == 0) return;  // (no child can read a GPU's storages)
  memory.tier->freeze();
  memory.lifelines->child_comes();
}

void Engine::after_fork_in_parent() {
  AtFork::give_all_back();
  if (session_ && session_->is_open() && session_->memory.tier->frozen()) session_->memory.thaw_if_alone();
  lasting_.mutex.unlock();
}

void Engine::after_fork_in_child() {
  // Only the forking thread lives on, and it owns the mutex.
  new (&lasting_.mutex) std::mutex();
  AtFork::renew_all();
  if (!session_ || !session_->is_open()) return;
  lasting_.flags.inert = true;
  session_->become_inert(this_thread());
}

void Engine::install_fork_handlers() {
  static bool installed = false;
  if (std::exchange(installed, true)) return;
  pthread_atfork([] { Engine::get().before_fork(); }, [] { Engine::get().after_fork_in_parent(); },
                 [] { Engine::get().after_fork_in_child(); });
}

}  // namespace memfit
