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
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "arena.h"
#include "block.h"
#include "device.h"
#include "forecast.h"
#include "lanes.h"
#include "lifelines.h"
#include "op_window.h"
#include "recorder.h"
#include "stats.h"
#include "swaps.h"
#include "tier.h"
#include "timeline.h"

namespace memfit {

struct OpInfo;
enum class Part;

// What is done to storages before every op, whether or not there is need (for tests).
enum class Stress { kNone, kEvict, kMove };

// Why an op could not have the bytes it needs.
struct Failure {
  enum class Kind { kNone, kBudget, kTier } kind = Kind::kNone;
  std::string message;
  std::string why;
  std::string remedy;
  std::string op;
  std::string tensors;
  std::string source;
  size_t required_bytes = 0;
};

// What the running depth-0 op of one thread uses.
struct ThreadState {
  int depth = 0;
  bool in_frame = false;  // between frame_begins and frame_ends
  bool running = false;   // between op_begins and frame_ends
  bool starting = false;  // the op has its inputs brought in: it holds no raw pointers yet
  bool stepped_aside = false;  // since when any of them may have left again
  bool aside = false;     // runs on another stream than the compute stream, in its order
  bool gave_way = false;  // has let everybody else go first, once
  uint64_t serial = 0;
  const OpInfo* op = nullptr;
  std::vector<Block*> touched;  // active until the op ends; a block may be listed twice
  std::vector<Block*> missing;         // of those, the ones to be brought in
  std::vector<c10::Storage> foreign;   // ordinary memory to be adopted
  OpWindow window;  // what it allocates
  size_t allocated = 0;  // in all
  size_t largest = 0;  // the largest storage it has touched or allocated
  size_t input_bytes = 0;
  size_t promised = 0;  // what it may still allocate, as far as is known
  struct {
    uint64_t serial = 0, key = 0;  // of which op
    bool known = false;
    size_t length = 0;
  } need;  // what the engine has looked up of its need
  uint64_t need_key = 0;    // the op and the sizes of its inputs' storages
  uint64_t shape_key = 0;   // what else decides what it allocates: its inputs' shapes, and lists of numbers
  uint64_t course = 0;      // the plan's iteration in which it began,
  size_t planned_op = 0;    // as which of the plan's ops
  int64_t row = -1;  // the recorder's
  uint64_t waited_ns = 0;  // for room and for its inputs, while recording
  int64_t source = -1;
  uint64_t recording = 0;
  std::string tensors;  // shapes, gathered only when memory is tight
  Failure failure;      // raised from the op's next allocation
  bool untold = false;  // and, if it makes none, from the next one of all
};
ThreadState& this_thread();

struct StopReport {
  size_t restored = 0;
  size_t left_in_arena = 0;  // pinned, or in use by another thread at that moment
  std::vector<std::string> lost;
};

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
  void on_notice(std::function<void(const std::string&)> action) { on_notice_ = std::move(action); }
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
  using StorageRef = c10::intrusive_ptr<c10::StorageImpl>;

  [[noreturn]] void refuse_budget(size_t budget, const std::string& why, size_t required_bytes);
  bool governs() const { return active() && !forked_; }

  // blocks.cpp
  Block* new_block(size_t bytes);
  void delete_block(Block* block);
  Region* place_for_op(ThreadState& thread, Block& block);
  Region* place_outside_ops(Block& block);
  Block* allocate_block(ThreadState& thread, size_t bytes, bool inside, int64_t source);
  void release(Block* block);
  void deactivate(Block& block);
  Block* find(const c10::StorageImpl& storage) const;
  void attach(Block& block, const c10::Storage& storage);
  void lies_anew(Block& block, c10::StorageImpl& storage);
  void note_peaks();
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
  void free_ordinary(bool all);

  // ghosts.cpp
  bool watches_meta() const { return watches_meta_.load(std::memory_order_relaxed); }
  Block* new_ghost(size_t bytes);
  void ghost_begins(ThreadState& thread, Block& ghost, int64_t source);
  void ghost_ends(const Block& ghost);
  Block* ghost_of(ThreadState& thread, const c10::Storage& storage, bool is_new);
  void touch_ghost(ThreadState& thread, const c10::Storage& storage, bool write, bool reads_data);

