// Engine: what PyTorch's callbacks and Python call. It has the mutex, what outlives sessions, and the session if one is
// active.
//
// A thread that holds the mutex never waits for the interpreter lock, and no reference to a storage is dropped under it
// (a storage's death calls back into the engine). A session lives as long as any thread is in a call that it began in.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "interpreter.h"
#include "lasting.h"
#include "recomputing.h"
#include "repeating.h"
#include "restoring.h"
#include "session.h"
#include "slicing.h"
#include "trying.h"

namespace memfit {

class Lock;

struct StopReport {
  size_t restored = 0;
  size_t left_in_arena = 0;  // pinned, or in use by another thread at that moment
  std::vector<std::string> lost;
};

// A facade: a method for each thing that torch, Python or the system may call, most of them one line long.
class Engine {
 public:
  static Engine& get();

  // A session. Raises what a refusal raises, and std::runtime_error when one is active.
  void start(const SessionSettings& settings);
  // The governing session's limit from now on, if there is one. It moves what lies beyond; it is refused as that of `start`.
  void set_budget(size_t budget);
  StopReport stop();
  bool active() const { return lasting_.flags.governed.load(std::memory_order_relaxed) != nullptr; }
  // This process has inherited the session: nothing is done but to fetch what its ops read.
  bool is_inert() const { return active() && lasting_.flags.inert.load(std::memory_order_relaxed); }
  bool recording() const { return lasting_.flags.records.load(std::memory_order_relaxed); }
  // Torch's allocator notes the Python that calls it, from now on or no longer: it waits for the interpreter then.
  void note_history(bool on);
  void set_stress(Stress stress);
  // Record storages of device meta too, for the rest of the session.
  void watch_meta();
  Stats stats() {
    return in_session([](Session& session) { return session.figures(); });
  }

  // Calls `action(session)` under the mutex and returns its value; without a session (for the second one, also in a
  // child that has inherited it) returns a default value.
  template <typename Action>
  auto in_session(const Action& action) -> decltype(action(std::declval<Session&>()));
  template <typename Action>
  auto governing(const Action& action) -> decltype(action(std::declval<Session&>()));

  // Lines for the user: `action` is called with each, with no lock held.
  void on_notice(std::function<void(const std::string&)> action) { say_line_ = std::move(action); }
  // Call it where no lock is held.
  void say();
  // `action` runs, with no lock held, when the op stream turned out to repeat itself, and whenever it has again.
  void on_period(std::function<void()> action);
  Failure last_failure();
  void note_failure_source(const std::string& source);
  // Counts that are all 0 while no op runs: frames begun and not ended, storages in use, and storages set aside.
  std::array<int64_t, 3> in_use();

  // Storages. `adopt` takes one made before the session, and shows the engine one it has made itself.
  void adopt(const c10::Storage& storage);
  // Bring the storage's bytes in and keep them there until `unhold`; where they can be kept for good, if its memory is
  // about to escape (`stays`). Null when it is none of the engine's.
  Block* hold(const c10::Storage& storage, bool stays = false);
  void unhold(Block* block);
  // Raw memory of a held block has escaped, at line `source`: it stays where it is until its storage dies.
  void pin(Block* block, int64_t source = -1);
  // It is mapped from now on, whenever an op uses it. False: it is none of the session's, or none can be.
  bool map(const c10::Storage& storage);
  // As `pin`; false: there is no such storage.
  bool pin_address(const void* address);
  // The program wants the storage's bytes no longer, and it stays. False: they are where it can drop them itself.
  bool drop_bytes(const c10::Storage& storage);
  // What the thread allocates stays where it is from now on; or until now, and if it is to stay `for_good`, until it dies.
  void begin_to_keep();
  void end_keeping(bool for_good);
  // The collectives that follow are one (`Collectives::coalesce`).
  void coalesce_collectives(bool on);
  // The program has waited for a collective's Work (by identity).
  void collective_is_over(const void* work);
  std::string read_bytes(const c10::Storage& storage, size_t offset, size_t size);
  int64_t block_id(const c10::Storage& storage);
  bool is_resident(const c10::Storage& storage);
  // Whether the storage's bytes may lie elsewhere after the next op: nobody has their address to keep.
  bool may_leave(const c10::Storage& storage);
  // Whether the op that runs in this thread uses the storage's bytes, and so keeps them in memory until it ends.
  bool is_operand(const c10::Storage& storage);
  // By what a storage is known, wherever its bytes move: the StorageImpl that they belong to, and their offset in it, which
  // is another storage's for a slice of one. Nothing for memory that no session moves.
  std::optional<std::pair<uintptr_t, size_t>> place_of(const c10::Storage& storage);
  bool is_known(const void* address);

