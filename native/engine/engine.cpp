// Engine: session start and stop, and the life of blocks.
#include "engine.h"

#include <algorithm>
#include <iterator>

#include "lock.h"
#include "observer.h"
#include "pointers.h"

namespace memfit {

namespace {

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
    memory_.device = &device;
    if (std::find(devices_.begin(), devices_.end(), &device) == devices_.end()) devices_.push_back(&device);
    memory_.arena = make_arena(device, grows ? std::max(limit, unlimited) : limit, budget == 0 || grows);
    if (budget != 0 && memory_.arena->ranges.most() < limit) memory_.arena = make_arena(device, limit, /*may_be_less=*/false);
    if (budget != 0) memory_.arena->shrink(limit);
    memory_.tier = std::move(tier);
    memory_.lifelines = std::move(lifelines);
    forecast_ = Forecast();
    stats_ = Stats();
    needs_ = Needs();
    iterations_ = Iterations();
    books_.begin_session();
    for (Block* left_over : books_.all()) left_over->position = left_over->forecast = -1;
    gave_up_ = false;
    last_failure_ = next_failure_ = Failure();
    forked_ = false;
    turns_.open();
    ordinary_.begin(others);
    stats_.budget = budget;
    shelf_.begin();
    restart_clock();
    growth_.allow(budget != 0 && grows);
    notices_.begin_anew();
    growth_.set_limit(budget != 0 ? limit : memory_.arena->ranges.limit());
    refusals_.set_peak(0);
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
    finished = iterations_.tell(nullptr);
    ghosts_.set_watched(false);
    copies_.settle_all();
    planned_.drop();  // otherwise its zone would stay as long as anything that stays in the arena
    turns_.close();
    if (recorder_.on()) recorder_.stop();
    const bool reachable = !forked_ || !memory_.device->is_asynchronous();
    if (reachable) restore_all(report);
    planned_.end_swaps();
    ordinary_.free_all(*memory_.device);
    timeline_.stop();
    copies_.close();
    if (reachable) memory_.device->finish();
    if (reachable) memory_.device->session_ended(report.left_in_arena != 0);
    memory_.arena.reset();
    memory_.tier->freeze();  // what could not be read back lies where it does: a child may have better luck
    memory_.tier.reset();
    memory_.lifelines.reset();
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
  planned_.drop();
  // Something in use by another thread may lie on it beyond the new limit: no shelf reaches there.
  memory_.arena->dissolve_shelf(tell_owner);
  const size_t most = memory_.device->limit(budget);
  size_t strays = 0, limit = most;
  // What cannot move and lies beyond the limit is paid for with a lower limit.
  auto immovable_beyond = [&](const Block* b) {
    return memory_.holds(*b) && !residency_.may_move(*b) && b->region->end() > limit;
  };
  for (size_t before = SIZE_MAX; before != strays;) {
    before = strays;
    strays = 0;
    for (const Block* block : books_.all())
      if (immovable_beyond(block)) strays += block->region->size;
    limit = strays < most ? most - strays : 0;
  }
  for (Block* block : std::vector<Block*>(books_.all()))
    if (block->arena == memory_.arena && residency_.may_move(*block) && block->region->end() > limit) moves_.evict(*block);
  memory_.arena->shrink(limit);
  stats_.budget = budget;  // before sizes are called small or not by it
  shelf_.sort_by_size();
  growth_.set_limit(memory_.arena->ranges.limit());
  stats_.strays = strays;
  reset_peaks_locked();
}

void Engine::allow_growth(bool allowed) {
  Lock lock(*this);
  growth_.allow(allowed);
}

void Engine::say() {
  if (!notices_.any() || !is_python_thread()) return;
  std::vector<std::string> notices;
  {
    Lock lock(*this);
    notices = notices_.take();
  }
  const std::string source = source_text(current_source());
  for (const std::string& notice : notices)
    if (notices_.say()) notices_.say()("memfit: " + notice + (source.empty() ? "" : " (" + source + ")"));
}

void Engine::set_peak(size_t bytes) {
  Lock lock(*this);
  refusals_.set_peak(bytes);
}

void Engine::boundary() {
  Lock lock(*this);
  if (!governs()) return;
  iterations_.on_step();
  iteration_ends();
}

void Engine::iteration_ends() {
  iterations_.end(forecast_.ops());
  forecast_.on_boundary(books_.all());
  planned_.iteration_ends();
  if (timeline_.on()) timeline_.iteration_ends(memory_.device->stamp());
  if (recorder_.on()) iterations_.mark(recorder_);
  if (std::exchange(gave_up_, false)) record_anew();
}

std::vector<uint64_t> Engine::signatures() {
  Lock lock(*this);
  return iterations_.signatures();
}

std::unordered_map<uint64_t, uint64_t> Engine::signature_counts() {
  Lock lock(*this);
  return iterations_.signature_counts();
}

std::array<int64_t, 3> Engine::in_use() {
  Lock lock(*this);
  std::array<int64_t, 3> sums{turns_.begun(), 0, 0};
  for (const Block* block : books_.all()) {
    sums[1] += block->active - (block->copy ? 1 : 0);
    sums[2] += block->aside;
  }
  return sums;
}

void Engine::on_period(std::function<void()> action) {
  Lock lock(*this);
  action = iterations_.tell(std::move(action));  // what it was goes when nothing is locked any more
}

Stats Engine::stats() {
  Lock lock(*this);
  Stats stats = stats_;
  stats.records = held_for_records();
  stats.iterations = iterations_.count();
  if (memory_.arena) {
    const Ranges& ranges = memory_.arena->ranges;
    stats.resident = memory_.arena->used();
    stats.footprint = memory_.arena->footprint();
    stats.peak_footprint = memory_.arena->peak_footprint();
    stats.free_bytes = ranges.free_bytes();
    stats.largest_free = ranges.largest_free();
    planned_.count(stats);
  }
  if (memory_.tier) {
    stats.tier_used = memory_.tier->used();
    stats.tier_footprint = memory_.tier->footprint();
  }
  return stats;
}

// What grows with the ops of an iteration: not what a storage needs as long as it is alive.
size_t Engine::held_for_records() const {
  return forecast_.held() + recorder_.held() + timeline_.held() + needs_.held() + planned_.held();
}

size_t Engine::alignment() {
  Lock lock(*this);
  return memory_.arena ? memory_.arena->ranges.alignment() : 1;
}

size_t Engine::page() {
  Lock lock(*this);
  return active() ? memory_.device->page() : 1;
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
  iterations_.reject_period();
}

Failure Engine::last_failure() {
  Lock lock(*this);
  return last_failure_;
}

// Times that are still to be read are counted from its last start.
void Engine::restart_clock() {
  if (recorder_.on() || timeline_.on()) return;
  copies_.finish();
  memory_.device->restart_clock();
}

void Engine::start_recording() {
  Lock lock(*this);
  if (!governs()) return;
  record_anew();
}

void Engine::record_anew() {
  gave_up_ = false;
  iterations_.forget_marks();
  restart_clock();
  std::vector<Block*> own;  // what an earlier session has left behind lies in an arena of its own
  std::copy_if(books_.all().begin(), books_.all().end(), std::back_inserter(own), [&](const Block* block) { return books_.is_of_session(*block); });
  recorder_.start(*memory_.device, own);
  if (ghosts_.are_watched()) ghosts_.record_all();
}

Recording Engine::stop_recording() {
  Lock lock(*this);
  return recorder_.stop();
}

std::vector<int64_t> Engine::tick_marks() {
  Lock lock(*this);
  return iterations_.tick_marks();
}

std::vector<int64_t> Engine::iteration_marks() {
  Lock lock(*this);
  return iterations_.marks();
}

bool Engine::use_plan(PlanTable table, SwapTable swaps, const std::vector<uint64_t>& resident, bool at_boundary) {
  Lock lock(*this);
  if (!governs()) return false;
  Standstill standstill(*this);
  return active() && planned_.use(std::move(table), std::move(swaps), resident, at_boundary);
}

bool Engine::has_plan() {
  Lock lock(*this);
  return active() && planned_.is_in_force();
}

void Engine::start_timeline() {
  Lock lock(*this);
  if (!governs()) return;
  timeline_.stop();
  restart_clock();
  timeline_.start();
}

Timeline Engine::stop_timeline() {
  Lock lock(*this);
  copies_.finish();
  timeline_.stop();
  timeline_.resolve(*memory_.device);
  return std::move(timeline_);
}

void Engine::watch_meta() {
  Ghosts::watch();
  Lock lock(*this);
  ghosts_.set_watched(active());
}

Block* Engine::allocate_ghost(size_t bytes) {
  if (bytes == 0 || !ghosts_.are_watched()) return nullptr;
  ThreadState& thread = this_thread();
  const int64_t source = thread.depth > 0 ? thread.source : (recorder_.on() ? current_source() : -1);
  Lock lock(*this);
  return ghosts_.allocate(thread, bytes, source);
}

void Engine::release_ghost(Block* ghost) {
  Lock lock(*this);
  ghosts_.release(ghost);
}

}  // namespace memfit
