#include "preparing.h"

#include <algorithm>
#include <utility>

#include "observer.h"
#include "operands.h"
#include "pointers.h"
#include "stopwatch.h"

namespace memfit {

void Preparing::make_ready(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, size_t announced,
                           bool joins) {
  bool limited = on_.stats.budget_bytes != 0;
  if (thread.missing.empty() && thread.foreign.empty() && !(joins && limited)) return;
  if (joins && limited && (is_tight(thread) || !on_.needs.knows(thread))) thread.tensors = describe(inputs);
  Stopwatch stopwatch(thread.waited_ns, nullptr, on_.recorder.on());
  bring_in_missing(thread);
  // (One that carries out collectives takes no turns: the others wait for these, and a plan is not dropped for its sake.)
  if (!joins || on_.memory.is_closed || !limited || thread.carries_out) return;
  on_.admission.take_turn(thread, std::max(on_.needs.wanted(thread), announced), [&] { bring_in_missing(thread); });
  if (!on_.memory.is_closed && op.reads_data) make_roomy(thread, announced);
}

void Preparing::bring_in_missing(ThreadState& thread) {
  std::vector<Block*> missing = std::exchange(thread.missing, {});
  const size_t more = on_.needs.wanted(thread);
  while (!missing.empty() || !thread.foreign.empty()) {
    thread.stepped_aside = false;
    bring_in(thread, missing, more);
    adopt_foreign(thread, more);
    if (!thread.stepped_aside || thread.failure.kind != Failure::Kind::kNone) break;
    for (Block* block : thread.touched)  // what came in first may have left meanwhile
      if (!block->dead && !block->resident()) missing.push_back(block);
  }
}

// The largest first.
void Preparing::bring_in(ThreadState& thread, std::vector<Block*>& missing, size_t more) {
  std::sort(missing.begin(), missing.end(), [](Block* a, Block* b) { return a->bytes > b->bytes; });
  for (Block* block : missing) {
    auto comes_in = [&] { return block->dead || on_.room.make_available(*block, more); };
    if (!on_.room.with_room(thread, block->bytes, block, comes_in)) set_unavailable(*block, in_words(thread.failure));
  }
  missing.clear();
}

void Preparing::adopt_foreign(ThreadState& thread, size_t more) {
  std::vector<c10::Storage> foreign;
  foreign.swap(thread.foreign);
  if (!foreign.empty() && on_.memory.device->is_aside()) on_.memory.device->lead();  // where they may have been written
  for (c10::Storage& storage : foreign) {
    auto is_ours = [&] { return on_.memory.is_closed || on_.books.find(*storage.unsafeGetStorageImpl()) != nullptr; };
    on_.room.with_room(thread, storage.nbytes(), /*input=*/nullptr, [&] { return is_ours() || on_.adoption.into_arena(storage, more); });
    if (Block* block = on_.books.find(*storage.unsafeGetStorageImpl())) on_.uses.use(thread, *block, /*write=*/true);
    on_.books.bury(Books::StorageRef::reclaim_copy(storage.unsafeGetStorageImpl()));
  }
}

bool Preparing::is_tight(ThreadState& thread) const {
  return !thread.missing.empty() || on_.memory.arena->ranges.largest_free() < on_.needs.wanted(thread);
}

// An op's own storages must not cut up the space it will need: once it runs they cannot be moved. What is not known
// to need less may need everything.
void Preparing::make_roomy(ThreadState& thread, size_t announced) {
  const bool known = on_.needs.knows(thread), is_planned = on_.memory.arena->plan() != nullptr;
  std::optional<size_t> unplaced = on_.planned.clear_places(thread);
  if (!known) unplaced.reset();  // it may need more than that
  if (is_planned && on_.planned.maps_any(thread)) return;  // it has as much as the plan could give it
  if (on_.memory.arena->ranges.largest_free() >= on_.needs.wanted(thread) && (known || is_planned)) return;
  // (A factory needs what it makes.)
  const bool is_clear = known || thread.recomputing || (announced != 0 && thread.input_bytes == 0);
  if (is_planned && is_clear && on_.planned.has_room(thread, unplaced, std::max(on_.needs.wanted(thread), announced))) return;
  if (is_planned) on_.planned.drop();
  try {
    clear_window(thread, announced, known);
  } catch (const TierFailure&) {
    // It was only to help: the op may still find room, and says what is wrong if it does not.
  }
}

void Preparing::clear_window(ThreadState& thread, size_t announced, bool known) {
  on_.shelf.gather();
  if (known) on_.memory.arena->trim_shelf(0);
  if (stays_whole(thread, announced, known)) return;
  on_.memory.arena->trim_shelf(0);
  const size_t want = known ? on_.needs.wanted(thread) : SIZE_MAX;
  const bool is_crowded = !known && lacks_the_shelf(thread);
  const size_t at_least = std::max(announced, known ? want : 0);
  if (!is_crowded && is_roomy(thread, want) && on_.residency.has_window(at_least, /*running=*/true)) return;
  on_.residency.consolidate(thread.touched);
  if (!is_roomy(thread, want)) on_.shelf.evict_scattered();
  if (is_crowded || !on_.residency.has_window(at_least, /*running=*/true)) on_.room.take_shelf(thread);
}

// As long as all that is alive fits, nothing leaves for the op before it asks for bytes: its own storages and whatever else
// may move slide together, so that they do not cut up what is free. (Where nothing is away, all may fit.)
bool Preparing::stays_whole(ThreadState& thread, size_t announced, bool known) {
  const bool is_guessed = !known && announced == 0;
  const size_t least = known || is_guessed ? std::max(announced, on_.needs.wanted(thread)) : announced;
  if (!on_.compaction.all_fit(least) && on_.compaction.any_is_away()) return false;
  // (What it makes beside so much may have to be mapped. Frames lie in one stretch, and its own storages stay while it runs.)
  const bool may_need_frames = is_guessed && thread.maps && 2 * thread.input_bytes > on_.memory.arena->ranges.limit();
  if (may_need_frames && !is_roomy(thread, SIZE_MAX)) return false;
  size_t whole = on_.compaction.widest_hole(thread.touched);
  const size_t spare = known ? 0 : whole / 64;  // of which the shelf needs some, if the op makes a number
  if ((whole < least || !known) && on_.shelf.close_ranks(thread.touched, spare)) whole = on_.compaction.widest_hole(thread.touched);
  const size_t free = on_.compaction.widest_free();
  const size_t wanted = known ? std::min(least, whole) : whole - whole / 64;
  // (With half of it, and more than the op is thought to need, the rest is had by whatever may leave beside it.)
  const bool is_ample = !known && free >= std::max(least, whole / 2) && on_.residency.has_window(wanted, /*running=*/true);
  if (free < wanted && !is_ample) on_.compaction.make_hole(wanted, thread.touched);
  return is_guessed || on_.residency.has_window(least, /*running=*/true) || on_.shelf.make_hole(least);
}

// What is on the shelf stays while the op runs, and is much; as it is, the op may need more than is left beside that.
bool Preparing::lacks_the_shelf(ThreadState& thread) const {
  const size_t used = on_.memory.arena->shelf_used(), limit = on_.memory.arena->ranges.limit();
  return used > limit / 64 && used + thread.input_bytes + on_.needs.wanted(thread) > limit;
}

// There is a stretch of `want` bytes that can be cleared, or one that is as long as any could be.
bool Preparing::is_roomy(const ThreadState& thread, size_t want) const {
  size_t taken = on_.memory.arena->shelf_used();  // of the shelf, what is on it: the rest of it can be given back
  for (const Block* block : thread.touched)
    if (on_.memory.holds(*block) && !on_.memory.arena->on_shelf(block->region)) taken += block->region->size;
  size_t rest = on_.memory.arena->ranges.limit() - std::min(taken, on_.memory.arena->ranges.limit());
  return on_.residency.has_window(std::min(want, rest - rest / 64), /*running=*/true);
}

}  // namespace memfit