  // Called by the allocators, the deleters and the observer.
  at::DataPtr allocate(Device& device, size_t bytes);
  void release_by_address(void* address);
  // Raw memory. False: it is none of the engine's.
  bool release_if_known(void* address);
  void release_by_block(Block* block);
  Block* allocate_ghost(size_t bytes);
  void release_ghost(Block* ghost);
  void op_begins(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, int64_t source,
                 int64_t sequence_number);
  // As `op_begins`, where it takes nothing but to count (AtOnce); otherwise false, and nothing has happened. With or without
  // the interpreter lock.
  bool op_begins_at_once(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::TensorImpl*> tensors);
  void op_ends(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::IValue> outputs);

  // A kernel is reached that may be run in slices. With no lock held.
  void run_split(const Kernel& kernel, Stack& stack);
  // Kernels look for calls to be split: once in a process, and for good.
  void allow_splits(bool is_allowed, bool tries_ahead, bool is_forced, bool is_planned_for);
  // What has been tried so far, of which another process may be told.
  std::unordered_map<uint64_t, Answer> split_answers();
  void know_splits(std::unordered_map<uint64_t, Answer> answers);

  // Called around fork.
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  friend class Lock;

  // How often what is needed is made again, if other threads discard it before it can be used.
  static constexpr int kAttempts = 100;

  [[noreturn]] void refuse_less_than(size_t page, size_t budget);
  [[noreturn]] void refuse_budget(size_t budget, const std::string& why, size_t required_bytes);
  void begin(const SessionSettings& settings, size_t limit, size_t most);
  void install_fork_handlers();
  Device& device_of(const void* address) const;
  std::vector<Books::StorageRef> live_storages();
  StopReport end(Session& session);
  bool hold(const Lock& lock, Block& block, bool stays, ThreadState& outside);
  bool bring_in(Session* session, ThreadState& outside, Block& block, bool stays);
  void let_go(Session* session, Block& block);
  void release(Session* session, Block* block);
  void read_in_child(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs);
  void close_frame(Session* session, ThreadState& thread);
  const Device* device_of_settled(const ThreadState& thread) const;
  static void enter_op(ThreadState& thread, const OpInfo& op);
  static void leave_op(ThreadState& thread);
  std::vector<Block*> begin_op(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, int64_t source,
                               int64_t sequence_number, int attempt);

  Lasting lasting_;
  Restoring restoring_{lasting_.books};
  Recomputing recomputing_{*this};
  Repeating repeating_{*this};
  Trying trying_{*this};
  Slicing slicing_{*this};
  std::unique_ptr<Session> session_;
  std::vector<Device*> devices_;  // that have had a session
  std::function<void(const std::string&)> say_line_;
  uint64_t callback_ = 0;
};

// Holds the mutex, and the session that there is: a thread may have to wait in the midst of it, and the last one to
// leave a session that is over destroys it. Drops the references gathered under the mutex once it is released again.
class Lock {
 public:
  explicit Lock(Engine& engine) : lasting_(engine.lasting_) {
    if (lasting_.flags.takes_interpreter.load(std::memory_order_relaxed)) interpreter_.emplace();
    lasting_.mutex.lock();
    enter(engine);
  }
  // Only if nobody has to be waited for: otherwise it is not held, and there is no session.
  Lock(Engine& engine, std::try_to_lock_t) : lasting_(engine.lasting_) {
    if (!lasting_.flags.takes_interpreter.load(std::memory_order_relaxed) && lasting_.mutex.try_lock()) enter(engine);
  }
  ~Lock() {
    if (!is_held_) return;
    const bool is_last = session_ != nullptr && --session_->calls == 0 && session_->is_over;
    const std::unique_ptr<Session> over(is_last ? session_ : nullptr);
    const std::vector<Books::StorageRef> dying = lasting_.books.take_buried();
    lasting_.mutex.unlock();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // nullptr: none was active when the lock was taken.
  Session* session() const { return session_; }
  // The same, but not in a child that has inherited it, nor when it has ended since.
  Session* governing() const { return session_ != nullptr && session_->is_open() ? session_ : nullptr; }

 private:
  void enter(Engine& engine) {
    is_held_ = true;
    session_ = engine.session_.get();
    if (session_ != nullptr) ++session_->calls;
  }

  std::optional<WithInterpreter> interpreter_;  // until everything else has gone
  Lasting& lasting_;
  bool is_held_ = false;
  Session* session_ = nullptr;
};

// `action(*session)`; without a session, a default value.
template <typename Action>
auto called(Session* session, const Action& action) -> decltype(action(*session)) {
  return session != nullptr ? action(*session) : decltype(action(*session))();
}

template <typename Action>
auto Engine::in_session(const Action& action) -> decltype(action(std::declval<Session&>())) {
  Lock lock(*this);
  return called(lock.session(), action);
}

template <typename Action>
auto Engine::governing(const Action& action) -> decltype(action(std::declval<Session&>())) {
  Lock lock(*this);
  return called(lock.governing(), action);
}

}  // namespace memfit
