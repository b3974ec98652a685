#include "ops.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "hash.h"
#include "observer.h"
#include "operands.h"
#include "session.h"

namespace memfit {

namespace {

// And what else says how much an op makes: which gradients it is to give, say.
uint64_t shapes_of(c10::ArrayRef<const c10::IValue> inputs) {
  uint64_t hash = 0;
  const auto add = [&](const at::Tensor& tensor) {
    const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (!tensor.defined() || impl->has_symbolic_sizes_strides()) return;
    for (int64_t size : impl->sizes_default()) hash = mix(hash, static_cast<uint64_t>(size));
  };
  for (const c10::IValue& input : inputs) {
    if (input.isTensor())
      add(input.toTensor());
    else if (input.isBool())
      hash = mix(hash, input.toBool());
    else if (input.isBoolList())
      for (bool wanted : input.toBoolList()) hash = mix(hash, wanted);
    else if (input.isIntList())
      for (int64_t number : input.toDimVector()) hash = mix(hash, static_cast<uint64_t>(number));
    else
      each_tensor(input, add);
  }
  return hash;
}

// The bytes that a factory (`zeros`, `full`) announces, if it announces any. Elements may be smaller.
std::optional<size_t> bytes_announced(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  if (op.size_argument < 0 || !inputs[op.size_argument].isIntList()) return std::nullopt;
  double bytes = sizeof(double);
  for (int64_t size : inputs[op.size_argument].toDimVector()) bytes *= static_cast<double>(std::max<int64_t>(size, 0));
  return bytes < 1e18 ? std::optional<size_t>(static_cast<size_t>(bytes)) : std::nullopt;
}

}  // namespace

// Each input is marked in use, whatever becomes of the others; then what is away comes in.
void Ops::begin(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, bool outermost, int64_t source,
                int64_t sequence_number) {
  if (outermost) begin_frame(thread, op, source, sequence_number);
  bool joins = !thread.joined && concerns(op, inputs);
  if (joins) join(thread);
  // By their shapes the op is known again, whether or not its inputs are put off.
  if (joins && op.reads_data && !op.is_generated && learns()) on_.refusals.guarded(thread, [&] { thread.shape_key = shapes_of(inputs); });
  if (outermost && on_.recorder.records_shapes(thread))
    for (const c10::IValue& input : inputs) on_.refusals.guarded(thread, [&] { append_shapes(input, on_.recorder.shapes(thread.row)); });
  if ((joins || thread.defers || op.passes_on) && thread.joined && defers(thread, op, inputs)) return;
  joins |= std::exchange(thread.defers, false);
  if (thread.joined && op.split_rule != nullptr) on_.refusals.guarded(thread, [&] { on_.splitting.op_begins(thread, op, inputs, on_.paging.may_map(op)); });
  const bool comes_in = thread.joined && use_inputs(thread, op, inputs, joins);
  if (!thread.joined) return;
  thread.starting = false;
  if (joins) on_.lasting.turns.op_starts(thread);
  if (joins && on_.recorder.records(thread)) on_.recorder.op_starts(thread.row);
  on_.refusals.guarded(thread, [&] { follow_streams(thread, comes_in); });
  on_.refusals.guarded(thread, [&] {
    on_.capturing.op_starts(thread, op, inputs);
    if (thread.leaf == thread.depth) on_.in_place.op_starts(thread, inputs);
  });
}

// What the op is given comes in with the first op that reads it. (One that is given nothing reads none of it.)
bool Ops::defers(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  if (thread.is_apart()) return false;
  bool is_put_off = thread.defers && (op.passes_on || !op.reads_data || op.operands.empty());
  if (!thread.defers) on_.refusals.guarded(thread, [&] { is_put_off = on_.splitting.defers(thread, op, inputs); });
  if (is_put_off && thread.depth == 1) {
    thread.defers = true;
    on_.refusals.guarded(thread, [&] { note_operands(thread, op, inputs); });
  }
  return is_put_off;
}

// By which the op is known again: as if it used its operands now (Uses::use).
void Ops::note_operands(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) const {
  std::vector<const c10::StorageImpl*> seen;
  std::vector<size_t> foreign;
  each_operand(op, inputs, [&](size_t i, const c10::IValue& input) {
    if (!op.reads(i)) return;
    each_storage(input, [&](const c10::Storage& storage, Part part) {
      const c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
      if (part != Part::kElements || !on_.uses.concerns(storage) || std::find(seen.begin(), seen.end(), impl) != seen.end()) return;
      seen.push_back(impl);
      const Block* block = on_.lasting.books.find(*impl);
      if (block == nullptr)
        foreign.push_back(impl->nbytes());
      else if (block->region == nullptr || block->arena == on_.memory.arena)
        thread.need_key = mix(thread.need_key, block->bytes);
    });
  });
  for (size_t bytes : foreign) thread.need_key = mix(thread.need_key, bytes);
}

void Ops::begin_frame(ThreadState& thread, const OpInfo& op, int64_t source, int64_t sequence_number) {
  thread.serial = on_.lasting.books.tick();
  thread.session = on_.lasting.books.session();
  thread.op = &op;
  thread.at_once = thread.joined = thread.defers = thread.was_split = thread.maps = false;
  thread.sliced.clear();
  thread.sliced_output_bytes = thread.slice_bytes = thread.parts_bytes = thread.whole_workspace = thread.expected = 0;
  thread.input_bytes = thread.largest = thread.allocated = 0;
  thread.window.clear();
  thread.need_key = op.name_hash;
  thread.shape_key = 0;
  thread.source = source;
  thread.sequence_number = sequence_number;
  thread.row = -1;
  thread.course = 0;
  thread.captures = thread.tries = false;
  thread.handovers.clear();
  thread.heir = 0;
  thread.given_depth = 0;
  thread.captured.clear();
  thread.waited_ns = 0;
  Refusals::forget(thread);
  thread.tensors.clear();
}

// What no storage is found in (a wrapper) may have any. A number of the program's is a tensor by now, but stays where it is
// without an op.
bool Ops::concerns(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) const {
  if (on_.lasting.ghosts.are_watched()) return true;
  const Device& device = *on_.memory.device;
  bool takes_any = false, is_near = false, is_used = false;
  const auto look = [&](const c10::Storage& storage, Part) {
    takes_any = true;
    is_near |= device.has(storage.device());
    is_used = is_used || on_.uses.concerns(storage);
  };
  each_operand(op, inputs, [&](size_t, const c10::IValue& input) {
    if (is_used) return;
    if (input.isStorage()) look(input.toStorage(), Part::kElements);
    each_tensor(input, [&](const at::Tensor& tensor) {
      if (!tensor.defined() || is_used || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return;
      const bool before = std::exchange(takes_any, false);
      each_storage_of(tensor, Part::kElements, look);
      is_used |= !takes_any;
      takes_any |= before;
    });
  });
  if (is_used || !op.makes_tensors) return is_used;
  if (!takes_any && bytes_announced(op, inputs) == size_t{0}) return false;  // as one is made for another process's batch
  const c10::IValue* where = op.device_argument < 0 ? nullptr : &inputs[op.device_argument];
  if (where != nullptr && where->isDevice()) return device.may_be(where->toDevice());
  return takes_any ? is_near : device.has(c10::Device(c10::kCPU));
}

void Ops::join(ThreadState& thread) {
  thread.joined = true;
  if (!thread.carries_out) on_.lasting.turns.op_begins(thread);
  if (thread.is_apart()) return;
  ++on_.stats.ops;
  on_.refusals.guarded(thread, [&] { settle_dues(thread); });
  on_.refusals.guarded(thread, [&] { on_.progress.record(thread); });
  thread.tries = on_.recorder.records(thread);
  on_.refusals.guarded(thread, [&] { on_.pressing.press_out_all(on_.lasting.stress); });
}

void Ops::join_late(ThreadState& thread, size_t bytes) {
  if (thread.joined || thread.session != on_.lasting.books.session()) return;
  join(thread);
  on_.refusals.guarded(thread, [&] { on_.preparing.make_ready(thread, *thread.op, {}, bytes, /*joins=*/true); });
  thread.starting = false;
  on_.lasting.turns.op_starts(thread);
}

// The work that falls due when an op begins, whatever it uses.
void Ops::settle_dues(ThreadState& thread) {
  on_.progress.op_begins();
  on_.ordinary.free_when_due(*on_.memory.device);
  if (on_.growth.is_beyond_limit()) on_.growth.return_to_limit();
  on_.planned.before_op(thread, identity_of(thread.op->name_hash, at::GradMode::is_enabled()));
}

// Returns whether anything had to come in.
bool Ops::use_inputs(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, bool joins) {
  touch_inputs(thread, op, inputs);
  if (op.keeps_pointers) on_.refusals.guarded(thread, [&] { on_.paging.bring_out_all(thread); });
  thread.starting = joins;
  if (joins) thread.announced = bytes_announced(op, inputs).value_or(0);
  const bool runs_in_slices = thread.split && !thread.split->is_tried;
  // (Of one that may hand on what it is given, such as `to`, what reads it is another. After a call that ran in slices the
  // next one may be given what was made away; nobody has pointers to anything between the two.)
  const bool is_next = thread.was_split && thread.working.is_outermost(thread.depth) && !thread.missing.empty();
  const bool reads_first = joins || is_next || (thread.op->is_view && !thread.maps && op.reads_data);
  if (reads_first && !runs_in_slices) on_.refusals.guarded(thread, [&] { on_.paging.prepare(thread, op); });
  if (joins && runs_in_slices) on_.paging.stand_by(thread, op);
  const bool comes_in = !thread.missing.empty() || !thread.foreign.empty() || thread.remade;
  thread.remade = false;
  thread.was_split |= runs_in_slices;
  on_.refusals.guarded(thread, [&] { on_.preparing.make_ready(thread, op, inputs, joins ? thread.announced : 0, joins); });
  on_.refusals.guarded(thread, [&] { on_.paging.bring_rows(thread, op, inputs); });
  thread.streamed.clear();
  if (op.keeps_pointers) on_.refusals.guarded(thread, [&] { on_.lasting.collectives.begins(thread, inputs); });
  return comes_in;
}

void Ops::use_whole(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, const std::vector<Block*>& blocks) {
  thread.was_split = false;
  for (Block* block : blocks) {
    if (block == nullptr || block->resident()) continue;
    thread.input_bytes += on_.memory.arena->round(block->bytes);
    thread.missing.push_back(block);
  }
  on_.refusals.guarded(thread, [&] { on_.paging.prepare(thread, op); });
  on_.refusals.guarded(thread, [&] { on_.preparing.make_ready(thread, op, inputs, /*announced=*/0, /*joins=*/false); });
}

void Ops::rest(ThreadState& thread, std::initializer_list<c10::ArrayRef<const c10::IValue>> values) {
  for (const c10::ArrayRef<const c10::IValue>& each : values)
    for (const c10::IValue& value : each)
      each_storage(value, [&](const c10::Storage& storage, Part) {
        Block* block = on_.lasting.books.find(*storage.unsafeGetStorageImpl());
        if (block != nullptr) on_.uses.rest(thread, *block);
      });
  thread.input_bytes = 0;
}

bool Ops::learns() const { return on_.stats.budget_bytes != 0 || on_.recorder.on(); }

void Ops::touch_inputs(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  // A profiler that notes shapes asks all inputs for their addresses, a view's too.
  const bool profiled = at::hasThreadLocalCallbacks();
  const bool is_doubtful = thread.doubts(*on_.memory.device);
  each_operand(op, inputs, [&](size_t i, const c10::IValue& input) {
    const bool reads = op.reads(i) || profiled, write = op.may_write(i) || (is_doubtful && reads);
    const bool is_number = input.isTensor() && input.toTensor().defined() && input.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
    on_.refusals.guarded(thread, [&] {
      each_storage(input, [&](const c10::Storage& storage, Part part) {
        if (part == Part::kElements)
          on_.uses.touch(thread, storage, write, reads, is_number);
        else
          on_.uses.keep_in_place(thread, storage);
      });
    });
  });
}

// For what came in, and for what another thread's op may have moved since the last time.
void Ops::follow_streams(ThreadState& thread, bool comes_in) {
  Device& device = *on_.memory.device;
  if (!device.is_asynchronous()) return;
  if ((!comes_in && thread.touched.size() == thread.followed) || thread.touched.empty() || !device.is_aside()) return;
  device.follow();
  thread.followed = thread.touched.size();
  thread.aside = true;
}

void Ops::show_outputs(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::IValue> outputs) {
  on_.refusals.guarded(thread, [&] {
    bool held = op.uninitialised && thread.depth == 1;
    for (const c10::IValue& output : outputs)
      each_storage(output, [&](const c10::Storage& storage, Part part) { on_.uses.show(thread, storage, part, held); });
    if (thread.depth == 1 && on_.recorder.records_shapes(thread)) {
      on_.recorder.shapes(thread.row) += '>';
      for (const c10::IValue& output : outputs) append_shapes(output, on_.recorder.shapes(thread.row));
    }
    on_.capturing.op_ends(thread, op, outputs);
    if (thread.leaf == 0 && !thread.recomputing) on_.in_place.op_ends(thread);
    if (thread.depth == 1) on_.trimming.op_ends(thread, op, outputs);
    if (op.keeps_pointers)
      on_.lasting.collectives.returned(thread, op.name_hash, outputs);
    else if (std::any_of(outputs.begin(), outputs.end(), is_opaque))
      for (Block* block : thread.touched) Recorder::pin(*block, &on_.recorder);
  });
}

// The frame is closed, whatever has gone wrong in it.
std::function<void()> Ops::end(ThreadState& thread) {
  if (thread.joined) on_.refusals.guarded(thread, [&] {
    const bool failed = thread.failure.kind != Failure::Kind::kNone;
    const size_t alignment = on_.memory.arena->ranges.alignment();
    const size_t need = failed || !learns() ? 0 : thread.was_split ? on_.needs.whole(thread, alignment) : on_.needs.learn(thread, alignment);
    on_.paging.settle(thread);
    if (!thread.is_apart()) on_.progress.op_ends(thread, need, on_.splitting.need_of(thread, need));
  });
  on_.refusals.guarded(thread, [&] { on_.in_place.op_ends(thread); });
  let_go(thread);
  return thread.is_apart() ? nullptr : on_.progress.due();
}

void Ops::let_go(ThreadState& thread) {
  if (thread.aside) on_.refusals.guarded(thread, [&] { on_.memory.device->lead(); });
  thread.end([&](Block& block) {
    if (on_.lasting.books.let_go(block) && block.mapped) on_.paging.leave(thread, block);
  });
  on_.paging.op_ends(thread);
  if (!thread.is_apart()) on_.refusals.guarded(thread, [&] { on_.planned.after_op(thread); });
  on_.refusals.put_off(thread);
  on_.lasting.turns.op_is_over(thread);
}

}  // namespace memfit
