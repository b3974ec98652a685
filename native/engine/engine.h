// Engine: every storage of one device while a session is active, and where its bytes are.
//
// One mutex guards all of it. A thread that holds the mutex never waits for the interpreter lock, and no
// reference to a storage is dropped under it (a storage's death calls back into the engine).
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "block.h"
#include "books.h"
#include "copies.h"
#include "device.h"
#include "forecast.h"
#include "ghosts.h"
#include "growth.h"
#include "iterations.h"
#include "memory.h"
#include "moves.h"
#include "needs.h"
#include "notices.h"
#include "ordinary.h"
#include "placing.h"
#include "planned.h"
#include "recorder.h"
#include "refusals.h"
#include "residency.h"
#include "shelf.h"
#include "stats.h"
#include "swaps.h"
#include "thread_state.h"
#include "tier.h"
#include "timeline.h"
#include "turns.h"

namespace memfit {

struct OpInfo;
enum class Part;

// What is done to storages before every op, whether or not there is need (for tests).
enum class Stress { kNone, kEvict, kMove };

struct StopReport {
  size_t restored = 0;
  size_t left_in_arena = 0;  // pinned, or in use by another thread at that moment
  std::vector<std::string> lost;
};

std::string op_under_way(const ThreadState& thread);

class Engine {
 public:
  static Engine& get();

  // Session. `budget` 0 means no limit yet.
  // `most`: no arena without a budget is larger than this; 0 means as large as the device has it.
  // `others`: other threads may be in the midst of an op that nobody has seen begin.
  // `grows`: rather than fail, an op may have more than the budget.
  void start(Device& device, size_t budget, size_t most, bool grows, std::shared_ptr<Tier> tier, bool others);
  StopReport stop();
  bool active() const { return active_.load(std::memory_order_relaxed); }
  // This process has inherited the session: nothing is done but to fetch what its ops read.
  bool is_inert() const { return active() && forked_; }
  // Lower the arena's limit; moves or swaps out what lies beyond it. Raises TierFailure.
  void set_budget(size_t budget);
  // The peak that the budget is told as a share of, in messages.
  void set_peak(size_t bytes);
  // Rather than fail, an op may have more than the budget.
  void allow_growth(bool allowed);
  // `action` is called with a line for the user, with no lock held.
  void on_notice(std::function<void(const std::string&)> action) { notices_.tell(std::move(action)); }
  // Call it where no lock is held.
  void say();
  Stats stats();
  size_t alignment();  // of the arena's storages
  size_t page();       // of the session's device
  void reset_peaks();
  void boundary();
  void set_phase(Phase phase) { phase_ = phase; }

  // Storages. `adopt` takes one made before the session, and shows the engine one it has made itself.
  void adopt(const c10::Storage& storage);
  // Everything the device was asked for is done: storages may be adopted that other streams have written to.
  void finish();
  // What has been adopted need not be kept by the device's own allocator.
  void release_cached();
  Block* hold(const c10::Storage& storage, bool stays = false);
  void unhold(Block* block);
  void pin(Block* block, int64_t source = -1);
  std::string read_bytes(const c10::Storage& storage, size_t offset, size_t size);
  int64_t block_id(const c10::Storage& storage);
  bool is_resident(const c10::Storage& storage);
  // Whether the storage's bytes may lie elsewhere after the next op: nobody has their address to keep.
  bool may_leave(const c10::Storage& storage);
  Failure last_failure();
  void note_failure_source(const std::string& source);

  // Recording.
  void start_recording();
  // Record storages of device meta too, and the shapes of every op's tensors, for the rest of the session.
  void watch_meta();
  Recording stop_recording();
  bool recording() const { return recorder_.on(); }
  std::vector<int64_t> iteration_marks();  // op counts at which an iteration ended
  std::vector<int64_t> tick_marks();       // numbers of allocations and frees at the same ends
  // One hash an iteration: equal ones ran the same ops on storages of the same sizes. The last of them, the latest
  // last; and how often each has been.
  std::vector<uint64_t> signatures();
  std::unordered_map<uint64_t, uint64_t> signature_counts();
  // What nobody may have begun and not ended while no op runs: frames, storages in use and set aside.
  std::array<int64_t, 3> in_use();

  // Planned mode, from an iteration's end on. False when the plan does not fit: the reactive mode goes on.
  // `resident`: ids of the blocks that stay in the arena throughout; what the plan swaps comes and goes; all else
  // makes way for the zone.
  bool use_plan(PlanTable table, SwapTable swaps, const std::vector<uint64_t>& resident, bool at_boundary);
  bool has_plan();
  void start_timeline();
  Timeline stop_timeline();

  // Called by the allocator, the deleters and the observer.
  at::DataPtr allocate(Device& device, size_t bytes);
  void release_by_address(void* address);
  // Raw memory. False: it is none of the engine's.
  bool release_if_known(void* address);
  bool is_known(const void* address);
  // As `pin`; false: there is no such storage.
  bool pin_address(const void* address);
  void release_by_block(Block* block);
  Block* allocate_ghost(size_t bytes);
  void release_ghost(Block* ghost);
  void op_begins(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, int64_t source,
                 int64_t sequence_number);
  void op_ends(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::IValue> outputs);
  // `action` runs, with no lock held, when the op stream turned out to repeat itself, and whenever it has again.
  void on_period(std::function<void()> action);
  // The op stream's period is no iteration after all: wait for optimizer steps.
  void reject_period();
  // The next allocation raises this (for errors found where nothing may be raised).
  void fail_next(const std::string& message, size_t required_bytes);

