// Fork: a child gets a copy of the arena and reads what was swapped out from the tier it shares with its parent.
//
// The parent reuses no slot that the child might read until every child has ended (or called exec). The child's
// engine is inert: it fetches what the child's ops read into ordinary memory, and does nothing else.
#include <ATen/record_function.h>
#include <pthread.h>

#include <new>
#include <utility>

#include "at_fork.h"
#include "engine.h"

namespace memfit {

void Engine::before_fork() {
  at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);  // torch's lock, which a child may find taken for good
  mutex_.lock();
  AtFork::take_all();
  if (!governs()) return;
  copies_.settle_all();  // a child has no lanes
  if (memory_.lifelines == nullptr || memory_.tier->used() == 0) return;  // (no child can read a GPU's storages)
  memory_.tier->freeze();
  memory_.lifelines->child_comes();
}

void Engine::after_fork_in_parent() {
  if (governs() && memory_.tier->frozen()) memory_.thaw_if_alone();
  AtFork::give_all_back();
  mutex_.unlock();
}

void Engine::after_fork_in_child() {
  // Only the forking thread lives on, and it owns the mutex.
  new (&mutex_) std::mutex();
  AtFork::renew_all();
  if (governs()) become_inert();
}

void Engine::become_inert() {
  forked_ = true;
  if (memory_.lifelines) memory_.lifelines->hold_on();
  if (!memory_.tier->frozen()) memory_.lifelines.reset();  // there is nothing in it to be read
  copies_.abandon();
  planned_.abandon();
  recorder_.abandon();
  timeline_.stop();
  ghosts_.set_watched(false);
  iterations_.abandon();
  next_failure_ = Failure();
  forget_running_ops();
  if (memory_.device->is_asynchronous()) keep_what_is_not_reachable();
}

// No other thread came along, and the forking one's op moves nothing any more.
void Engine::forget_running_ops() {
  ThreadState& thread = this_thread();
  turns_.forget(thread);
  for (Block* block : thread.touched) deactivate(*block);
  thread.touched.clear();
  thread.missing.clear();
  thread.aside = false;
  thread.row = -1;
  thread.failure = Failure();
}

// A child cannot even give a GPU's memory back.
void Engine::keep_what_is_not_reachable() {
  new std::shared_ptr<Tier>(memory_.tier);
  new std::shared_ptr<Arena>(memory_.arena);
  for (const Block* block : books_.all())
    if (block->arena != nullptr && block->arena != memory_.arena) new std::shared_ptr<Arena>(block->arena);
}

void Engine::install_fork_handlers() {
  static bool installed = false;
  if (std::exchange(installed, true)) return;
  pthread_atfork([] { Engine::get().before_fork(); }, [] { Engine::get().after_fork_in_parent(); },
                 [] { Engine::get().after_fork_in_child(); });
}

}  // namespace memfit
