#include "uses.h"

#include <algorithm>

#include "hash.h"

namespace memfit {

bool Uses::concerns(const c10::Storage& storage) const {
  const c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  return memory_.device->has(storage.device()) && (books_.find(impl) != nullptr || adoption_.is_adoptable(impl));
}

// (In one function: each operand of each op comes here.)
[[gnu::flatten]] void Uses::touch(ThreadState& thread, const c10::Storage& storage, bool write, bool reads_data, bool is_number) {
  if (!memory_.device->has(storage.device())) {
    if (ghosts_.are_watched()) ghosts_.touch(thread, storage, write, reads_data);
    return;
  }
  Block* block = books_.find(*storage.unsafeGetStorageImpl());
  if (block == nullptr) {
    if (reads_data && !is_number && adoption_.is_adoptable(*storage.unsafeGetStorageImpl())) thread.foreign.push_back(storage);
    return;
  }
  books_.attach(*block, storage);
  if (reads_data) use(thread, *block, write);
  if (is_number) Recorder::pin(*block, &recorder_);
}

void Uses::keep_in_place(ThreadState& thread, const c10::Storage& storage) {
  touch(thread, storage, /*write=*/false, /*reads_data=*/true);
  if (Block* block = find(storage)) Recorder::pin(*block, &recorder_);
}

// (In one function, as `touch`.)
[[gnu::flatten]] void Uses::use_first(ThreadState& thread, Block& block, bool write) {
  block.held = block.kept_for != nullptr;
  block.recomputed = false;
  touch_first(thread, block);
  if (write) {
    block.dirty = true;
    block.written_by = thread.serial;
    thread.wrote.push_back(&block);
  }
  if (recorder_.records(thread)) recorder_.op_accesses(thread.row, block, write);
}

void Uses::use(ThreadState& thread, Block& block, bool write) {
  if (block.region != nullptr && block.arena != memory_.arena) return;  // left behind by an earlier session: it stays there
  if (block.touched_by != thread.serial && block.resident()) return use_first(thread, block, write);
  block.held = block.kept_for != nullptr;
  block.recomputed = false;
  bool first = is_first(thread, block);
  bool first_write = write && block.written_by != thread.serial;
  if (write) {
    block.dirty = true;
    block.written_by = thread.serial;
    if (first_write) thread.wrote.push_back(&block);
  }
  if ((first || first_write) && recorder_.records(thread)) recorder_.op_accesses(thread.row, block, write);
  if (block.resident() || streams(thread, block)) return;
  // (An earlier call of the op's may have made it away, or read it where it was.)
  if (!first && std::find(thread.missing.begin(), thread.missing.end(), &block) != thread.missing.end()) return;
  thread.missing.push_back(&block);
  count(thread, block);
}

bool Uses::streams(const ThreadState& thread, const Block& block) {
  return std::find(thread.streamed.begin(), thread.streamed.end(), &block) != thread.streamed.end();
}

// In use from now on until the thread's outermost op ends. False when it has been already.
bool Uses::is_first(ThreadState& thread, Block& block) {
  if (block.touched_by == thread.serial) {
    const auto rests = std::find(thread.resting.begin(), thread.resting.end(), &block);
    if (rests == thread.resting.end()) return false;
    thread.resting.erase(rests);
    take_up(thread, block);
    return false;
  }
  touch_first(thread, block);
  return true;
}

void Uses::touch_first(ThreadState& thread, Block& block) {
  block.touched_by = thread.serial;
  take_up(thread, block);
  if (thread.depth == 1) thread.need_key = mix(thread.need_key, block.bytes);
  if (!thread.is_apart()) forecast_.on_access(block);
}

void Uses::take_up(ThreadState& thread, Block& block) {
  thread.touched.push_back(&block);  // before anything that counts on its being there
  ++block.active;
  block.last_use = books_.now();
  block.used_by = thread.op;
  if (block.resident()) count(thread, block);
}

void Uses::count(ThreadState& thread, const Block& block) const {
  thread.input_bytes += memory_.arena->round(block.bytes);
  thread.largest = std::max(thread.largest, block.bytes);
}

void Uses::rest(ThreadState& thread, Block& block) {
  if (block.touched_by != thread.serial || block.mapped) return;
  const size_t before = thread.touched.size();
  thread.touched.erase(std::remove(thread.touched.begin(), thread.touched.end(), &block), thread.touched.end());
  if (thread.touched.size() == before) return;
  block.active -= static_cast<int>(before - thread.touched.size());
  thread.resting.push_back(&block);
}

void Uses::show(ThreadState& thread, const c10::Storage& storage, Part part, bool held) {
  if (!memory_.device->has(storage.device())) {
    if (ghosts_.are_watched()) ghosts_.of(thread, storage, /*is_new=*/true);
    return;
  }
  Block* block = books_.find(*storage.unsafeGetStorageImpl());
  if (block == nullptr) return;
  books_.attach(*block, storage);
  if (held) block->held = true;
  if (part == Part::kDescription && block->resident()) Recorder::pin(*block, &recorder_);  // one that is away comes in with an op
}

}  // namespace memfit
