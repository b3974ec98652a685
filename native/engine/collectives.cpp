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
#include <string_view>
#include <typeinfo>
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

using Work = Collectives::Work;
enum class State { kUnderWay, kComplete, kAbandoned };

std::vector<Work> works_in(c10::ArrayRef<c10::IValue> outputs) {
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

// Gloo's messages, and what it has made of several collectives.
bool completes_alone(const Work& work) {
#ifdef MEMFIT_HAS_WORK
  const std::string_view name = typeid(*static_cast<c10d::Work*>(work.get())).name();
  for (std::string_view each : {"LambdaWork", "SendWork", "RecvWork"})
    if (name.find(each) != std::string_view::npos) return false;
#endif
  return true;
}

// Gloo's Work that is only carried out by `wait` never says that it is complete; nor is there anything to wait for once
// nobody else has it (the entry, and whoever asks, do). What NCCL does goes on without anybody.
State state_of(const Work& work, bool on_host, bool has_patience) try {
#ifdef MEMFIT_HAS_WORK
  if (has_patience && work.use_count() > 2) return State::kUnderWay;
  if (!static_cast<c10d::Work*>(work.get())->isCompleted())
    return on_host && work.use_count() <= 2 ? State::kAbandoned : State::kUnderWay;
#endif
  return State::kComplete;
} catch (...) {  // one that is written in Python may raise anything
  return State::kUnderWay;
}

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
  thread.made_before = scratch_.made();
}

void Collectives::returned(ThreadState& thread, uint64_t op, c10::ArrayRef<c10::IValue> outputs) {
  if (thread.given_depth != thread.depth) return;
  thread.given_depth = 0;
  std::vector<Block*> blocks = std::exchange(thread.given, {});
  const auto is_gone = [](const Block* block) { return block->dead || !block->resident(); };
  blocks.erase(std::remove_if(blocks.begin(), blocks.end(), is_gone), blocks.end());
  const size_t given = blocks.size();
  for (size_t i = thread.given_from; i < thread.touched.size(); ++i) {
    Block* made = thread.touched[i];
    if (!is_gone(made) && std::find(blocks.begin(), blocks.end(), made) == blocks.end()) blocks.push_back(made);
  }
  if (blocks.empty()) return;
  std::vector<Work> works = works_in(outputs);
  if (works.size() != 1 || coalesces_ || (!works.front() && !blocks.front()->device->is_asynchronous())) {
    for (Block* block : blocks) Recorder::pin(*block, recorder_);
    return;
  }
  if (!works.front()) {  // NCCL's answer for what goes on in the op's own stream, where whatever comes next is behind it
    for (Block* block : blocks) block->dirty = true;
    return;
  }
  for (Block* block : blocks) ++block->active, ++block->collectives;
  const bool is_hopeless = !completes_alone(works.front());
  const bool is_recorded = recorder_ != nullptr && recorder_->on();
  pending_.push_back({std::move(works.front()), std::move(blocks), given, is_hopeless, is_recorded ? recorder_->number() : 0,
                      is_recorded ? recorder_->op_count() : 0, scratch_.begin(op, thread.input_bytes, thread.made_before)});
  if (is_hopeless || !is_on_host()) scratch_.give_up(pending_.back().scratch);
  any_ = true;
}

void Collectives::record(const Pending& one) const {
  if (recorder_ == nullptr || !recorder_->on()) return;
  for (const Block* block : one.blocks)
    if (!block->dead) recorder_->held(*block, one.recording == recorder_->number() ? one.begun_at : 0);
}

void Collectives::record_pending() const {
  for (const Pending& each : pending_) record(each);
}

template <typename Action>
void Collectives::unlocked(const Action& action) {
  WithoutInterpreter without;
  mutex_.unlock();
  action();
  without.take_back();
  mutex_.lock();
}

std::vector<Collectives::Asked> Collectives::some(size_t most) {
  std::vector<Asked> asked;
  for (size_t i = 0; i < std::min(most, pending_.size()); ++i) {
    const Pending& one = pending_[(next_ + i) % pending_.size()];
    asked.push_back({one.work, one.is_waited_for});
  }
  next_ = pending_.empty() ? 0 : (next_ + asked.size()) % pending_.size();
  return asked;
}