  // swapping.cpp
  bool make_lanes();
  void swap_before_op(ThreadState& thread, uint64_t name_hash);
  void swap_after_op(const ThreadState& thread);
  void start_out(uint32_t swap);
  void finish_out(uint32_t swap);
  void start_in(uint32_t swap);
  void begin_copy(Block& block, Copy::Direction direction, Region* region, uint32_t swap);
  bool settle(Block& block);
  void settle_all();
  void end_swapping();
  void account();
  Lane& lane(Copy::Direction direction);
  Region* place_late(Block& block);

  // planned.cpp
  Region* place_by_plan(Block& block);
  bool drop_plan();
  void count_planned(Stats& stats) const;
  bool pack(const std::vector<Block*>& resident);
  void carry_over();
  bool clear_away(const std::vector<Block*>& blocks);
  bool find_zone(size_t bytes, size_t& offset) const;
  bool clear_zone(size_t from, size_t bytes);

  // refusal.cpp
  void refuse(const ThreadState& thread, Failure& failure, size_t request, bool is_input) const;
  size_t smallest_budget(const ThreadState& thread, size_t request, bool is_input) const;
  std::string share_of_peak(size_t bytes) const;
  size_t immovable_bytes() const;
  std::string describe_immovable() const;

  // growth.cpp
  bool grow(size_t request);
  void return_to_budget();
  void notify(const std::string& key, const std::string& text);

  // shelf.cpp
  size_t shelf_step() const;
  size_t shelf_slack() const;
  bool is_small(size_t bytes) const;
  bool may_move(const Block& block) const;
  Region* place_on_shelf(Block& block, bool evicts);
  bool grow_shelf(size_t needed, bool evicts);
  void gather_small();
  void evict_scattered();
  void shelve(Block& block);
  bool clear_shelf();
  bool take_shelf(const ThreadState& thread);
  void sort_by_size();
  void tidy_shelf();
  void sort_shelf(const std::unordered_set<uint64_t>& stays);

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
  bool records(const ThreadState& thread) const;
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
  void fail(ThreadState& thread, Failure::Kind kind, const std::string& why, size_t request, bool is_input = false);
  void mark_unavailable(Block& block, const std::string& message);
  bool find_period_if_due();
  void give_up_recording_if_due();
  void record_anew();
  size_t learn_need(const ThreadState& thread);
  void iteration_ends();
  void restart_clock();
  size_t held_for_records() const;

  // turns.cpp
  bool wait_for_others(ThreadState& thread);
  bool wait_for_others(ThreadState& thread, std::chrono::milliseconds patience);
  void take_turn(ThreadState& thread, size_t want);
  bool is_contested(const ThreadState& thread, size_t want);
  bool fits_beside(size_t want) const;
  void keep_promise(ThreadState& thread, size_t bytes);
  bool others_run(const ThreadState& thread) const;
  bool others_prepare(const ThreadState& thread) const;
  void step_aside(ThreadState& thread);
  void somebody_let_go();
  void step_back(ThreadState& thread);
  void frame_is_over(ThreadState& thread);
  template <typename Condition>
  bool wait_without_interpreter(std::chrono::milliseconds patience, const Condition& condition);
  void stand_still();
  void move_again();
  void wait_for_standstill();

  // residency.cpp
  Region* place(size_t bytes, size_t more, Block* block, bool high = false);
  Region* place_at_edge(size_t bytes, Block* block, bool high);
  bool make_room(size_t bytes);
  bool clear(Region* first, Region* last, bool evicts = true);
  bool evict(Block& block);
  bool relocate(Block& block, size_t avoid_from, size_t avoid_to);
  bool move_to(Block& block, Region* target);
  bool bring_in(Block& block, size_t more);
  void consolidate(const std::vector<Block*>& own);
  size_t slide_down(Block& mover, size_t floor);
  size_t move_down(Ranges& ranges, Block& mover, size_t target);
  void move_by_tier(Block& mover, char* to, c10::StorageImpl& storage);
  size_t widest_window(bool running = false) const;
  std::pair<Region*, Region*> smallest_stretch(size_t bytes) const;
  double eviction_cost(const Block& block) const;
  bool written_unseen(const Block& block);
  void mend_unseen_write(Block& block);
  void copy_out(Block& block);
  void release_frozen_slot(Block& block);
  void leave_arena(Block& block, c10::StorageImpl& storage);
  void fetch(Block& block, Region* region, c10::StorageImpl& storage);
  void come_in(Block& block, Region* region, c10::StorageImpl& storage);
  void thaw_if_alone();

  // fork.cpp
  void install_fork_handlers();
  void become_inert();
  void forget_running_ops();
  void keep_what_is_not_reachable();

