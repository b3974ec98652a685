#include "collectives.h"

#if __has_include(<torch/csrc/distributed/c10d/Work.hpp>)
#include <torch/csrc/distributed/c10d/Work.hpp>
#define MEMFIT_HAS_WORK
#endif

#include <ATen/core/class_type.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "interpreter.h"
#include "operands.h"

namespace memfit {

namespace {

using Clock = std::chrono::steady_clock;

// A peer may be slow. But what is waited for may also be an answer to what the program would send next.
constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::milliseconds kBetween{1};  // questions

constexpr const char kWork[] = "__torch__.torch.classes.c10d.Work";
constexpr const char kGlooThread[] = "pt_gloo_runloop";

}  // namespace

bool carries_out_collectives() {
  static thread_local const bool is_one = [] {
    char name[16] = "";
    return pthread_getname_np(pthread_self(), name, sizeof name) == 0 && std::strcmp(name, kGlooThread) == 0;
  }();
  return is_one;
}

void Collectives::begins(ThreadState& thread, c10::ArrayRef<const c10::IValue> inputs) const {
  if (thread.given_depth != 0) return;  // one inside another
  thread.given_depth = thread.depth;
  thread.given.clear();
  for (const c10::IValue& input : inputs)
    each_storage(input, [&](const c10::Storage& storage, Part) {
      Block* block = books_.find(*storage.unsafeGetStorageImpl());
      const bool is_known = std::find(thread.given.begin(), thread.given.end(), block) != thread.given.end();
      if (block != nullptr && !is_known) thread.given.push_back(block);
    });
  thread.given_from = thread.touched.size();
}

void Collectives::returned(ThreadState& thread, c10::ArrayRef<c10::IValue> outputs) {
  if (thread.given_depth != thread.depth) return;
  thread.given_depth = 0;
  std::vector<Block*> given = std::exchange(thread.given, {});
  for (size_t i = thread.given_from; i < thread.touched.size(); ++i)
    if (std::find(given.begin(), given.end(), thread.touched[i]) == given.end()) thread.touched[i]->pinned = true;
  given.erase(std::remove_if(given.begin(), given.end(), [](const Block* block) { return block->dead || !block->resident(); }),
              given.end());
  std::vector<Work> works = works_in(outputs);
  if (works.size() != 1 || coalesces_) {
    for (Block* block : given) block->pinned = true;
    return;
  }
  if (given.empty()) return;
  for (Block* block : given) ++block->active, ++block->collectives;
  pending_.push_back({std::move(works.front()), std::move(given)});
  any_ = true;
}

std::vector<Collectives::Work> Collectives::works_in(c10::ArrayRef<c10::IValue> outputs) {
  std::vector<Work> works;
#ifdef MEMFIT_HAS_WORK
  for (const c10::IValue& output : outputs) {
    if (!output.isObject() || !output.isCustomClass()) continue;
    const c10::ivalue::Object& object = output.toObjectRef();
    if (object.type()->name()->qualifiedName() == kWork) works.push_back(object.getSlot(0).toCapsule());
  }
#endif
  return works;
}

// Gloo's Work that is only carried out by `wait` never says that it is complete; nor is there anything to wait for once
// nobody else has it (the entry, and whoever asks, do). What NCCL does goes on without anybody.
bool Collectives::is_complete(const Work& work, bool on_host) {
#ifdef MEMFIT_HAS_WORK
  return static_cast<c10d::Work*>(work.get())->isCompleted() || (on_host && work.use_count() <= 2);
#else
  return true;
#endif
}

template <typename Action>
void Collectives::unlocked(const Action& action) {
  WithoutInterpreter without;
  mutex_.unlock();
  action();
  without.take_back();
  mutex_.lock();
}

std::vector<Collectives::Work> Collectives::some(size_t most) {
  std::vector<Work> works;
  for (size_t i = 0; i < std::min(most, pending_.size()); ++i) works.push_back(pending_[(next_ + i) % pending_.size()].work);
  next_ = pending_.empty() ? 0 : (next_ + works.size()) % pending_.size();
  return works;
}

std::vector<Collectives::Pending> Collectives::take(const std::vector<Work>& over) {
  const auto is_over = [&](const Pending& each) { return std::find(over.begin(), over.end(), each.work) != over.end(); };
  const auto first = std::stable_partition(pending_.begin(), pending_.end(), [&](const Pending& each) { return !is_over(each); });
  std::vector<Pending> taken(std::make_move_iterator(first), std::make_move_iterator(pending_.end()));
  pending_.erase(first, pending_.end());
  any_ = !pending_.empty();
  return taken;
}

// The Works go before the storages may move: those that nobody waits for end with that, and not before.
bool Collectives::reap(size_t most) {
  if (pending_.empty()) return false;
  const bool on_host = !pending_.front().blocks.front()->device->is_asynchronous();
  std::vector<Work> works = some(most);
  unlocked([&] {
    const auto is_under_way = [&](const Work& work) { return !is_complete(work, on_host); };
    works.erase(std::remove_if(works.begin(), works.end(), is_under_way), works.end());
  });
  if (works.empty()) return false;
  std::vector<Pending> over = take(works);
  unlocked([&] {
    works.clear();
    for (Pending& each : over) each.work.reset();
  });
  for (const Pending& each : over) let_go(each.blocks);
  if (!over.empty()) turns_.somebody_let_go();
  return !over.empty();
}

// It may have written to them until now.
void Collectives::let_go(const std::vector<Block*>& blocks) {
  for (Block* block : blocks) {
    block->dirty = true;
    --block->collectives;
    if (turns_.is_open())
      books_.let_go(*block);
    else
      restoring_.let_go(*block);
  }
}

bool Collectives::is_worth_waiting() const {
  return turns_.is_open() && std::any_of(pending_.begin(), pending_.end(), [](const Pending& each) { return !each.was_waited_for; });
}

bool Collectives::wait(ThreadState& thread) {
  if (pending_.empty() || thread.carries_out) return false;
  if (reap(SIZE_MAX)) return true;
  for (const auto until = Clock::now() + kPatience; is_worth_waiting() && Clock::now() < until;) {
    if (turns_.wait(thread, Turns::For::kRoom, kBetween, /*others_prepare=*/true)) return true;
    if (reap(SIZE_MAX)) return true;
  }
  for (Pending& each : pending_) each.was_waited_for = true;
  return false;
}

void Collectives::close() {
  reap(SIZE_MAX);
  std::vector<Pending> left = std::exchange(pending_, {});
  any_ = false;
  for (Pending& each : left)
    for (Block* block : each.blocks) block->pinned = true;
  unlocked([&] {
    for (Pending& each : left) each.work.reset();
  });
  for (const Pending& each : left) let_go(each.blocks);
}

// Nothing of theirs may be run, or waited for, in a child.
void Collectives::forget() {
  if (!pending_.empty()) new std::vector<Pending>(std::exchange(pending_, {}));
  any_ = false;
}

}  // namespace memfit
