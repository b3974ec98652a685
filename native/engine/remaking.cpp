// The ops that a plan has run again before an op, one after the other.
#include "planned.h"

namespace memfit {

// Where the program's next op is not the one that the plan has them run before, the plan is not followed any more.
Planned::Remaking Planned::remaking_due(uint64_t name_hash) {
  Remaking remaking;
  if (!remakings_ || !swaps_->on_course() || !remakings_->runs_again(swaps_->next_op())) return remaking;
  const size_t before = remakings_->end_of_run(swaps_->next_op());
  if (before >= swaps_->ops() || swaps_->name_hash(before) != name_hash) {
    swaps_->leave_course();
    copies_.settle_all();
    return remaking;
  }
  remaking.course = course_;
  remaking.before = static_cast<uint32_t>(before);
  const bool is_wanted = remakings_->is_any_away(before);
  for (size_t op = swaps_->next_op(); op < before; ++op)
    remaking.steps.push_back({static_cast<uint32_t>(op), is_wanted ? remakings_->recipes(op) : Recipes()});
  return remaking;
}

bool Planned::step_begins(const Remaking& remaking, const Step& step, ThreadState& thread) {
  if (!is_followed(remaking)) return false;
  before_op(thread, swaps_->name_hash(step.op));
  if (!is_followed(remaking)) return false;  // dropped, for want of room
  thread.again = step.op + 1;
  return true;
}

void Planned::step_ends(const Remaking& remaking, const Step& step) {
  if (!is_followed(remaking)) return;
  memory_.arena->plan()->pass_over(step.op + 1);
  for (uint32_t swap : swaps_->after(step.op)) start_out(swap);
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
  if (is_followed(remaking)) remakings_->end(remaking.before);
}

}  // namespace memfit
