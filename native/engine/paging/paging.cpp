#include "paging.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "../observer.h"
#include "../pointers.h"
#include "rows.h"

namespace memfit {

namespace {

constexpr size_t kLeastMapped = size_t{16} << 10;       // smaller storages find room
constexpr size_t kLeastFrames = 32 * kFaultPage;        // in bytes: several threads touch several operands at once
constexpr size_t kLeastLimit = 8 * kLeastFrames;        // below it frames would take too large a part
constexpr size_t kShareOfLimit = 16, kShareForRows = 4, kChunksInFrames = 32;

}  // namespace

void Paging::set(const Settings& settings) {
  settings_ = settings;
  reach_.set(settings.reach);
}

// Not one whose kernel is not torch's own: it may give the addresses to a system call, which no fault is served for.
bool Paging::may_map(const OpInfo& op) const {
  const bool has_limit = on_.stats.budget_bytes != 0 && (is_direct() || on_.memory.arena->ranges.limit() >= kLeastLimit);
  const bool is_on = settings_.when != When::kNever && has_limit && !on_.memory.is_closed;
  return is_on && !op.writes_any && !op.keeps_pointers && !op.is_view;
}

// Ops reach the bytes themselves, and no fault is served.
bool Paging::is_direct() const { return reach_.is_on_gpu() || on_.memory.tier->is_memory(); }

size_t Paging::frame_bytes() const {
  const size_t limit = on_.memory.arena->ranges.limit();
  if (is_direct()) return reach_.reserve_bytes(limit);
  return on_.memory.arena->round(std::max(limit / kShareOfLimit, kLeastFrames));
}

// Rows that are wanted again soon are still there then.
size_t Paging::frames_for_rows() const { return on_.memory.arena->round(on_.memory.arena->ranges.limit() / kShareForRows); }

// What the storages of running ops may take, at the most.
size_t Paging::room() const {
  const size_t limit = on_.memory.arena->ranges.limit();
  return limit - std::min(limit, on_.refusals.immovable_bytes());
}

void Paging::prepare(ThreadState& thread, const OpInfo& op) {
  thread.maps = may_map(op);
  if (!thread.maps) return;
  thread.access = access_of(op.name);
  thread.operand_bytes = thread.input_bytes;
  size_t rest = thread.input_bytes;
  for (const Block* block : thread.touched)
    if (block->mapped) rest -= std::min(rest, on_.memory.arena->round(block->bytes));
  const bool is_known = on_.needs.knows(thread);
  const size_t need = is_known ? on_.needs.wanted(thread) : 0;
  const bool is_sure = 2 * (rest + need) <= on_.memory.arena->ranges.limit();
  if (is_sure && !any_stays_ && settings_.when != When::kAlways) return;
  const size_t frames = frame_bytes(), room = is_sure ? SIZE_MAX : this->room(), most = room - std::min(room, frames);
  bool fits = rest + need <= (is_known ? room : most);
  std::vector<Block*> chosen;
  for (Block* block : candidates(thread)) {
    if (fits && !block->stays_mapped && settings_.when != When::kAlways) continue;
    chosen.push_back(block);
    rest -= on_.memory.arena->round(block->bytes);
    fits = rest + std::min(need, most) <= most;
  }
  const size_t spare = is_known && !is_sure && thread.access == Access::kSweeps ? most - std::min(most, rest + need) : 0;
  map_those(thread, chosen, frames + spare);
}

// Those first that always are, then the largest.
std::vector<Block*> Paging::candidates(const ThreadState& thread) const {
  std::vector<Block*> found;
  for (Block* block : thread.touched) {
    const bool is_free = !block->dead && !block->mapped && !block->pinned && !block->held && !block->discarded && !block->small;
    const bool may_go = !block->resident() || (on_.memory.holds(*block) && block->active == 1);
    if (is_free && may_go && block->bytes >= kLeastMapped && storage_behind(*block) != nullptr) found.push_back(block);
  }
  std::sort(found.begin(), found.end(), [](const Block* a, const Block* b) {
    return std::make_tuple(a->stays_mapped, a->bytes, a->id) > std::make_tuple(b->stays_mapped, b->bytes, b->id);
  });
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void Paging::map_those(ThreadState& thread, const std::vector<Block*>& chosen, size_t frames) {
  for (Block* block : chosen) {
    if (block->copy) on_.resorts.settle(*block);
    if (block->resident()) {
      if (!on_.moves.evict(*block)) continue;
      thread.missing.push_back(block);
    }
    const bool is_now = block->written_by == thread.serial, is_written = is_now || block->stays_mapped;
    const bool has_frames = open(thread, block->stays_mapped ? std::max(frames, frames_for_rows()) : frames) || open(thread, frames);
    if (!has_frames && !is_direct()) return;
    const auto is_settled = [&] { thread.missing.erase(std::remove(thread.missing.begin(), thread.missing.end(), block), thread.missing.end()); };
    try {
      if (!map(*block, block->stays_mapped ? Access::kRows : thread.access, is_written ? writable(*block) : block->extent)) return;
    } catch (const TierFailure& error) {  // its bytes could not be had
      on_.refusals.refuse_by_tier(thread, error.what());
      set_unavailable(*block, in_words(thread.failure));
      return is_settled();
    }
    block->dirty |= is_now;  // it has just been written out for that
    on_.books.arrives(*block, *storage_behind(*block));
    thread.input_bytes -= on_.memory.arena->round(block->bytes);
    is_settled();
  }
}

void Paging::bring_rows(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) const {
  if (!page_frames_ || ballast_.region == nullptr) return;
  const Rows rows = rows_used_by(op, inputs);
  if (rows.table == nullptr) return;
  const Block* block = on_.books.find(*rows.table);
  if (block != nullptr && block->mapped) block->mapped->bring(rows.offsets, rows.row_bytes, rows.are_written);
}

// The frames, or what comes to a GPU of managed memory, have their room in the arena. False when there is none.
bool Paging::open(ThreadState& thread, size_t frames) {
  if (frame_bytes() == 0 || ballast_.region != nullptr || (reach_.is_on_gpu() && thread.access == Access::kRows)) return true;
  if (!is_direct() && !page_frames_) page_frames_ = std::make_shared<PageFrames>(settings_.mechanism, settings_.mortality);
  Region* region = on_.placing.place(frames, 0, &ballast_, /*high=*/true);
  if (region == nullptr && thread.starting) {
    on_.residency.consolidate(thread.touched);
    region = on_.placing.place(frames, 0, &ballast_, /*high=*/true);
  }
  if (region == nullptr) return false;
  ballast_.region = region;
  is_used_ = true;
  on_.memory.arena->vacate(region);
  if (page_frames_)
    page_frames_->set_limit(region->size);
  else
    reach_.reserve(*region);
  return true;
}

// Where the block's bytes are, once they may be written over: elsewhere than where a child may still read them. (Of a tier
// in memory it has a copy.)
Extent Paging::writable(Block& block) const {
  const Extent source = block.extent;
  if (is_direct()) return source;
  if (on_.memory.tier->frozen()) on_.memory.thaw_if_alone();
  if (!on_.memory.tier->frozen()) return source;
  block.extent = block.tier->reserve(block.bytes);
  block.tier->release(source);  // it keeps its bytes as long as the child may read them
  return source;
}

// False: ops reach its bytes nowhere.
bool Paging::map(Block& block, Access access, Extent source) {
  if (is_direct()) {
    block.mapped = reach_.map(block, access, source);
    if (!block.mapped) return false;
  } else {
    page_frames_->set_leaving(access == Access::kSweeps ? PageFrames::Leaves::kNewest : PageFrames::Leaves::kOldest);
    const size_t chunk = std::clamp(std::bit_floor(ballast_.region->size / kChunksInFrames), kFaultPage, chunk_for(access));
    block.mapped = page_frames_->map({block.tier, block.extent, block.bytes, chunk, source});
  }
  is_used_ = true;
  mapped_bytes_ += block.bytes;
  ++on_.stats.mapped_storages;
  return true;
}

bool Paging::is_better_mapped(ThreadState& thread, size_t bytes) const {
  if (!thread.maps || is_direct() || ballast_.region != nullptr || bytes < kLeastMapped || on_.needs.knows(thread)) return false;
  if (thread.window.live() + bytes <= thread.announced) return false;  // nothing comes after it that could be in need
  const size_t want = thread.input_bytes + thread.window.live() + on_.memory.arena->round(bytes);
  return 2 * want > on_.memory.arena->ranges.limit() && want + frame_bytes() > room();
}

// What is gone through again and again has all the room that is left.
size_t Paging::frames_beside(const ThreadState& thread) const {
  const size_t used = thread.input_bytes + thread.window.live(), room = this->room();
  return thread.access == Access::kSweeps ? std::max(frame_bytes(), room - std::min(room, used)) : frame_bytes();
}

bool Paging::map_new(ThreadState& thread, Block& block) {
  if (!thread.maps || (block.small && !reach_.is_on_gpu())) return false;  // (a GPU's kernels take scratch, which is small)
  // (What an op does with less of, after its result, is better refused.)
  if (thread.adapting && thread.window.live() != 0) return false;
  if (!open(thread, frames_beside(thread)) && !open(thread, frame_bytes()) && !is_direct()) return false;
  block.tier = on_.memory.tier;
  block.extent = block.tier->reserve(block.bytes);
  try {
    block.tier->claim(block.extent);
    if (map(block, thread.access, /*source=*/nullptr)) return true;
  } catch (...) {
    block.tier->release(std::exchange(block.extent, nullptr));
    throw;
  }
  block.tier->release(std::exchange(block.extent, nullptr));
  return false;
}

void Paging::leave(ThreadState& thread, Block& block) {
  std::string why = block.mapped->failure();
  if (block.stays_mapped && why.empty()) return;
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
  if (!is_direct() || (stays && reach_.is_on_gpu())) take_down(block);
  give_frames_back();
} catch (const TierFailure&) {
  // It stays mapped: most callers can read it so.
}

void Paging::take_down_idle() {
  for (Block* block : std::vector<Block*>(on_.books.all())) try {
      if (block->mapped && block->active == 0) take_down(*block);
    } catch (const TierFailure&) {
      // It stays where it is.
    }
  give_frames_back();
}

bool Paging::give_frames_back() {
  if (ballast_.region == nullptr || (page_frames_ ? !page_frames_->is_empty() : reach_.is_in_use())) return false;
  if (!page_frames_) reach_.end_reserve();
  on_.memory.arena->give_back(std::exchange(ballast_.region, nullptr));
  return true;
}

bool Paging::keep(Block& block) {
  if (settings_.when == When::kNever || block.device != on_.memory.device) return false;
  return block.stays_mapped = any_stays_ = true;
}

void Paging::op_ends(const ThreadState& thread) {
  if (!is_used_ || (ballast_.region != nullptr && !give_frames_back())) return;
  is_used_ = false;
  const size_t bytes = std::exchange(mapped_bytes_, 0);
  if (bytes == 0 || settings_.when == When::kAlways || thread.op == nullptr) return;
  ++on_.stats.mapped_ops;
  tell_cost(thread, bytes);
}

// Once in a session.
void Paging::tell_cost(const ThreadState& thread, size_t bytes) {
  std::string cost;
  if (reach_.is_on_gpu()) cost = " (the GPU reads and writes " + format_bytes(bytes) + " of them over its link, each time that it touches them)";
  if (page_frames_) {
    const PageFrames::Figures now = page_frames_->figures();
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
  new std::shared_ptr<PageFrames>(std::move(page_frames_));
}

void Paging::count(Stats& figures) const {
  reach_.count(figures);
  if (!page_frames_) return;
  const PageFrames::Figures now = page_frames_->figures();
  figures.faults = now.faults;
  figures.fault_ns = now.fault_ns;
  figures.mapped_bytes_in = now.bytes_in;
  figures.mapped_bytes_out = now.bytes_out;
  figures.frame_bytes = now.frame_bytes;
  figures.peak_frame_bytes = now.peak_frame_bytes;
}

}  // namespace memfit
