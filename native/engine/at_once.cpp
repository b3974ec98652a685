#include "at_once.h"

#include <algorithm>
#include <utility>

#include "hash.h"
#include "observer.h"
#include "operands.h"
#include "session.h"
#include "values.h"

namespace memfit {

// No other op is under way, nothing that is recorded asks what this one does, and nothing is to be done before it.
bool AtOnce::is_undisturbed(uint64_t identity) const {
  const Lasting& lasting = on_.lasting;
  const bool is_alone = lasting.turns.is_idle() && !lasting.collectives.any() && lasting.scratch.to_come() == 0;
  const bool is_asked = lasting.stress != Stress::kNone || lasting.captures || lasting.ghosts.are_watched();
  const bool is_noted = on_.recorder.on() || on_.timeline.on();
  const bool is_passed = on_.progress.is_amid() && on_.planned.lets_pass(identity);
  return is_alone && !is_asked && !is_noted && is_passed && !on_.growth.is_beyond_limit() && on_.paging.is_idle() && !on_.memory.device->is_asynchronous();
}

// The block of a tensor whose bytes are where the op reads them, or may write to them: nothing is to be made from them first.
Block* AtOnce::here(const c10::TensorImpl& tensor, bool is_written) const {
  if (tensor.is_nested() || tensor.is_quantized() || !tensor.has_storage() || is_wrapper(tensor)) return nullptr;
  const c10::Storage& storage = tensor.unsafe_storage();
  if (!on_.memory.device->has(storage.device())) return nullptr;
  Block* block = on_.lasting.books.find(*storage.unsafeGetStorageImpl());
  if (block == nullptr || block->region == nullptr || block->arena != on_.memory.arena) return nullptr;
  return is_written && block->value && !block->value->dependents.empty() ? nullptr : block;
}

// The blocks of the tensors, each once; what is found is marked as if the next op had touched it, until `unmark`.
bool AtOnce::find(const OpInfo& op, c10::ArrayRef<c10::TensorImpl*> tensors, Used& used) const {
  const uint64_t next = on_.lasting.books.now() + 1;
  used.resize(tensors.size());  // before any mark: it may fail
  size_t found = 0;
  bool are_here = true;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool is_written = op.writes[op.operands[i]];
    Block* block = here(*tensors[i], is_written);
    are_here = block != nullptr;
    if (!are_here) break;
    if (std::exchange(block->touched_by, next) != next) {
      Use& use = used[found++];
      use.block = block, use.tensor = tensors[i], use.is_written = is_written;
    } else if (is_written) {
      std::find_if(used.begin(), used.end(), [&](const Use& use) { return use.block == block; })->is_written = true;
    }
  }
  used.resize(found);
  return are_here && found != 0;
}

void AtOnce::unmark(const Used& used) {
  for (const Use& use : used) use.block->touched_by = 0;
}

// As it is known, an op of these storages allocates nothing.
bool AtOnce::makes_nothing(const OpInfo& op, const Used& used) const {
  if (on_.stats.budget_bytes == 0) return true;  // nothing is to be made room for
  uint64_t need_key = op.name_hash;              // as Uses makes it
  for (const Use& use : used) need_key = mix(need_key, use.block->bytes);
  return on_.needs.is_nothing(need_key);
}

bool AtOnce::begin(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::TensorImpl*> tensors) {
  const uint64_t identity = identity_of(op.name_hash, at::GradMode::is_enabled());
  if (!is_undisturbed(identity)) return false;
  Used used;
  const bool begins = find(op, tensors, used) && makes_nothing(op, used);
  unmark(used);
  if (!begins) return false;
  on_.ops.begin_frame(thread, op, /*source=*/-1, /*sequence_number=*/-1);
  thread.at_once = thread.joined = true;
  on_.lasting.turns.op_begins(thread);
  ++on_.stats.ops, ++on_.stats.ops_at_once;
  on_.refusals.guarded(thread, [&] {
    on_.progress.op_begins();
    on_.ordinary.free_when_due(*on_.memory.device);
    if (on_.planned.is_in_force()) {
      on_.planned.note_thread(thread);
      on_.planned.before_op(thread, identity);
    }
    if (on_.lasting.flags.tracks) thread.leaf = thread.depth;  // as for Capturing: what it calls is no recipe
    for (const Use& use : used) {
      if (use.is_written) Values::end(*use.block);
      Books::attach(*use.block, use.tensor->unsafe_storage());
      on_.uses.use_first(thread, *use.block, use.is_written);
    }
  });
  on_.lasting.turns.op_starts(thread);
  return true;
}

bool AtOnce::may_end(const ThreadState& thread) {
  return thread.at_once && thread.allocated == 0 && thread.missing.empty() && thread.failure.kind == Failure::Kind::kNone;
}

std::function<void()> AtOnce::end(ThreadState& thread) {
  on_.refusals.guarded(thread, [&] { on_.progress.op_ends(thread, /*need=*/0, /*split_need=*/0); });
  for (Block* block : thread.touched) on_.lasting.books.let_go(*block);
  thread.touched.clear();
  thread.wrote.clear();
  thread.leaf = 0;
  on_.refusals.guarded(thread, [&] { on_.planned.after_op(thread); });
  on_.refusals.put_off(thread);
  on_.lasting.turns.op_is_over(thread);
  return on_.progress.due();
}

}  // namespace memfit