  Device& device_of(const void* address) const;

  std::mutex mutex_;
  std::vector<StorageRef> graveyard_;  // references to be dropped after the mutex is
  std::atomic<bool> active_{false};
  bool forked_ = false;
  Stress stress_ = Stress::kNone;
  int frames_ = 0;   // threads with an op running, or about to
  int running_ = 0;  // those of them whose op has started: it holds raw pointers
  int waiting_ = 0;  // those of them that wait for another's end
  int queued_ = 0;   // and those of these that have not begun, for want of room beside the others
  size_t promised_ = 0;  // what ops that run may still allocate
  bool standstill_ = false;  // ops wait before they begin
  const void* standstill_owner_ = nullptr;  // but for this thread's
  uint64_t turns_ = 0;  // grows when somebody lets go of storages
  std::condition_variable_any turn_;
  Device* device_ = nullptr;       // the session's, or the last one's
  std::vector<Device*> devices_;  // that have had a session
  uint64_t callback_ = 0;
  const ThreadState* plan_thread_ = nullptr;  // the first that had an op while the plan was in force,
  bool plan_is_shared_ = false;               // and whether it was not the only one
  uint64_t course_ = 0;  // grows when a plan's iteration begins, and when it is no longer followed

  std::shared_ptr<Arena> arena_;
  std::shared_ptr<Tier> tier_;
  std::vector<Block*> blocks_;
  std::vector<Block*> ghosts_;
  std::atomic<bool> watches_meta_{false};
  std::unordered_map<const void*, Block*> by_address_;
  std::unique_ptr<Swaps> swaps_;  // while there is a plan that swaps
  std::unique_ptr<Lane> lanes_[2];  // out, in
  std::vector<Block*> copying_;
  std::vector<std::shared_ptr<Copy>> settled_;  // waited for, and not in the books yet
  Timeline timeline_;
  Forecast forecast_;
  Recorder recorder_;
  uint64_t recording_number_ = 0;
  std::vector<int64_t> marks_;  // op counts of the recording at which an iteration ended
  std::vector<int64_t> tick_marks_;
  uint64_t first_recorded_block_ = 0;
  Block shelf_owner_;  // stands for the shelf in the arena's list of regions
  bool scattered_ = false;  // small storages lie elsewhere than on the shelf
  Block zone_owner_;  // stands for the plan in the arena's list of regions
  bool gave_up_ = false;        // the recording became too long; the next iteration's end begins another
  size_t longest_iteration_ = 0;  // ops
  bool steps_seen_ = false;     // an optimizer has stepped: its boundaries are used, not the op stream's period
  uint64_t iteration_hash_ = 0;
  std::deque<uint64_t> signatures_;  // the last ones
  std::unordered_map<uint64_t, uint64_t> signature_counts_;
  int64_t period_ = 0;
  bool iteration_passed_ = false;  // by the period; nobody has been told yet
  int64_t period_check_ = 512;
  uint64_t period_start_ = 0;   // the op count at which the current repetition began
  std::function<void()> on_period_;
  size_t limit_ = 0;  // the arena's under the budget; it is higher while it has grown
  size_t peak_ = 0;   // what shares in messages are of
  bool grows_ = false, grown_ = false;
  static constexpr size_t kMostNotices = 20;
  std::unordered_set<std::string> said_;
  std::vector<std::string> notices_;
  std::atomic<bool> has_notices_{false};
  std::function<void(const std::string&)> on_notice_;
  Failure next_failure_;
  bool others_at_start_ = false;
  std::vector<void*> ordinary_;  // memory of adopted storages that an op may still read
  std::chrono::steady_clock::time_point ordinary_until_;
  std::unordered_map<uint64_t, Need> needs_;  // the window an op needs, by op and input sizes
  Stats stats_;
  Failure last_failure_;
  std::atomic<Phase> phase_{Phase::kForward};
  uint64_t clock_ = 0;
  uint64_t next_block_ = 1;
  uint64_t session_ = 0;
  std::unique_ptr<Lifelines> lifelines_;  // of the children that may read the tier; in a child, its own
};

// What happened, why, and what to do about it.
std::string in_words(const Failure& failure);
std::string op_under_way(const ThreadState& thread);
// An allocator's failure as a Python exception of memfit's own types.
[[noreturn]] void raise(const Failure& failure);
std::string format_bytes(size_t bytes);

}  // namespace memfit
