// What happens when an op begins and ends: its storages are made available, marked in use, and let go again.
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>

#include "engine.h"
#include "hash.h"
#include "lock.h"
#include "observer.h"
#include "operands.h"
#include "pointers.h"
#include "stopwatch.h"

namespace memfit {

namespace {

// What a factory (`zeros`, `full`) says of itself that it will allocate; 0: nothing. Elements may be smaller.
size_t bytes_announced(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  if (op.size_argument < 0 || !inputs[op.size_argument].isIntList()) return 0;
  double bytes = sizeof(double);
  for (int64_t size : inputs[op.size_argument].toDimVector()) bytes *= static_cast<double>(std::max<int64_t>(size, 0));
  return bytes < 1e18 ? static_cast<size_t>(bytes) : 0;
}

uint64_t shapes_of(c10::ArrayRef<const c10::IValue> inputs) {
  uint64_t hash = 0;
  for (const c10::IValue& input : inputs) {
    if (input.isIntList())
      for (int64_t number : input.toDimVector()) hash = mix(hash, static_cast<uint64_t>(number));
    each_tensor(input, [&](const at::Tensor& tensor) {
      const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
      if (!tensor.defined() || impl->has_symbolic_sizes_strides()) return;
      for (int64_t size : impl->sizes_default()) hash = mix(hash, static_cast<uint64_t>(size));
    });
  }
  return hash;
}

}  // namespace

void Engine::op_begins(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs,
                       int64_t source, int64_t sequence_number) {
  bool outermost = thread.depth++ == 0;
  Lock lock(*this);
  if (outermost) turns_.wait_for_standstill(thread);
  if (!active()) return;
  if (forked_) return guarded(thread, [&] { read_in_child(op, inputs); });
  if (outermost) {
    frame_begins(thread, op, source);
    guarded(thread, [&] { frame_prepares(thread, op); });
    guarded(thread, [&] { frame_is_recorded(thread, op, sequence_number); });
    if (stress_ != Stress::kNone) guarded(thread, [&] { press_out_all(); });
    if (ghosts_.are_watched() && recorder_.records(thread))
      for (const c10::IValue& input : inputs) guarded(thread, [&] { append_shapes(input, recorder_.shapes(thread.row)); });
  }
  op_prepares(thread, op, inputs, outermost);
}

// torch only logs what a callback throws, and then nothing of what it was to do has been done: whatever goes wrong
// here is kept for the op, or for the next one.
template <typename Action>
void Engine::guarded(ThreadState& thread, const Action& action) {
  try {
    action();
  } catch (const std::exception& error) {
    failed(thread, error.what());
  } catch (...) {
    failed(thread, "an unknown error");
  }
}

void Engine::failed(ThreadState& thread, const char* why) noexcept {
  if (thread.failure.kind != Failure::Kind::kNone) return;
  try {
    fail(thread, Failure::Kind::kTier, why, 0);
    thread.untold = true;
  } catch (...) {
    // There is no memory for a text either: whatever comes next will fail by itself.
  }
}

// Each input is marked in use, whatever becomes of the others; then what is away comes in.
void Engine::op_prepares(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, bool outermost) {
  // A profiler that notes shapes asks all inputs for their addresses, a view's too.
  const bool profiled = at::hasThreadLocalCallbacks();
  // Where nobody compares bytes, only what was tried is believed to leave what it reads as it was.
  const bool doubtful = !op.verified && memory_.device->is_asynchronous();
  for (size_t i = 0; i < inputs.size(); ++i) {
    bool reads = op.reads(i) || profiled, write = op.may_write(i) || (doubtful && reads);
    guarded(thread, [&] {
      each_storage(inputs[i], [&](const c10::Storage& storage, Part part) {
        if (part == Part::kElements)
          touch(thread, storage, write, reads);
        else
          keep_in_place(thread, storage);
      });
    });
  }
  if (outermost && op.reads_data) guarded(thread, [&] { thread.shape_key = shapes_of(inputs); });
  if (op.keeps_pointers)
    for (Block* block : thread.touched) block->pinned = true;
  bool comes_in = !thread.missing.empty() || !thread.foreign.empty();
  guarded(thread, [&] { make_ready(thread, op, inputs, outermost); });
  thread.starting = false;
  if (outermost) turns_.op_starts(thread);
  if (!memory_.device->is_asynchronous()) return;
  guarded(thread, [&] {
    if (outermost && recorder_.records(thread)) recorder_.op_starts(thread.row);
    if ((!comes_in && thread.aside) || thread.touched.empty() || !memory_.device->is_aside()) return;
    memory_.device->follow();
    thread.aside = true;
  });
}

// What a child has fetched lies in ordinary memory from then on. (If it cannot be, the storage itself tells who reads it.)
void Engine::read_in_child(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  StopReport ignored;
  for (size_t i = 0; i < inputs.size(); ++i)
    each_storage(inputs[i], [&](const c10::Storage& storage, Part part) {
      if (!memory_.device->has(storage.device()) || (part == Part::kElements && !op.reads(i))) return;
      Block* block = books_.find(*storage.unsafeGetStorageImpl());
      if (block == nullptr || block->resident()) return;
      books_.attach(*block, storage);
      restore(*block, ignored);
    });
}

// What the op has touched comes in, and what it will allocate finds room.
void Engine::make_ready(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, bool outermost) {
  bool limited = stats_.budget != 0;
  if (thread.missing.empty() && thread.foreign.empty() && !(outermost && limited)) return;
  if (outermost && limited && (is_tight(thread) || !knows_need(thread))) thread.tensors = describe(inputs);
  thread.starting = outermost;
  Stopwatch stopwatch(thread.waited_ns, nullptr, recorder_.on());
  bring_in_missing(thread);
  if (!outermost || !active() || !limited) return;
  const size_t announced = bytes_announced(op, inputs);
  take_turn(thread, std::max(wanted(thread), announced));
  if (active() && op.reads_data) make_roomy(thread, announced);
}

void Engine::frame_begins(ThreadState& thread, const OpInfo& op, int64_t source) {
  ++stats_.ops;
  turns_.op_begins(thread);
  thread.serial = books_.tick();
  thread.op = &op;
  thread.input_bytes = thread.largest = thread.allocated = 0;
  thread.window.clear();
  thread.need_key = op.name_hash;
  thread.shape_key = 0;
  thread.source = source;
  thread.row = -1;
  thread.course = 0;
  thread.waited_ns = 0;
  thread.failure = Failure();
  thread.tensors.clear();
}

// What falls due when an op begins, whatever it uses.
void Engine::frame_prepares(ThreadState& thread, const OpInfo& op) {
  if (iterations_.period_ends(stats_.ops)) iteration_ends();
  ordinary_.free_when_due(*memory_.device);
  if (growth_.has_grown()) growth_.return_to_budget();
  if (iterations_.takes_too_long_to_forecast(forecast_.ops())) forecast_.on_boundary(books_.all());
  forecast_.on_op();
  if (timeline_.on()) timeline_.op_begins(memory_.device->stamp(), memory_.arena->used());
  planned_.before_op(thread, op.name_hash);
}

void Engine::frame_is_recorded(ThreadState& thread, const OpInfo& op, int64_t sequence_number) {
  give_up_recording_if_due();
  if (!recorder_.on()) return;
  auto node = torch::autograd::get_current_node();
  Phase phase = node ? Phase::kBackward : phase_.load();
  thread.recording = recorder_.number();
  thread.row = recorder_.op_begins(op.id, phase, thread.source, sequence_number,
                                   node ? static_cast<int64_t>(node->sequence_nr()) : -1);
}

void Engine::touch(ThreadState& thread, const c10::Storage& storage, bool write, bool reads_data) {
  if (!memory_.device->has(storage.device())) {
    if (ghosts_.are_watched()) ghosts_.touch(thread, storage, write, reads_data);
    return;
  }
  Block* block = books_.find(*storage.unsafeGetStorageImpl());
  if (block == nullptr) {
    if (reads_data && adoptable(*storage.unsafeGetStorageImpl())) thread.foreign.push_back(storage);
    return;
  }
  books_.attach(*block, storage);
  if (reads_data) use(thread, *block, write);
}

// What describes a tensor (the sizes of a nested one) is read through raw pointers at any time, without an op.
void Engine::keep_in_place(ThreadState& thread, const c10::Storage& storage) {
  touch(thread, storage, /*write=*/false, /*reads_data=*/true);
  if (Block* block = memory_.device->has(storage.device()) ? books_.find(*storage.unsafeGetStorageImpl()) : nullptr) block->pinned = true;
}

// Mark the block in use until the thread's outermost op ends.
void Engine::use(ThreadState& thread, Block& block, bool write) {
  if (block.resident() && block.arena != memory_.arena) return;  // left behind by an earlier session: it stays there
  block.held = false;
  bool first = block.touched_by != thread.serial;
  if (first) {
    thread.touched.push_back(&block);  // before anything that counts on its being there
    ++block.active;
    block.touched_by = thread.serial;
    block.last_use = books_.now();
    block.used_by = thread.op;
    thread.input_bytes += memory_.arena->round(block.bytes);
    thread.largest = std::max(thread.largest, block.bytes);
    if (thread.depth == 1) thread.need_key = mix(thread.need_key, block.bytes);
    forecast_.on_access(block);
  }
  bool first_write = write && block.written_by != thread.serial;
  if (write) {
    block.dirty = true;
    block.written_by = thread.serial;
  }
  if ((first || first_write) && recorder_.records(thread)) recorder_.op_accesses(thread.row, block, write);
  if (!block.resident()) thread.missing.push_back(&block);
}

void Engine::bring_in_missing(ThreadState& thread) {
  std::vector<Block*> missing;
  missing.swap(thread.missing);
  size_t more = wanted(thread);
  auto comes_in = [&](Block* block) {
    return with_room(thread, block->bytes, [&] { return block->dead || make_available(*block, more); });
  };
  while (!missing.empty() || !thread.foreign.empty()) {
    thread.stepped_aside = false;
    std::sort(missing.begin(), missing.end(), [](Block* a, Block* b) { return a->bytes > b->bytes; });
    for (Block* block : missing)
      if (!comes_in(block)) mark_unavailable(*block, in_words(thread.failure));
    missing.clear();
    adopt_foreign(thread, more);
    if (!thread.stepped_aside || thread.failure.kind != Failure::Kind::kNone) break;
    for (Block* block : thread.touched)  // what came in first may have left meanwhile
      if (!block->dead && !block->resident()) missing.push_back(block);
  }
}

// Try, make room, try again, for as long as other threads' ops let go of storages. False once the op has failed.
template <typename Attempt>
bool Engine::with_room(ThreadState& thread, size_t bytes, const Attempt& attempt) {
  try {
    do {
      if (attempt()) return true;
      if (!thread.starting || !active()) continue;  // an op that runs already holds pointers: nothing of its own may move
      shelf_.gather();
      residency_.consolidate(thread.touched);
      if (attempt()) return true;
      if (take_shelf(thread) && attempt()) return true;
    } while (wait_for_others(thread));
    if (!active()) return attempt();
    while (grow(bytes))
      if (attempt()) return true;
    fail(thread, Failure::Kind::kBudget, "", bytes, /*is_input=*/true);
  } catch (const TierFailure& error) {
    fail(thread, Failure::Kind::kTier, error.what(), bytes);
  }
  return false;
}

void Engine::adopt_foreign(ThreadState& thread, size_t more) {
  std::vector<c10::Storage> foreign;
  foreign.swap(thread.foreign);
  if (!foreign.empty() && memory_.device->is_aside()) memory_.device->lead();  // where they may have been written
  for (c10::Storage& storage : foreign) {
    auto is_ours = [&] { return !active() || books_.find(*storage.unsafeGetStorageImpl()) != nullptr; };
    with_room(thread, storage.nbytes(), [&] { return is_ours() || adopt_into_arena(storage, more) != nullptr; });
    if (Block* block = books_.find(*storage.unsafeGetStorageImpl())) use(thread, *block, /*write=*/true);
    books_.bury(StorageRef::reclaim_copy(storage.unsafeGetStorageImpl()));
  }
}

// False when there is no room. Raises TierFailure.
bool Engine::make_available(Block& block, size_t more) {
  if (block.resident()) return true;
  if (active() && !forked_) return placing_.bring_in(block, more);
  StopReport report;
  if (restore(block, report)) return true;
  throw TierFailure(report.lost.empty() ? "no memory" : report.lost.front());
}

bool Engine::is_tight(ThreadState& thread) const {
  return !thread.missing.empty() || memory_.arena->ranges.largest_free() < wanted(thread);
}

// (The same storages may be seen through larger or smaller views.)
uint64_t Engine::key_of_need(const ThreadState& thread) { return mix(thread.need_key, thread.shape_key); }

bool Engine::knows_need(ThreadState& thread) const {
  const uint64_t key = key_of_need(thread);
  if (thread.need.serial != thread.serial || thread.need.key != key) thread.need = needs_.look_up(thread.serial, key);
  return thread.need.known;
}

// What the op will allocate, as far as can be known before it runs.
size_t Engine::wanted(ThreadState& thread) const {
  return knows_need(thread) ? thread.need.length : 8 * thread.input_bytes + (size_t{1} << 16);
}

// An op's own storages must not cut up the space it will need: once it runs they cannot be moved. What is not known
// to need less may need everything.
void Engine::make_roomy(ThreadState& thread, size_t announced) {
  bool known = knows_need(thread);
  if (memory_.arena->ranges.largest_free() >= wanted(thread) && (known || memory_.arena->plan() != nullptr)) return;
  if (memory_.arena->plan() != nullptr) {
    if (known) return;  // it is in the plan
    planned_.drop();
  }
  shelf_.gather();
  memory_.arena->trim_shelf(0);
  size_t want = known ? wanted(thread) : SIZE_MAX;
  const bool is_crowded = !known && memory_.arena->shelf_used() > memory_.arena->ranges.limit() / 64;
  if (!is_crowded && is_roomy(thread, want) && announced <= residency_.widest_window(/*running=*/true)) return;
  try {
    residency_.consolidate(thread.touched);
    if (!is_roomy(thread, want)) shelf_.evict_scattered();
    const bool needs_shelf = is_crowded || std::max(announced, known ? want : 0) > residency_.widest_window(/*running=*/true);
    if (needs_shelf) take_shelf(thread);
  } catch (const TierFailure&) {
    // It was only to help: the op may still find room, and says what is wrong if it does not.
  }
}

// The op's own storages slide down to where the shelf was. False when that gives back nothing.
bool Engine::take_shelf(const ThreadState& thread) {
  if (!shelf_.clear()) return false;
  residency_.consolidate(thread.touched);
  return true;
}

// There is a stretch of `want` bytes that can be cleared, or one that is as long as any could be.
bool Engine::is_roomy(const ThreadState& thread, size_t want) const {
  size_t window = residency_.widest_window(/*running=*/true);
  if (window >= want) return true;
  size_t taken = memory_.arena->shelf_used();  // of the shelf, what is on it: the rest of it can be given back
  for (const Block* block : thread.touched)
    if (memory_.holds(*block) && !memory_.arena->on_shelf(block->region)) taken += block->region->size;
  size_t rest = memory_.arena->ranges.limit() - std::min(taken, memory_.arena->ranges.limit());
  return window >= rest - rest / 64;
}

void Engine::op_ends(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::IValue> outputs) {
  bool period_found = false;
  std::function<void()> tell;
  {
    Lock lock(*this);
    if (thread.depth == 0) return;  // its beginning was not seen
    if (is_inert()) return (void)--thread.depth;
    guarded(thread, [&] { show_outputs(thread, op, outputs); });
    if (thread.depth == 1) {
      guarded(thread, [&] { period_found = frame_ends(thread); });
      let_go(thread);
      tell = iterations_.due(period_found);
    }
    --thread.depth;
  }
  if (tell) tell();
}

void Engine::show_outputs(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::IValue> outputs) {
  bool held = op.uninitialised && thread.depth == 1;
  if (active() && !forked_)
    for (const c10::IValue& output : outputs)
      each_storage(output, [&](const c10::Storage& storage, Part part) { show(thread, storage, part, held); });
  if (thread.depth == 1 && ghosts_.are_watched() && recorder_.records(thread)) {
    recorder_.shapes(thread.row) += '>';
    for (const c10::IValue& output : outputs) append_shapes(output, recorder_.shapes(thread.row));
  }
  if (std::any_of(outputs.begin(), outputs.end(), is_opaque))
    for (Block* block : thread.touched) block->pinned = true;
}

void Engine::show(ThreadState& thread, const c10::Storage& storage, Part part, bool held) {
  if (!memory_.device->has(storage.device())) {
    if (ghosts_.are_watched()) ghosts_.of(thread, storage, /*is_new=*/true);
    return;
  }
  Block* block = books_.find(*storage.unsafeGetStorageImpl());
  if (block == nullptr) return;
  books_.attach(*block, storage);
  if (held) block->held = true;
  if (part == Part::kDescription && block->resident()) block->pinned = true;  // one that is away comes in with an op
}

// True when the op stream turns out to repeat itself.
bool Engine::frame_ends(ThreadState& thread) {
  bool recorded = recorder_.records(thread);
  if (thread.failure.kind == Failure::Kind::kNone) {
    size_t need = learn_need(thread);
    if (recorded) recorder_.op_ends(thread.row, static_cast<int64_t>(need), thread.waited_ns);
  }
  iterations_.on_op(thread.need_key, thread.allocated);
  return recorded && find_period_if_due();
}

// The frame is closed, whatever has gone wrong in it.
void Engine::let_go(ThreadState& thread) {
  if (std::exchange(thread.aside, false)) guarded(thread, [&] { memory_.device->lead(); });
  for (Block* block : thread.touched) deactivate(*block);
  thread.touched.clear();
  thread.missing.clear();
  thread.foreign.clear();
  thread.row = -1;
  guarded(thread, [&] { planned_.after_op(thread); });
  if (std::exchange(thread.untold, false)) next_failure_ = thread.failure;
  thread.failure = Failure();
  turns_.op_is_over(thread);
}

size_t Engine::learn_need(const ThreadState& thread) {
  return memory_.arena ? needs_.learn(key_of_need(thread), thread.window, memory_.arena->ranges.alignment()) : 0;
}

bool Engine::find_period_if_due() {
  auto length = iterations_.find_period(recorder_, stats_.ops);
  if (!length) return false;
  iteration_ends();
  iterations_.mark_period(recorder_.op_count(), *length);
  return true;
}

// What never repeats itself (evaluation, a simulation) is not recorded for ever. The next step begins anew.
void Engine::give_up_recording_if_due() {
  if (!recorder_.on() || !iterations_.takes_too_long(recorder_.op_count())) return;
  recorder_.stop();
  gave_up_ = true;
  stats_.recording_given_up = stats_.ops - 1;
}

}  // namespace memfit
