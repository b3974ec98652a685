#include "session.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "recorder.h"
#include "values.h"

namespace memfit {

namespace {

// An arena below this is not worth a try.
constexpr size_t kLeastArena = size_t{1} << 20;

// What it owns stays where it is.
Block& stand_in() {
  static auto* block = [] {  // never destroyed: an arena may outlive every static
    auto* made = new Block;
    Recorder::pin(*made, nullptr);
    return made;
  }();
  return *block;
}

// Where the system refuses so many addresses, half as many will do, and so on, down to `least`.
std::shared_ptr<Arena> make_arena(Device& device, size_t addresses, size_t bytes, size_t least) {
  for (;; addresses = std::max(addresses / 2, least)) {
    try {
      return std::make_shared<Arena>(device.reserve(addresses, std::min(addresses, bytes)), addresses, device.alignment(), &stand_in());
    } catch (const std::bad_alloc&) {
      if (addresses <= least) throw;
    }
  }
}

// Without growth there are addresses beyond the limit, too: holes are punched for what lies there.
Memory make_memory(const SessionSettings& settings, size_t limit, size_t most) {
  Device& device = settings.device;
  const bool is_limited = settings.budget != 0;
  const size_t addresses = is_limited && !settings.grows ? 2 * limit : most;
  Memory memory{&device, make_arena(device, addresses, most, is_limited ? limit : kLeastArena), settings.tier, nullptr};
  if (is_limited) memory.arena->set_limit(limit, tell_owner);
  if (!device.is_asynchronous()) memory.lifelines = std::make_unique<Lifelines>();
  return memory;
}

// No other thread's op runs, as far as that can be had. The mutex is held.
class Standstill {
 public:
  explicit Standstill(Turns& turns) : turns_(turns) { turns_.stand_still(this_thread()); }
  ~Standstill() { turns_.move_again(); }
  Standstill(const Standstill&) = delete;
  Standstill& operator=(const Standstill&) = delete;

