// The ops that a plan has run again before an op, one after the other.
#include "planned.h"

namespace memfit {

// Nothing, where the program's next op is not the one that the plan has them run before; nor where something that they
// need may not have been made. What is away then is made again when it is used.
Planned::Remaking Planned::remaking_due(uint64_t identity) {
  Remaking remaking;
  if (!remakings_ || !stream_->begun() || !may_drop() || !stream_->runs_again(stream_->next()) || !stream_->comes_next(identity)) return remaking;
  const size_t before = stream_->next_own();
  remaking.course = course_;
  remaking.before = static_cast<uint32_t>(before);
  const bool is_wanted = remakings_->is_any_away(before);
  for (size_t op = stream_->next(); op < before; ++op)
    remaking.steps.push_back({static_cast<uint32_t>(op), is_wanted ? remakings_->recipes(op) : Recipes()});
  return remaking;
}

bool Planned::step_begins(const Remaking& remaking, const Step& step, ThreadState& thread) {
  if (!is_followed(remaking)) return false;
  stream_->on_step();
  begin_op(thread, step.op);
  if (!is_followed(remaking)) return false;  // dropped, for want of room
  thread.again = step.op + 1;
  return true;
}

void Planned::step_ends(const Remaking& remaking, const Step& step) {
  if (is_followed(remaking)) act_after(step.op);
}

Block* Planned::expected(const Remaking& remaking, const Value& value) const {
  return is_followed(remaking) ? remakings_->expects(remaking.before, value) : nullptr;
}

void Planned::came_back(const Remaking& remaking, Block& from, Block& block) {
  if (!is_followed(remaking)) return;
  swaps_->pass_on(from, block);
  remakings_->came_back(remaking.before, block);
}

void Planned::failed(const Remaking& remaking, const Value& value, const std::string& why) {
  if (is_followed(remaking)) remakings_->failed(remaking.before, value, why);
}

void Planned::remaking_ends(const Remaking& remaking) {
  if (is_followed(remaking)) remakings_->end(remaking.before, stream_->is_derailed());
}

// In an iteration that is not as planned, something else may have changed what a value is made from.
Planned::Trials Planned::trials_due(uint64_t identity) {
  if (!remakings_ || !stream_->begun() || stream_->is_derailed() || !stream_->comes_next(identity)) return {};
  return {course_, remakings_->trials(stream_->next_own())};
}

void Planned::trial_ends(const Trials& trials, const Remakings::Trial& trial, const Block& made) {
  if (!is_awaited(trials)) return;
  if (discarding_.is_same(trial.print, made)) return remakings_->end_trial(trial);
  ++stats_.failed_recomputations;
  trial_failed(trials, trial, "they came out different");
}

// What could not be tried is no re-run that failed: nobody has asked for it.
void Planned::trial_failed(const Trials& trials, const Remakings::Trial& trial, const std::string& why) {
  if (is_awaited(trials)) remakings_->fail_trial(trial, why);
}

}  // namespace memfit
