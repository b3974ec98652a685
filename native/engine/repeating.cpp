#include "repeating.h"

#include <algorithm>
#include <exception>
#include <unordered_map>

#include "engine.h"
#include "stopwatch.h"

namespace memfit {

namespace {

using LastUses = std::unordered_map<const Value*, uint32_t>;

// By value, the last step that reads it: what is made on the way goes then.
LastUses last_uses(const Planned::Remaking& remaking) {
  LastUses last;
  for (const Planned::Step& step : remaking.steps)
    for (const auto& recipe : step.recipes)
      for (const Operand& operand : recipe->operands)
        if (operand.value) last[operand.value.get()] = step.op;
  return last;
}

void forget_used(Making& making, const LastUses& last, uint32_t step, std::vector<ValueRef>& on_the_way) {
  const auto is_over = [&](const ValueRef& value) {
    auto found = last.find(value.get());
    return found == last.end() || found->second <= step;
  };
  for (const ValueRef& value : on_the_way)
    if (is_over(value)) making.forget(*value);
  on_the_way.erase(std::remove_if(on_the_way.begin(), on_the_way.end(), is_over), on_the_way.end());
}

}  // namespace

void Repeating::try_drops(const Planned::Trials& trials) {
  if (trials.of.empty()) return;
  Aside aside(/*on_trial=*/true);
  for (const Remakings::Trial& trial : trials.of) {
    Making making(engine_);
    try_drop(making, trials, trial);
  }
}

// Made for the comparison alone: the storage's bytes are in the tier, or it has died.
void Repeating::try_drop(Making& making, const Planned::Trials& trials, const Remakings::Trial& trial) {
  const auto& recipe = trial.value->recipe;
  const std::string of_op = recipe ? recipe->op->name + ": " : "";
  std::string why;
  try {
    const c10::Storage made = making.make_alone(*trial.value);
    return engine_.governing([&](Session& session) {
      bring_in(session, {made});
      session.planned.trial_ends(trials, trial, *session.lasting.books.find(*made.unsafeGetStorageImpl()));
    });
  } catch (const c10::Error& error) {
    why = of_op + error.what_without_backtrace();
  } catch (const std::exception& error) {
    why = of_op + error.what();
  }
  engine_.governing([&](Session& session) { session.planned.trial_failed(trials, trial, why); });
}

void Repeating::run_before(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  Planned::Trials trials;
  const auto remaking = engine_.governing([&](Session& session) {
    const uint64_t identity = identity_of(op.name_hash, at::GradMode::is_enabled());
    trials = session.planned.trials_due(identity);
    Planned::Remaking due = session.planned.remaking_due(identity);
    return due.steps.empty() || session.ops.concerns(op, inputs) ? due : Planned::Remaking();
  });
  try_drops(trials);
  if (remaking.steps.empty()) return;
  Aside aside;
  Making making(engine_);
  const LastUses last = last_uses(remaking);
  ValueRefs on_the_way;
  for (const Planned::Step& step : remaking.steps) {
    if (!begins(remaking, step)) break;
    run(making, remaking, step, on_the_way);
    forget_used(making, last, step.op, on_the_way);
    engine_.governing([&](Session& session) { session.planned.step_ends(remaking, step); });
  }
  engine_.governing([&](Session& session) { session.planned.remaking_ends(remaking); });
}

bool Repeating::begins(const Planned::Remaking& remaking, const Planned::Step& step) {
  return engine_.governing([&](Session& session) {
    if (!session.planned.step_begins(remaking, step, this_thread())) return false;
    if (session.timeline.on()) session.timeline.op_begins(session.memory.device->stamp(), session.memory.arena->used());
    return true;
  });
}

// A value whose op fails is missing later: then the reason is another, and the first one is kept.
void Repeating::run(Making& making, const Planned::Remaking& remaking, const Planned::Step& step, ValueRefs& on_the_way) {
  for (const auto& recipe : step.recipes) {
    ValueRefs made;
    uint64_t took_ns = 0;
    try {
      Stopwatch stopwatch(took_ns, nullptr, making.is_timed());
      made = making.make_all(recipe);
    } catch (const Forgotten& error) {
      // In an iteration that is not as planned something else was kept; what is away is made again when it is used, or read.
      if (!engine_.governing([](Session& session) { return session.planned.is_derailed(); }))
        for (const auto& result : recipe->results)
          if (const ValueRef value = result.lock()) refuse(remaking, *value, error.what(), /*has_run=*/false);
    } catch (const std::exception& error) {
      const auto* raised = dynamic_cast<const c10::Error*>(&error);
      for (const auto& result : recipe->results)
        if (const ValueRef value = result.lock()) refuse(remaking, *value, raised ? raised->what_without_backtrace() : error.what());
    }
    engine_.governing([&](Session& session) { session.stats.recompute_ns += took_ns; });
    for (const ValueRef& value : made) {
      if (bring_back(making, remaking, value))
        making.forget(*value);
      else
        on_the_way.push_back(value);
    }
  }
}

bool Repeating::bring_back(Making& making, const Planned::Remaking& remaking, const ValueRef& value) {
  try {
    return engine_.governing([&](Session& session) {
      if (session.planned.expected(remaking, *value) == nullptr) return false;
      const c10::Storage& made = making.made(*value);
      bring_in(session, {made});  // the storage may die meanwhile, or come in
      Block* block = session.planned.expected(remaking, *value);
      if (block == nullptr) return false;
      Block* from = session.lasting.books.find(*made.unsafeGetStorageImpl());
      session.discarding.come_back(*block, *made.unsafeGetStorageImpl());
      session.planned.came_back(remaking, *from, *block);
      return true;
    });
  } catch (const std::exception& error) {
    refuse(remaking, *value, error.what());
  }
  return false;
}

// No later plan drops it. (`has_run`: what it is made from was there, so that a re-run has failed.)
void Repeating::refuse(const Planned::Remaking& remaking, const Value& value, const std::string& why, bool has_run) {
  engine_.governing([&](Session& session) {
    if (session.planned.expected(remaking, value) == nullptr) return;
    session.stats.failed_recomputations += has_run;
    session.planned.failed(remaking, value, value.recipe ? value.recipe->op->name + ": " + why : why);
  });
}

}  // namespace memfit