 private:
  Turns& turns_;
};

}  // namespace

Session::Session(Lasting& lasting, const SessionSettings& settings, size_t limit, size_t most)
    : lasting(lasting), memory(make_memory(settings, limit, most)) {
  ordinary.begin(settings.others);
  memory.device->on_exhausted([this] {
    memory.arena->release_free_pages();
    ordinary.give_up(*memory.device);
  });
  stats.budget_bytes = settings.budget;
  lasting.scratch.begin_session();
  lasting.collectives.record_to(&recorder);
  progress.restart_clock();
  growth.allow(settings.budget != 0 && settings.grows);
}

Recording Session::stop_recording() {
  complete_recording();
  return recorder.stop();
}

Recording Session::recording_so_far() {
  return recorder.so_far([this] { complete_recording(); });
}

void Session::complete_recording() {
  lasting.collectives.record_pending();
  for (const Block* block : lasting.books.all())
    if (lasting.books.is_of_session(*block) && !block->attached() && !block->temporary) recorder.is_raw(*block);
}

void Session::set_budget(size_t budget) {
  lasting.collectives.reap();
  Standstill standstill(lasting.turns);
  if (memory.is_closed) return;
  planned.drop();
  paging.take_down_idle();
  // Something in use by another thread may lie on it beyond the new limit: no shelf reaches there.
  memory.arena->dissolve_shelf(tell_owner);
  const size_t most = memory.device->limit(budget);
  const size_t strays = bytes_immovable_beyond(most);
  const size_t limit = strays < most ? most - strays : 0;
  const auto lies_beyond = [&](const Block* block) { return memory.holds(*block) && block->region != nullptr && block->region->end() > limit && residency.may_move(*block); };
  std::vector<Block*> beyond;
  std::copy_if(lasting.books.all().begin(), lasting.books.all().end(), std::back_inserter(beyond), lies_beyond);
  if (!beyond.empty() && compaction.all_fit_within(limit)) compaction.slide_all_down();
  for (Block* block : beyond)
    if (lies_beyond(block)) moves.evict(*block);
  memory.arena->set_limit(limit, tell_owner);
  memory.arena->release_free_pages();
  stats.budget_bytes = budget;  // before sizes are called small or not by it
  shelf.sort_by_size();
  stats.stray_bytes = strays;
  reset_peaks();
}

// Storages that cannot move and lie beyond the limit are paid for with a lower limit, beyond which more may lie.
size_t Session::bytes_immovable_beyond(size_t most) const {
  size_t strays = 0;
  for (size_t before = SIZE_MAX; before != strays;) {
    const size_t limit = strays < most ? most - strays : 0;
    before = std::exchange(strays, 0);
    for (const Block* block : lasting.books.all())
      if (memory.holds(*block) && !residency.may_move(*block) && block->region->end() > limit) strays += block->region->size;
  }
  return strays;
}

bool Session::use_plan(PlanTables plan, const std::vector<uint64_t>& resident) {
  lasting.collectives.reap();
  Standstill standstill(lasting.turns);
  if (!plan.remakes.empty()) begin_to_track();  // to the session's end: a plan may go in the midst of an op
  lasting.flags.repeats = !plan.remakes.drops.empty();
  paging.take_down_idle();
  return !memory.is_closed && planned.use(std::move(plan), resident);
}

// It is tried of calls whether they come out the same on a device that compares no bytes later on, and on no other.
void Session::allow_drops(double out_per_ns, double in_per_ns) {
  if (!memory.device->is_asynchronous()) return;
  costs.know_link(out_per_ns, in_per_ns);
  begin_to_track();
  lasting.flags.drops = true;
}

// What was kept while writes were not looked at is not to be believed.
void Session::begin_to_track() {
  if (!lasting.flags.tracks.exchange(true)) forget_values();
}

void Session::forget_values() {
  for (Block* block : lasting.books.all()) Values::end(*block);
}

void Session::check() const {
  memory.arena->check();
  for (const Block* block : lasting.books.all())
    if (memory.holds(*block) && (block->region->owner != block || block->region->size < block->bytes))
      throw std::logic_error("memfit: the arena's books are not in order: a storage's place is another's");
}

Stats Session::figures() const {
  Stats figures = stats;
  figures.record_bytes = held_for_records();
  figures.iterations = progress.iterations().count();
  const Ranges& ranges = memory.arena->ranges;
  for (const Block* block : lasting.books.all()) {
    if (!memory.holds(*block)) continue;
    if (block->pinned) figures.pinned_bytes += block->region->size;
    if (!block->pinned && block->collectives > 0) figures.collective_bytes += block->region->size;
  }
  figures.resident_bytes = memory.arena->used();
  figures.footprint_bytes = memory.arena->footprint();
  figures.peak_footprint_bytes = memory.arena->peak_footprint();
  figures.free_bytes = ranges.free_bytes();
  figures.largest_free_bytes = ranges.largest_free();
  planned.count(figures);
  paging.count(figures);
  figures.bytes_stored = memory.tier->store().bytes_stored();
  figures.bytes_loaded = memory.tier->store().bytes_loaded();
  figures.tier_used_bytes = memory.tier->used();
  figures.tier_footprint_bytes = memory.tier->footprint();
  return figures;
}

// Records that grow with the ops of an iteration, as opposed to those that a storage needs as long as it is alive.
size_t Session::held_for_records() const {
  return forecast.held() + recorder.held() + timeline.held() + needs.held() + planned.held();
}

void Session::reset_peaks() {
  memory.arena->reset_footprint();
  stats.peak_live_bytes = stats.live_bytes;
  stats.peak_resident_bytes = memory.arena->used();
}

void Session::close() {
  memory.is_closed = true;
  copies.settle_all();
  planned.drop();  // otherwise its zone would stay as long as anything that stays in the arena
  planned.end_swaps();
  recorder.stop();
  lasting.collectives.record_to(nullptr);
  timeline.stop();
  notices.take();
  forget_recipes();
}

// They were true as long as a plan had every op seen.
void Session::forget_recipes() {
  lasting.flags.repeats = lasting.flags.drops = false;
  lasting.flags.tracks = lasting.captures;
  if (!lasting.captures) forget_values();
}

void Session::become_inert(ThreadState& forking) {
  memory.is_closed = true;
  if (memory.lifelines) memory.lifelines->hold_on();
  if (!memory.tier->frozen()) memory.lifelines.reset();  // there is nothing in it to be read
  copies.abandon();
  paging.become_inert();
  planned.abandon();
  recorder.abandon();
  timeline.stop();
  progress.iterations().abandon();
  refusals.abandon();
  lasting.ghosts.record_to(nullptr);
  lasting.collectives.forget();
  // No other thread came along, and the forking one's op moves nothing any more.
  lasting.turns.forget(forking);
  forking.end([this](Block& block) { lasting.books.let_go(block); });
  forking.failure = Failure();
  if (memory.device->is_asynchronous()) keep_what_is_not_reachable();
}

// A child cannot even give a GPU's memory back.
void Session::keep_what_is_not_reachable() {
  new std::shared_ptr<Tier>(memory.tier);
  new std::shared_ptr<Arena>(memory.arena);
  for (const Block* block : lasting.books.all())
    if (block->arena != nullptr && block->arena != memory.arena) new std::shared_ptr<Arena>(block->arena);
}

}  // namespace memfit