  void set_stress(Stress stress);

  // Called around fork.
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  friend class Lock;
  friend class Standstill;
  using StorageRef = Books::StorageRef;

  [[noreturn]] void refuse_budget(size_t budget, const std::string& why, size_t required_bytes);
  bool governs() const { return active() && !forked_; }

  // blocks.cpp
  Block* new_block(size_t bytes);
  void delete_block(Block* block);
  Block* allocate_block(ThreadState& thread, size_t bytes, bool inside, int64_t source);
  Region* place_for_op(ThreadState& thread, Block& block);
  Region* place_outside_ops(Block& block);
  void release(Block* block);
  void deactivate(Block& block);
  void reset_peaks_locked();

  // adoption.cpp
  bool adoptable(const c10::StorageImpl& storage) const;
  Block* adopt_into_arena(const c10::Storage& storage, size_t more);
  void adopt_into_tier(const c10::Storage& storage);
  void adopt_somewhere(const c10::Storage& storage);
  void adopted(Block& block, const c10::Storage& storage);
  void put_behind_ordinary(Block& block, c10::StorageImpl& impl);
  std::vector<StorageRef> live_storages();
  void restore_all(StopReport& report);
  bool restore(Block& block, StopReport& report);

  bool grow(size_t request) { return governs() && growth_.grow(request, op_under_way(this_thread())); }

  // stress.cpp
  void press_out_all();
  void press_out(Block& block);

  // touch.cpp
  void read_in_child(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs);
  void make_ready(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, bool outermost);
  template <typename Action>
  void guarded(ThreadState& thread, const Action& action);
  void failed(ThreadState& thread, const char* why) noexcept;
  void op_prepares(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, bool outermost);
  void frame_begins(ThreadState& thread, const OpInfo& op, int64_t source);
  void frame_prepares(ThreadState& thread, const OpInfo& op);
  void frame_is_recorded(ThreadState& thread, const OpInfo& op, int64_t sequence_number);
  void show_outputs(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::IValue> outputs);
  bool frame_ends(ThreadState& thread);
  void let_go(ThreadState& thread);
  void touch(ThreadState& thread, const c10::Storage& storage, bool write, bool reads_data);
  void keep_in_place(ThreadState& thread, const c10::Storage& storage);
  void use(ThreadState& thread, Block& block, bool write);
  void show(ThreadState& thread, const c10::Storage& storage, Part part, bool held);
  void bring_in_missing(ThreadState& thread);
  template <typename Attempt>
  bool with_room(ThreadState& thread, size_t bytes, const Attempt& attempt);
  void adopt_foreign(ThreadState& thread, size_t more);
  bool make_available(Block& block, size_t more);
  bool is_tight(ThreadState& thread) const;
  static uint64_t key_of_need(const ThreadState& thread);
  bool knows_need(ThreadState& thread) const;
  bool is_roomy(const ThreadState& thread, size_t want) const;
  size_t wanted(ThreadState& thread) const;
  void make_roomy(ThreadState& thread, size_t announced);
  bool take_shelf(const ThreadState& thread);
  void fail(ThreadState& thread, Failure::Kind kind, const std::string& why, size_t request, bool is_input = false);
  void mark_unavailable(Block& block, const std::string& message);
  bool find_period_if_due();
  void give_up_recording_if_due();
  void record_anew();
  size_t learn_need(const ThreadState& thread);
  void iteration_ends();
  void restart_clock();
  size_t held_for_records() const;

  // admission.cpp
  bool wait_for_others(ThreadState& thread, std::chrono::milliseconds patience = Turns::kPatience);
  bool others_prepare(const ThreadState& thread) const;
  void take_turn(ThreadState& thread, size_t want);
  bool is_contested(const ThreadState& thread, size_t want);
  bool fits_beside(size_t want) const;

  // fork.cpp
  void install_fork_handlers();
  void become_inert();
  void forget_running_ops();
  void keep_what_is_not_reachable();

  Device& device_of(const void* address) const;

  std::mutex mutex_;
  std::atomic<bool> active_{false};
  bool forked_ = false;
  Stress stress_ = Stress::kNone;
  Books books_;
  Memory memory_;
  Stats stats_;
  Notices notices_;
  Forecast forecast_;
  Turns turns_{mutex_};
  Moves moves_{books_, memory_, stats_, notices_};
  Residency residency_{books_, memory_, stats_, forecast_, turns_, moves_};
  Shelf shelf_{books_, memory_, stats_, turns_, moves_, residency_};
  Growth growth_{books_, memory_, stats_, notices_, turns_, moves_, residency_};
  Refusals refusals_{books_, memory_, stats_, residency_};
  OrdinaryMemory ordinary_;
  Timeline timeline_;
  Copies copies_{memory_, moves_, stats_, timeline_};
  Placing placing_{memory_, stats_, moves_, residency_, shelf_, planned_};
  Planned planned_{{books_, memory_, stats_, forecast_, moves_, residency_, shelf_, placing_, copies_}};
  std::vector<Device*> devices_;  // that have had a session
  uint64_t callback_ = 0;
  Recorder recorder_;
  Ghosts ghosts_{books_, recorder_};
  Iterations iterations_;
  bool gave_up_ = false;        // the recording became too long; the next iteration's end begins another
  Failure next_failure_;
  Needs needs_;
  Failure last_failure_;
  std::atomic<Phase> phase_{Phase::kForward};
};

}  // namespace memfit
