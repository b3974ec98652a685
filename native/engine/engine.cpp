// Engine: session start and stop, and the life of blocks.
#include "engine.h"

#include <algorithm>
#include <iterator>

#include "lock.h"
#include "observer.h"
#include "pointers.h"

namespace memfit {

namespace {

// For so long memory that was adopted stays readable if other threads were about when the session began.
constexpr std::chrono::seconds kGrace{2};
// An arena below this is not worth a try.
constexpr size_t kLeastArena = size_t{1} << 20;

// `may_be_less`: where the system refuses so many addresses, half as many will do, and so on.
std::shared_ptr<Arena> make_arena(Device& device, size_t limit, bool may_be_less) {
  for (;; limit /= 2) {
    try {
      return std::make_shared<Arena>(device, limit);
    } catch (const std::bad_alloc&) {
      if (!may_be_less || limit / 2 < kLeastArena) throw;
    }
  }
}

constexpr size_t kSignatures = 1024;  // that are kept in order
constexpr size_t kKinds = 4096;       // of iterations that are counted apart

}  // namespace

ThreadState& this_thread() {
  static thread_local ThreadState state;
  return state;
}

Engine& Engine::get() {
  static auto* engine = new Engine;  // never destroyed: storages may outlive every static
  return *engine;
}

void Engine::start(Device& device, size_t budget, size_t most, bool grows, std::shared_ptr<Tier> tier, bool others) {
  const size_t unlimited = most != 0 ? std::min(most, device.limit(0)) : device.limit(0);
  const size_t limit = budget == 0 ? unlimited : device.limit(budget);
  if (limit == 0) refuse_budget(budget, "it is less than one page of the device's memory, " + format_bytes(device.page()), device.page());
  try {
    Lock lock(*this);
    if (active()) throw std::runtime_error("a memfit session is active already; end it before starting another");
    install_fork_handlers();
    auto lifelines = device.is_asynchronous() ? nullptr : std::make_unique<Lifelines>();
    device.install();
    device_ = &device;
    if (std::find(devices_.begin(), devices_.end(), &device) == devices_.end()) devices_.push_back(&device);
    arena_ = make_arena(device, grows ? std::max(limit, unlimited) : limit, budget == 0 || grows);
    if (budget != 0 && arena_->ranges.most() < limit) arena_ = make_arena(device, limit, /*may_be_less=*/false);
    if (budget != 0) arena_->shrink(limit);
    tier_ = std::move(tier);
    lifelines_ = std::move(lifelines);
    forecast_ = Forecast();
    stats_ = Stats();
    needs_.clear();
    ++session_;
    for (Block* left_over : blocks_) left_over->position = left_over->forecast = -1;
    marks_.clear();
    steps_seen_ = false;
    period_ = 0;
    iteration_passed_ = false;
    iteration_hash_ = 0;
    signatures_.clear();
    signature_counts_.clear();
    gave_up_ = false;
    longest_iteration_ = 0;
    period_check_ = 512;
    last_failure_ = next_failure_ = Failure();
    forked_ = standstill_ = false;
    others_at_start_ = others;
    ordinary_until_ = std::chrono::steady_clock::now() + kGrace;
    stats_.budget = budget;
    grow_shelf(shelf_slack(), /*evicts=*/false);
    restart_clock();
    zone_owner_.pinned = shelf_owner_.pinned = true;
    scattered_ = grown_ = false;
    grows_ = budget != 0 && grows;
    said_.clear();
    notices_.clear();
    limit_ = budget != 0 ? limit : arena_->ranges.limit();
    peak_ = 0;
    active_.store(true);
  } catch (const std::bad_alloc&) {
    refuse_budget(budget, "the system does not give this process " + format_bytes(limit) +
                              " of addresses (ulimit -v, or vm.overcommit_memory = 2, may limit them)", 0);
  }
  callback_ = add_observer();
}

void Engine::refuse_budget(size_t budget, const std::string& why, size_t required_bytes) {
  Failure failure;
  failure.kind = Failure::Kind::kBudget;
  failure.required_bytes = required_bytes;
  failure.message = budget != 0 ? "memfit: the budget of " + format_bytes(budget) + " cannot be met"
                                : std::string("memfit: there is no memory left");
  failure.message += ": " + why;
  {
    Lock lock(*this);
    last_failure_ = failure;
  }
  raise(failure);
}

StopReport Engine::stop() {
  StopReport report;
  std::function<void()> finished;  // it has Python's objects: they go where nothing is locked
  std::vector<StorageRef> alive = live_storages();
  {
    Lock lock(*this);
    if (!active()) return report;
    active_.store(false);
    finished.swap(on_period_);
    watches_meta_.store(false);
    settle_all();
    drop_plan();  // otherwise its zone would stay as long as anything that stays in the arena
    standstill_ = false;
    turn_.notify_all();
    if (recorder_.on()) recorder_.stop();
    const bool reachable = !forked_ || !device_->is_asynchronous();
    if (reachable) restore_all(report);
    end_swapping();
    free_ordinary(true);
    timeline_.stop();
    for (std::unique_ptr<Lane>& lane : lanes_) lane.reset();
    if (reachable) device_->finish();
    if (reachable) device_->session_ended(report.left_in_arena != 0);
    arena_.reset();
    tier_->freeze();  // what could not be read back lies where it does: a child may have better luck
    tier_.reset();
    lifelines_.reset();
  }
  remove_observer(callback_);
  return report;
}

// The CPU's allocator takes whatever no other device knows.
Device& Engine::device_of(const void* address) const {
  for (Device* device : devices_)
    if (device != &host() && device->allocated(address)) return *device;
  return host();
}

void Engine::set_budget(size_t budget) {
  Lock lock(*this);
  if (!governs()) return;
  Standstill standstill(*this);
  if (!active()) return;
  drop_plan();
  // Something in use by another thread may lie on it beyond the new limit: no shelf reaches there.
  arena_->dissolve_shelf(tell_owner);
  const size_t most = device_->limit(budget);
  size_t strays = 0, limit = most;
  // What cannot move and lies beyond the limit is paid for with a lower limit.
  auto immovable_beyond = [&](const Block* b) {
    return b->arena == arena_ && b->resident() && !may_move(*b) && b->region->end() > limit;
  };
  for (size_t before = SIZE_MAX; before != strays;) {
    before = strays;
    strays = 0;
    for (const Block* block : blocks_)
      if (immovable_beyond(block)) strays += block->region->size;
    limit = strays < most ? most - strays : 0;
  }
  for (Block* block : std::vector<Block*>(blocks_))
    if (block->arena == arena_ && may_move(*block) && block->region->end() > limit) evict(*block);
  arena_->shrink(limit);
  sort_by_size();
  limit_ = arena_->ranges.limit();
  grown_ = false;
  stats_.strays = strays;
  stats_.budget = budget;
  reset_peaks_locked();
}

void Engine::set_peak(size_t bytes) {
  Lock lock(*this);
  peak_ = bytes;
}

void Engine::boundary() {
  Lock lock(*this);
  if (!governs()) return;
  steps_seen_ = true;
  period_ = 0;
  iteration_ends();
}

void Engine::iteration_ends() {
  longest_iteration_ = std::max(longest_iteration_, forecast_.ops());
  forecast_.on_boundary(blocks_);
  signatures_.push_back(iteration_hash_);
  if (signatures_.size() > kSignatures) signatures_.pop_front();
  if (signature_counts_.size() < kKinds || signature_counts_.count(iteration_hash_) != 0) ++signature_counts_[iteration_hash_];
  iteration_hash_ = 0;
  ++course_;
  if (arena_->plan() != nullptr && !arena_->plan()->begun()) carry_over();
  if (arena_->plan() != nullptr) arena_->plan()->iteration_ends();
  if (swaps_) swaps_->iteration_ends();
  if (timeline_.on()) timeline_.iteration_ends(device_->stamp());
  if (recorder_.on()) {
    marks_.push_back(recorder_.op_count());
    tick_marks_.push_back(recorder_.tick_count());
  }
  ++stats_.iterations;
  if (std::exchange(gave_up_, false)) record_anew();
}

std::vector<uint64_t> Engine::signatures() {
  Lock lock(*this);
  return {signatures_.begin(), signatures_.end()};
}

std::unordered_map<uint64_t, uint64_t> Engine::signature_counts() {
  Lock lock(*this);
  return signature_counts_;
}

std::array<int64_t, 3> Engine::in_use() {
  Lock lock(*this);
  std::array<int64_t, 3> sums{frames_, 0, 0};
  for (const Block* block : blocks_) {
    sums[1] += block->active - (block->copy ? 1 : 0);
    sums[2] += block->aside;
  }
  return sums;
}

void Engine::on_period(std::function<void()> action) {
  Lock lock(*this);
  on_period_.swap(action);  // what it was goes when nothing is locked any more
}

Stats Engine::stats() {
  Lock lock(*this);
  Stats stats = stats_;
  stats.records = held_for_records();
  if (arena_) {
    const Ranges& ranges = arena_->ranges;
    stats.resident = arena_->used();
    stats.footprint = arena_->footprint();
    stats.peak_footprint = arena_->peak_footprint();
    stats.free_bytes = ranges.free_bytes();
    stats.largest_free = ranges.largest_free();
    count_planned(stats);
  }
  if (tier_) {
    stats.tier_used = tier_->used();
    stats.tier_footprint = tier_->footprint();
  }
  return stats;
}

// What grows with the ops of an iteration: not what a storage needs as long as it is alive.
size_t Engine::held_for_records() const {
  const size_t need = sizeof(*needs_.begin()) + 2 * sizeof(void*);  // with its node's links
  size_t held = forecast_.held() + recorder_.held() + timeline_.held() + needs_.size() * need;
  if (swaps_) held += swaps_->held();
  return arena_ && arena_->plan() != nullptr ? held + arena_->plan()->held() : held;
}

size_t Engine::alignment() {
  Lock lock(*this);
  return arena_ ? arena_->ranges.alignment() : 1;
}

size_t Engine::page() {
  Lock lock(*this);
  return active() ? device_->page() : 1;
}

void Engine::fail_next(const std::string& message, size_t required_bytes) {
  Lock lock(*this);
  next_failure_.kind = Failure::Kind::kBudget;
  next_failure_.message = message;
  next_failure_.required_bytes = required_bytes;
  last_failure_ = next_failure_;
}

void Engine::note_failure_source(const std::string& source) {
  Lock lock(*this);
  last_failure_.source = source;
}

void Engine::reject_period() {
  Lock lock(*this);
  steps_seen_ = true;
  period_ = 0;
  marks_.clear();
}

Failure Engine::last_failure() {
  Lock lock(*this);
  return last_failure_;
}

// Times that are still to be read are counted from its last start.
void Engine::restart_clock() {
  if (recorder_.on() || timeline_.on()) return;
  if (!settled_.empty()) device_->finish();
  account();
  device_->restart_clock();
}

void Engine::start_recording() {
  Lock lock(*this);
  if (!governs()) return;
  record_anew();
}

void Engine::record_anew() {
  gave_up_ = false;
  marks_.clear();
  tick_marks_.clear();
  first_recorded_block_ = next_block_;
  ++recording_number_;
  restart_clock();
  std::vector<Block*> own;  // what an earlier session has left behind lies in an arena of its own
  std::copy_if(blocks_.begin(), blocks_.end(), std::back_inserter(own), [&](const Block* block) { return block->session == session_; });
  recorder_.start(*device_, own);
  if (!watches_meta()) return;
  for (const Block* ghost : ghosts_) recorder_.ghost_before(*ghost);
}

Recording Engine::stop_recording() {
  Lock lock(*this);
  return recorder_.stop();
}

std::vector<int64_t> Engine::tick_marks() {
  Lock lock(*this);
  return tick_marks_;
}

std::vector<int64_t> Engine::iteration_marks() {
  Lock lock(*this);
  return marks_;
}

}  // namespace memfit
