#include "trying.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "engine.h"
#include "in_place.h"
#include "making.h"
#include "observer.h"
#include "stopwatch.h"
#include "values.h"

namespace memfit {

namespace {

constexpr size_t kLeastTried = size_t{64} << 10;  // bytes: a plan hardly drops what is smaller

bool have_same_bytes(Session& session, const Block& one, const Block& other) {
  return one.bytes == other.bytes && session.memory.device->have_same_bytes(one.address(), other.address(), one.bytes);
}

}  // namespace

// The op's frame is closed, whatever goes wrong here.
void Trying::op_ended(ThreadState& thread, c10::ArrayRef<c10::IValue> outputs) try {
  if (outputs.size() != 1 || !outputs[0].isTensor() || !outputs[0].toTensor().defined()) return;
  Stopwatch stopwatch(thread.waited_ns);  // it is none of the op's own work
  const std::shared_ptr<const Recipe> recipe = thread.recipe;
  const at::Tensor& output = outputs[0].toTensor();
  for (size_t operand : InPlace::candidates(*recipe, output)) {
    const uint64_t key = TriedCalls::key_of(*recipe, operand);
    std::optional<bool> known;
    engine_.governing([&](Session& session) { known = TriedCalls::find(session.tried.over, key); });
    if (!known && is_room_for(thread, recipe->operands[operand].value->bytes)) {
      known = comes_out_over(recipe, operand, output);
      engine_.governing([&](Session& session) { session.tried.over[key] = *known; });
    }
    const Value& input = *recipe->operands[operand].value;
    if (known.value_or(false) && can_be_made_again(thread, input)) note(thread, input, output);
  }
} catch (const std::exception&) {
  // Nothing is handed over.
}

// Where that is free: nothing leaves for it. (Of what a backward pass makes next to nothing is kept. What a call has written
// over is not there to begin with again.)
void Trying::outputs_kept(ThreadState& thread, const std::shared_ptr<const Recipe>& recipe) try {
  if (!at::GradMode::is_enabled() || thread.failure.kind != Failure::Kind::kNone) return;
  size_t bytes = 0;
  bool writes = false, is_wanted = false;
  engine_.governing([&](Session& session) {
    for (const std::weak_ptr<Value>& result : recipe->results)
      if (const ValueRef value = result.lock()) bytes += value->bytes, writes |= value->written >= 0;
    const bool is_room = session.memory.arena->ranges.largest_free() >= session.memory.arena->round(bytes);
    is_wanted = !writes && bytes >= kLeastTried && is_room && !session.tried.comes_out_again(*recipe);
  });
  if (!is_wanted) return;
  Stopwatch stopwatch(thread.waited_ns);
  const bool comes_out = come_out_again(recipe);
  engine_.governing([&](Session& session) { session.tried.again.emplace(TriedCalls::key_of(*recipe), comes_out); });
} catch (const std::exception&) {
  // It is tried when it is dropped.
}

bool Trying::come_out_again(const std::shared_ptr<const Recipe>& recipe) {
  Aside aside(/*on_trial=*/true);
  Making making(engine_);
  const std::vector<ValueRef> values = making.make_all(recipe);
  return !values.empty() && std::all_of(values.begin(), values.end(), [&](const ValueRef& value) { return is_what_is_there(*value, making.made(*value)); });
}

// A host compares the bytes whenever they are made again.
bool Trying::can_be_made_again(const ThreadState& thread, const Value& value) {
  bool is_compared = true, is_made = false;
  std::optional<bool> known;
  engine_.governing([&](Session& session) {
    is_compared = !session.memory.device->is_asynchronous();
    is_made = value.block != nullptr && Values::sources(*value.block, nullptr, &thread);
    known = session.in_place.can_be_made_again(value);
  });
  if (is_compared || !is_made) return is_made;
  if (known || !is_room_for(thread, value.bytes)) return known.value_or(false);
  const bool comes_out = comes_out_again(value);
  engine_.governing([&](Session& session) {
    const std::vector<const Recipe*> chain = Values::chain(value);
    if (!comes_out && chain.size() > 1) return;  // which of them was it?
    for (const Recipe* recipe : chain) session.tried.again.emplace(TriedCalls::key_of(*recipe), comes_out);
  });
  return comes_out;
}

bool Trying::comes_out_again(const Value& value) try {
  Aside aside(/*on_trial=*/true);
  Making making(engine_);
  return is_what_is_there(value, making.make(value));
} catch (const std::exception&) {
  return false;
}

bool Trying::is_what_is_there(const Value& value, const c10::Storage& made) {
  return engine_.governing([&](Session& session) {
    bring_in(session, {made});
    const Block* here = session.lasting.books.find(*made.unsafeGetStorageImpl());
    return value.block != nullptr && value.block->resident() && value.block != here && have_same_bytes(session, *here, *value.block);
  });
}

// Nothing but what the op uses is in its way.
bool Trying::is_room_for(const ThreadState& thread, size_t bytes) {
  return thread.failure.kind == Failure::Kind::kNone && engine_.governing([&](Session& session) {
    const size_t size = session.memory.arena->round(bytes);
    return session.memory.arena->ranges.largest_free() >= size || session.residency.has_window(size, /*running=*/true);
  });
}

void Trying::note(ThreadState& thread, const Value& input, const at::Tensor& output) {
  engine_.governing([&](Session& session) {
    const Block* taker = session.lasting.books.find(*output.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    if (input.block != nullptr && taker != nullptr) thread.handovers.emplace_back(input.block->id, taker->id);
  });
}

// What cannot be tried is as good as what comes out different.
bool Trying::comes_out_over(const std::shared_ptr<const Recipe>& recipe, size_t operand, const at::Tensor& output) try {
  Aside aside(/*on_trial=*/true);
  Making making(engine_);
  const std::unique_ptr<ReRun> again = making.run_over(recipe, operand);
  const at::Tensor made = again->outputs()[0].toTensor();
  const bool has_its_layout = made.sizes() == output.sizes() && made.strides() == output.strides();
  return has_its_layout && engine_.governing([&](Session& session) {
    bring_in(session, {made.storage()});
    const Block* here = session.lasting.books.find(*made.storage().unsafeGetStorageImpl());
    const Block* there = session.lasting.books.find(*output.storage().unsafeGetStorageImpl());
    const bool is_there = there != nullptr && there->resident();
    return is_there && here->id == this_thread().heir && have_same_bytes(session, *here, *there);
  });
} catch (const std::exception&) {
  return false;
}

}  // namespace memfit
