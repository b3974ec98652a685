#include "paging.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "../observer.h"
#include "../pointers.h"
#include "../stopwatch.h"
#include "rows.h"

namespace memfit {

namespace {

constexpr size_t kLeastMapped = size_t{16} << 10;  // smaller storages find room
constexpr size_t kLeastLimit = size_t{1} << 20;    // below it frames would take too large a part
constexpr size_t kShareForHoles = 32;
constexpr size_t kEnoughOf = 2;  // what is swept, by what frames have room for: more is mapped until there are so many

// Those first that always are, then the largest.
std::vector<Block*> candidates(const ThreadState& thread, const Memory& memory) {
  std::vector<Block*> found;
  for (Block* block : thread.touched) {
    const bool is_free = !block->dead && !block->mapped && !block->pinned && !block->held && !block->discarded && !block->small;
    const bool may_go = !block->resident() || (memory.holds(*block) && block->active == 1);
    if (is_free && may_go && block->bytes >= kLeastMapped && storage_behind(*block) != nullptr) found.push_back(block);
  }
  std::sort(found.begin(), found.end(), [](const Block* a, const Block* b) {
    return std::make_tuple(a->stays_mapped, a->bytes, a->id) > std::make_tuple(b->stays_mapped, b->bytes, b->id);
  });
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

// Where the block's bytes may be written to: elsewhere than where a child may still read them.
Extent writable(const Block& block, Memory& memory) {
  if (memory.tier->frozen()) memory.thaw_if_alone();
  return memory.tier->frozen() ? block.tier->claim(block.bytes) : block.extent;
}

void no_longer_missing(ThreadState& thread, const Block* block) {
  thread.missing.erase(std::remove(thread.missing.begin(), thread.missing.end(), block), thread.missing.end());
}

// No other op uses what is mapped, and this one has yet to begin.
bool is_undisturbed(const ThreadState& thread, const Books& books) {
  return std::none_of(books.all().begin(), books.all().end(), [&](const Block* block) {
    const auto& own = thread.touched;
    return block->mapped && block->active > (std::find(own.begin(), own.end(), block) != own.end() ? 1 : 0);
  });
}

}  // namespace

bool Paging::is_on_within(size_t limit) const {
  return when_ != When::kNever && (is_direct() || limit >= kLeastLimit) && !on_.memory.is_closed;
}

// Not one whose kernel is not torch's own: it may give the addresses to a system call, which no fault is served for.
bool Paging::may_map(const OpInfo& op) const {
  return is_on() && !op.writes_any && !op.keeps_pointers && !op.is_view;
}

// What the storages of running ops may take, at the most.
size_t Paging::room() const {
  const size_t limit = on_.memory.arena->ranges.limit();
  return limit - std::min(limit, on_.refusals.immovable_bytes() + frames_.taken());
}

void Paging::prepare(ThreadState& thread, const OpInfo& op) {
  thread.maps = !thread.is_apart() && may_map(op);  // what is tried, or made again, does without where there is no room
  if (!thread.maps) return;
  thread.access = op.access;
  thread.operand_bytes = thread.input_bytes;
  map_planned(thread);
  size_t rest = seen_in_arena(thread);
  const bool is_known = on_.needs.knows(thread);
  const size_t need = is_known ? on_.needs.wanted(thread) : 0;
  const bool is_sure = 2 * (rest + need) <= on_.memory.arena->ranges.limit();
  if (is_sure && !any_stays_ && when_ != When::kAlways) return;
  if (!is_sure && frames_.is_open() && rest + need > this->room()) {
    free_frames(thread);
    rest = seen_in_arena(thread);
  }
  const size_t frames = frames_.is_open() ? 0 : frames_.bytes(), room = is_sure ? SIZE_MAX : this->room();
  // (What it makes is to find frames, too, if it needs them.)
  const size_t holes = is_known || is_sure || !frames_.is_needed() ? 0 : on_.memory.arena->ranges.limit() / kShareForHoles;
  const size_t most = room - std::min(room, frames + holes);
  bool fits = rest + need <= (is_known ? room : most);
  // (What it allocates has half of what is left, if it is not known or finds no room anyway; or is mapped.)
  const bool has_its_room = is_known && need <= most;
  const auto spare = [&] {
    const size_t left = is_sure || thread.access != Access::kSweeps ? 0 : most - std::min(most, rest + (has_its_room ? need : 0));
    return has_its_room ? left : left / 2;
  };
  std::vector<Block*> chosen;
  size_t mapped = 0;
  for (Block* block : candidates(thread, on_.memory)) {
    const bool is_enough = fits && (thread.access != Access::kSweeps || kEnoughOf * (frames + spare()) >= mapped);
    if (is_enough && !block->stays_mapped && when_ != When::kAlways) continue;
    chosen.push_back(block);
    mapped += block->bytes;
    rest -= on_.memory.arena->round(block->bytes);
    fits = rest + std::min(need, most) <= most;
  }
  map_or_go_without(thread, chosen, frames + spare());
  if (!chosen.empty() && frames_.is_open()) map_or_go_without(thread, without_stretch(thread), frames_.bytes());
}

// What would find no stretch beside the frames.
std::vector<Block*> Paging::without_stretch(const ThreadState& thread) const {
  std::vector<Block*> found;
  for (Block* block : candidates(thread, on_.memory))
    if (!block->resident() && !on_.residency.has_window(on_.memory.arena->round(block->bytes), /*running=*/true)) found.push_back(block);
  return found;
}

// If there is no room otherwise, that is what fails.
void Paging::map_or_go_without(ThreadState& thread, const std::vector<Block*>& chosen, size_t frames) try {
  map_those(thread, chosen, frames);
} catch (const TierFailure& error) {
  on_.notices.add("unmapped", error.what());
}

void Paging::stand_by(ThreadState& thread, const OpInfo& op) const {
  thread.maps = !thread.is_apart() && may_map(op);
  thread.access = Access::kStream;
  thread.operand_bytes = thread.input_bytes;
}

// The bytes that are not mapped of the op's inputs, and of what earlier calls of it have made.
size_t Paging::seen_in_arena(const ThreadState& thread) const {
  size_t bytes = thread.operand_bytes + thread.window.live();
  std::vector<const Block*> mapped;
  for (const Block* block : thread.touched)
    if (block->mapped && std::find(mapped.begin(), mapped.end(), block) == mapped.end()) mapped.push_back(block);
  for (const Block* block : mapped) bytes -= std::min(bytes, on_.memory.arena->round(block->bytes));
  return bytes;
}

// What the plan has brought in instead stays there.
void Paging::map_planned(ThreadState& thread) {
  if (!on_.planned.is_in_force()) return;
  std::vector<Block*> found;
  for (Block* block : candidates(thread, on_.memory))
    if (!block->resident() && on_.planned.maps(thread, *block)) found.push_back(block);
  map_or_go_without(thread, found, frames_.bytes());
}

// What was mapped before the op, and has frames that are in its way, may be mapped anew.
void Paging::free_frames(ThreadState& thread) {
  for (Block* block : std::vector<Block*>(on_.books.all())) try {
      const bool is_own = block->active == 1 && std::find(thread.touched.begin(), thread.touched.end(), block) != thread.touched.end();
      if (block->mapped && (block->active == 0 || is_own) && take_down(*block) && is_own) thread.missing.push_back(block);
    } catch (const TierFailure&) {
      // It stays where it is.
    }
  frames_.give_back();
}

// All of them before frames are looked for: one that is still there may be in their way. Returns those that are away.
std::vector<Block*> Paging::leave_arena(ThreadState& thread, const std::vector<Block*>& chosen) {
  std::vector<Block*> away;
  for (Block* block : chosen) {
    if (block->copy) on_.planned.settle(*block);
    if (block->resident()) {
      if (!on_.moves.evict(*block)) continue;
      thread.missing.push_back(block);
    }
    away.push_back(block);
  }
  return away;
}

void Paging::map_those(ThreadState& thread, const std::vector<Block*>& chosen, size_t frames) {
  size_t to_come = 0;  // of those that are to lie in the arena
  for (const Block* block : thread.missing)
    if (std::find(chosen.begin(), chosen.end(), block) == chosen.end()) to_come += on_.memory.arena->round(block->bytes);
  for (Block* block : leave_arena(thread, chosen)) {
    const size_t most = block->stays_mapped ? std::max(frames, frames_.bytes_for_rows()) : frames;
    bool is_open = frames_.open(thread, most, to_come) || frames_.open_most(thread, frames, to_come);
    if (!is_open && thread.starting && on_.shelf.clear(thread.touched)) is_open = frames_.open(thread, frames, to_come);
    if (!is_open && !frames_.open(thread, std::min(frames, frames_.bytes())) && frames_.is_needed()) return;
    const bool is_now = block->written_by == thread.serial, is_written = is_now || block->stays_mapped;
    const Extent extent = is_written && frames_.is_needed() ? writable(*block, on_.memory) : block->extent;
    try {
      if (!map(*block, block->stays_mapped ? Access::kRows : thread.access, extent, block->extent)) return;
    } catch (const TierFailure& error) {
      if (frames_.is_needed()) throw;
      on_.refusals.refuse_by_tier(thread, error.what());
      set_unavailable(*block, in_words(thread.failure));
      return no_longer_missing(thread, block);
    }
    block->dirty |= is_now;  // it has just been written out for that
    on_.books.arrives(*block, *storage_behind(*block));
    thread.input_bytes -= on_.memory.arena->round(block->bytes);
    no_longer_missing(thread, block);
  }
}

void Paging::bring_rows(const ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) const {
  if (!frames_.is_needed() || !frames_.is_open()) return;
  const Rows rows = rows_used_by(op, inputs);
  if (rows.table == nullptr) return;
  const Block* block = on_.books.find(*rows.table);
  if (block == nullptr || !block->mapped) return;
  block->mapped->bring(rows.offsets, rows.row_bytes, {rows.are_written, is_undisturbed(thread, on_.books)});
}

// What may be written over elsewhere than where the bytes are is its own place from now on; they are kept until all of
// them are there. False: ops reach them nowhere.
bool Paging::map(Block& block, Access access, Extent extent, Extent source) try {
  block.mapped = frames_.map(block, access, extent, source);
  if (!block.mapped) return false;
  block.extent = extent;
  mapped_bytes_ += block.bytes;
  ++on_.stats.mapped_storages;
  return true;
} catch (...) {
  if (extent != block.extent) block.tier->release(extent);
  throw;
}

bool Paging::is_better_mapped(ThreadState& thread, size_t bytes) const {
  if (!thread.maps || !frames_.is_needed() || frames_.is_open() || bytes < kLeastMapped) return false;
  if (on_.needs.knows(thread) && thread.window.live() + bytes <= on_.needs.wanted(thread)) return false;
  if (thread.window.live() + bytes <= thread.announced) return false;  // nothing comes after it that could be in need
  const size_t want = thread.input_bytes + thread.window.live() + on_.memory.arena->round(bytes);
  // (Something small may come before what finds no room.)
  return 2 * want > on_.memory.arena->ranges.limit() && want + frames_.bytes() + kLeastMapped > room();
}

// What is gone through again and again has all the room that is left.
size_t Paging::frames_beside(const ThreadState& thread) const {
  const size_t used = thread.input_bytes + thread.window.live(), room = this->room();
  return thread.access == Access::kSweeps ? std::max(frames_.bytes(), room - std::min(room, used)) : frames_.bytes();
}

bool Paging::map_new(ThreadState& thread, Block& block) {
  if (!thread.maps || (block.small && !frames_.is_on_gpu())) return false;  // (a GPU's kernels take scratch, which is small)
  if (thread.is_slicing) return false;  // system calls read from the tier into what slices are, and write from it
  // (What an op does with less of, after its result, is better refused.)
  if (thread.adapting && thread.window.live() != 0) return false;
  const bool is_open = frames_.open_most(thread, frames_beside(thread)) || frames_.open(thread, frames_.fewest_bytes());
  if (!is_open && frames_.is_needed()) return false;
  block.tier = on_.memory.tier;
  const Extent extent = block.tier->claim(block.bytes);
  if (map(block, thread.access, extent, /*source=*/nullptr)) return true;
  block.tier->release(extent);
  return false;
}

bool Paging::make_room() { return frames_.shrink(); }

void Paging::settle(ThreadState& thread) {
  if (mapped_bytes_ == 0 || frames_.frames() == nullptr) return;
  Stopwatch stopwatch(thread.waited_ns);
  for (Block* block : thread.touched) try {
      if (!block->dead && block->mapped && !block->stays_mapped) block->mapped->settle();
    } catch (const TierFailure&) {
      // Whoever takes it down says so.
    }
  const uint64_t now = frames_.frames()->figures().fault_ns;
  thread.waited_ns += now - std::exchange(fault_ns_, now);
}

void Paging::leave(ThreadState& thread, Block& block) {
  std::string why = block.mapped->failure();
  if (block.stays_mapped && why.empty() && block.mapped->is_for_rows()) return;
  try {
    if (!take_down(block)) return;
  } catch (const TierFailure& error) {  // it stays mapped, with all its bytes
    why = error.what();
  }
  if (why.empty()) return;
  on_.refusals.refuse_by_tier(thread, why);
  thread.untold = true;
}

// What it holds may no longer be what an op was to leave there: then it is lost. False when it cannot be taken away;
// raises TierFailure, with it where it was, when its bytes cannot be written.
bool Paging::take_down(Block& block) {
  c10::StorageImpl* storage = block.pinned || block.held ? nullptr : movable_storage(block);
  if (storage == nullptr) return false;
  const std::string why = block.mapped->failure();
  if (why.empty()) block.mapped->settle();
  on_.books.leaves(block);
  block.mapped.reset();
  block.dirty = false;
  set_absent(*storage);
  if (why.empty()) return true;
  block.lost = why;
  set_unavailable(block, kLost + why);
  return true;
}

void Paging::bring_out(Block& block, bool stays) try {
  if (frames_.is_needed() || (stays && frames_.is_on_gpu())) take_down(block);
  frames_.give_back();
} catch (const TierFailure&) {
  // It stays mapped: most callers can read it so.
}

void Paging::bring_out_all(ThreadState& thread) {
  for (Block* block : thread.touched)
    if (block->mapped && block->active == 1 && take_down(*block)) thread.missing.push_back(block);
}

void Paging::take_down_idle() {
  for (Block* block : std::vector<Block*>(on_.books.all())) try {
      if (block->mapped && block->active == 0) take_down(*block);
    } catch (const TierFailure&) {
      // It stays where it is.
    }
  frames_.give_back();
}

bool Paging::keep(Block& block) {
  if (when_ == When::kNever || block.device != on_.memory.device) return false;
  return block.stays_mapped = any_stays_ = true;
}

void Paging::op_ends(const ThreadState& thread) {
  if (thread.is_apart()) return;
  if (frames_.is_open() && !frames_.give_back()) {
    if (!any_stays_) frames_.shrink();  // (rows that are wanted again soon stay where they are)
    return;
  }
  const size_t bytes = std::exchange(mapped_bytes_, 0);
  if (bytes == 0 || when_ == When::kAlways || thread.op == nullptr) return;
  ++on_.stats.mapped_ops;
  tell_cost(thread, bytes);
}

// Once in a session.
void Paging::tell_cost(const ThreadState& thread, size_t bytes) {
  std::string cost;
  if (frames_.is_on_gpu()) cost = " (the GPU reads and writes " + format_bytes(bytes) + " of them over its link, each time that it touches them)";
  if (PageFrames* frames = frames_.frames()) {
    const PageFrames::Figures now = frames->figures();
    cost = " (" + format_bytes(now.bytes_in) + " came in and " + format_bytes(now.bytes_out) + " went out)";
  }
  on_.notices.add("mapped", thread.op->name + " needs " + format_bytes(thread.operand_bytes + thread.window.peak()) +
                                " at once, and the budget of " + format_bytes(on_.stats.budget_bytes) +
                                " has no room for that: it ran on mapped storages, whose bytes stay in the tier" + cost +
                                ", and so will others like it; --map never makes that an error");
}

void Paging::before_fork() {
  take_down_idle();
  for (Block* block : on_.books.all()) try {
      if (block->mapped) block->mapped->settle();
    } catch (const TierFailure&) {
      // The child is told when it reads.
    }
}

// A child has no thread that would serve a fault: it reads the tier. (The frames are its parent's, and is not taken down.)
void Paging::become_inert() {
  for (Block* block : on_.books.all()) {
    if (!block->mapped) continue;
    on_.books.leaves(*block);
    new std::shared_ptr<Mapped>(std::move(block->mapped));
    if (c10::StorageImpl* storage = storage_behind(*block)) set_absent(*storage);
  }
  frames_.become_inert();
}

}  // namespace memfit