std::vector<Collectives::Pending> Collectives::take(const std::vector<Work>& over) {
  const auto is_over = [&](const Pending& each) { return std::find(over.begin(), over.end(), each.work) != over.end(); };
  const auto first = std::stable_partition(pending_.begin(), pending_.end(), [&](const Pending& each) { return !is_over(each); });
  std::vector<Pending> taken(std::make_move_iterator(first), std::make_move_iterator(pending_.end()));
  pending_.erase(first, pending_.end());
  any_ = !pending_.empty();
  return taken;
}

bool Collectives::reap(size_t most, bool has_patience) {
  if (pending_.empty()) return false;
  const bool on_host = is_on_host();
  std::vector<Asked> asked = some(most);
  std::vector<Work> works, abandoned;
  unlocked([&] {
    for (auto& [work, is_waited_for] : asked) {
      const State state = state_of(work, on_host, has_patience && !is_waited_for);
      if (state == State::kAbandoned) abandoned.push_back(std::move(work));
      if (state == State::kComplete) works.push_back(std::move(work));
    }
    asked.clear();
  });
  std::vector<Pending> over = take(works), left = take(abandoned);
  for (Pending& each : left) {
    for (size_t i = each.given; i < each.blocks.size(); ++i) Recorder::pin(*each.blocks[i], recorder_);  // a part of it may go on with those
    scratch_.give_up(each.scratch);
    over.push_back(std::move(each));
  }
  works.insert(works.end(), abandoned.begin(), abandoned.end());
  abandoned.clear();
  return !works.empty() && end(std::move(works), std::move(over));
}

void Collectives::is_over(const void* work) {
  const auto is_it = [&](const Pending& each) { return each.work.get() == work; };
  const auto found = std::find_if(pending_.begin(), pending_.end(), is_it);
  if (found == pending_.end()) return;
  found->is_waited_for = true;
  if (!is_on_host()) return;  // what comes next in the stream waits, and not the program
  std::vector<Work> works{found->work};
  std::vector<Pending> over = take(works);
  end(std::move(works), std::move(over));
}

// The Works go before the storages may move: those that nobody waits for end with that, and not before. What is done to the
// bytes is done by then.
bool Collectives::end(std::vector<Work> works, std::vector<Pending> over) {
  for (const Pending& each : over) record(each);
  unlocked([&] {
    works.clear();
    for (Pending& each : over) each.work.reset();
  });
  for (const Pending& each : over) scratch_.complete(each.scratch);
  for (const Pending& each : over)
    for (Block* block : each.blocks) {
      block->dirty = true;
      --block->collectives;
      if (turns_.is_open())
        books_.let_go(*block);
      else
        restoring_.let_go(*block);
    }
  if (!over.empty()) turns_.somebody_let_go();
  return !over.empty();
}

bool Collectives::is_worth_waiting() const {
  return turns_.is_open() && std::any_of(pending_.begin(), pending_.end(), [](const Pending& each) { return !each.is_hopeless; });
}

bool Collectives::wait(ThreadState& thread, For what) {
  if (pending_.empty() || thread.carries_out) return false;
  if (reap()) return true;
  for (const auto until = Clock::now() + (what == For::kRoom ? kPatience : Turns::kPatience); is_worth_waiting() && Clock::now() < until;) {
    if (turns_.wait(thread, Turns::For::kRoom, kBetween, /*others_prepare=*/true)) return true;
    if (reap()) return true;
  }
  for (Pending& each : pending_) {
    if (what == For::kScratch)
      scratch_.give_up(each.scratch);
    else
      each.is_hopeless = true;
  }
  return false;
}

void Collectives::close() {
  reap();
  std::vector<Pending> left = std::exchange(pending_, {});
  any_ = false;
  for (Pending& each : left) {
    scratch_.give_up(each.scratch);
    for (Block* block : each.blocks) Recorder::pin(*block, recorder_);
  }
  end({}, std::move(left));
}

// Nothing of theirs may be run, or waited for, in a child.
void Collectives::forget() {
  if (!pending_.empty()) new std::vector<Pending>(std::exchange(pending_, {}));
  any_ = false;
  scratch_ = {};
  recorder_ = nullptr;
}

}  // namespace memfit
