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

bool is_room_without_copies(Session& session, size_t bytes) {
  const size_t size = session.memory.arena->round(bytes);
  return session.memory.arena->ranges.largest_free() >= size || session.residency.make_room_by_drops(size);
}

// A trial is none of the op's own work.
class NotOfTheOp {
 public:
  NotOfTheOp(Engine& engine, ThreadState& thread)
      : engine_(engine), stopwatch_(thread.waited_ns), stop_(engine.governing([](Session& session) { return session.recorder.clock_stops(); })) {}
  NotOfTheOp(const NotOfTheOp&) = delete;
  NotOfTheOp& operator=(const NotOfTheOp&) = delete;
  ~NotOfTheOp() {
    try {
      engine_.governing([this](Session& session) { session.recorder.clock_goes_on(stop_); });
    } catch (const std::exception&) {
      // The device's next answer says what is wrong.
    }
  }

 private:
  Engine& engine_;
  Stopwatch stopwatch_;
  Recorder::Stop stop_;
};

// What a call has written over is made first, by the calls that had made it.
// (Nothing where it is not known what had.)
std::optional<std::vector<const Recipe*>> calls_before(const Recipe& recipe) {
  std::vector<const Recipe*> calls;
  for (const Operand& operand : recipe.operands) {
    if (!operand.value || operand.value->is_blank || !Values::is_gone(*operand.value)) continue;
    if (!operand.value->recipe) return std::nullopt;
    for (const Recipe* call : Values::chain(*operand.value))
      if (std::find(calls.begin(), calls.end(), call) == calls.end()) calls.push_back(call);
  }
  return calls;
}

// Nobody needs those of what was made for the comparison.
bool have_same_bytes(Session& session, const Block& made, const Block& other) {
  return made.temporary && made.bytes == other.bytes && session.memory.device->have_same_bytes(made.address(), other.address(), made.bytes);
}

}  // namespace

// The op's frame is closed, whatever goes wrong here.
void Trying::op_ended(ThreadState& thread, c10::ArrayRef<c10::IValue> outputs) try {
  if (outputs.size() != 1 || !outputs[0].isTensor() || !outputs[0].toTensor().defined()) return;
  const NotOfTheOp apart(engine_, thread);
  const std::shared_ptr<const Recipe> recipe = thread.recipe;
  const at::Tensor& output = outputs[0].toTensor();
  for (size_t operand : InPlace::candidates(*recipe, output)) {
    const uint64_t key = TriedCalls::key_of(*recipe, operand);
    std::optional<bool> known;
    engine_.governing([&](Session& session) { known = session.tried.comes_out_over(key); });
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

// Where that is free: nothing is copied for it. (Of what a backward pass makes next to nothing is kept.)
void Trying::outputs_kept(ThreadState& thread, const std::shared_ptr<const Recipe>& recipe) try {
  if (!at::GradMode::is_enabled() || thread.failure.kind != Failure::Kind::kNone) return;
  size_t bytes = 0;
  std::optional<uint64_t> ns_before;
  engine_.governing([&](Session& session) {
    for (const std::weak_ptr<Value>& result : recipe->results)
      if (const ValueRef value = result.lock()) bytes += value->bytes;
    const auto before = bytes != 0 && !session.tried.comes_out_again(*recipe) ? calls_before(*recipe) : std::nullopt;
    if (before) ns_before = session.tried.ns_again(*before);
    if (ns_before && !is_room_without_copies(session, bytes)) ns_before.reset();
  });
  if (!ns_before) return;
  const NotOfTheOp apart(engine_, thread);
  TriedCalls::Again again = come_out_again(recipe);
  if (again.ns != 0) again.ns -= std::min(again.ns - 1, *ns_before);
  engine_.governing([&](Session& session) { session.tried.again.emplace(TriedCalls::key_of(*recipe), again); });
} catch (const std::exception&) {
  // It is tried when it is dropped.
}

// (The bytes have been compared: the moments before have passed.)
TriedCalls::Again Trying::come_out_again(const std::shared_ptr<const Recipe>& recipe) {
  Aside aside(/*on_trial=*/true);
  Making making(engine_);
  const auto stamp = [&] { return engine_.governing([](Session& session) { return session.memory.device->stamp(); }); };
  const int64_t from = stamp();
  const std::vector<ValueRef> values = making.make_all(recipe);
  const int64_t to = stamp();
  const bool is_same = std::all_of(values.begin(), values.end(), [&](const ValueRef& value) { return is_what_is_there(*value, making.made(*value)); });
  if (values.empty() || !is_same) return {};
  if (from == 0 || to == 0) return {true, 0};
  const int64_t ns = engine_.governing([&](Session& session) { return session.memory.device->time_of(to) - session.memory.device->time_of(from); });
  return {true, static_cast<uint64_t>(std::max<int64_t>(ns, 1))};
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
    for (const Recipe* recipe : chain) session.tried.again.emplace(TriedCalls::key_of(*recipe), TriedCalls::Again{comes_out, 0});
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
