#include "progress.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "backward.h"
#include "operands.h"
#include "observer.h"

namespace memfit {

void Progress::op_begins() {
  if (iterations_.period_ends(on_.stats.ops)) iteration_ends();
  if (iterations_.takes_too_long_to_forecast(on_.forecast.ops())) on_.forecast.on_boundary(on_.books.all());
  on_.forecast.on_op();
  if (on_.timeline.on()) on_.timeline.op_begins(on_.memory.device->stamp(), on_.memory.arena->used());
}

void Progress::record(ThreadState& thread) {
  give_up_if_due();
  if (!on_.recorder.on()) return;
  auto node = node_that_runs();
  thread.recording = on_.recorder.number();
  thread.row = on_.recorder.op_begins(thread.op->id, node ? Phase::kBackward : phase_, thread.source, thread.sequence_number,
                                      node.value_or(-1), at::GradMode::is_enabled());
}

void Progress::op_ends(const ThreadState& thread, size_t need, size_t split_need) {
  const bool recorded = on_.recorder.records(thread);
  if (recorded && thread.failure.kind == Failure::Kind::kNone)
    on_.recorder.op_ends(thread.row, static_cast<int64_t>(need), static_cast<int64_t>(split_need), thread.waited_ns);
  if (recorded)
    for (const auto& [giver, taker] : thread.handovers) on_.recorder.handed_over(thread.row, giver, taker);
  iterations_.on_op(thread.need_key, thread.allocated);
  if (recorded) find_period_if_due();
}

void Progress::find_period_if_due() {
  auto length = iterations_.find_period(on_.recorder, on_.stats.ops);
  if (!length) return;
  iteration_ends();
  iterations_.mark_period(on_.recorder.op_count(), *length);
  period_found_ = true;
}

// A stream that never repeats itself (evaluation, a simulation) is not recorded for ever. The next step begins anew.
void Progress::give_up_if_due() {
  if (!on_.recorder.on() || !iterations_.takes_too_long(on_.recorder.op_count())) return;
  on_.recorder.stop();
  gave_up_ = true;
  on_.stats.recording_given_up_ops = on_.stats.ops - 1;
}

void Progress::on_step() {
  iterations_.on_step();
  iteration_ends();
}

void Progress::iteration_ends() {
  on_.memory.device->note_iteration(on_.stats.measured_iterations, on_.stats.iterations_ns);
  iterations_.end(on_.forecast.ops());
  on_.forecast.on_boundary(on_.books.all());
  on_.planned.iteration_ends();
  on_.copies.tell_tier();
  if (on_.timeline.on()) on_.timeline.iteration_ends(on_.memory.device->stamp());
  if (on_.recorder.on()) iterations_.mark(on_.recorder);
  if (gave_up_) start_recording();
}

void Progress::start_recording(bool at_boundary) {
  gave_up_ = false;
  iterations_.forget_marks();
  restart_clock();
  std::vector<Block*> own;  // what an earlier session has left behind lies in an arena of its own
  std::copy_if(on_.books.all().begin(), on_.books.all().end(), std::back_inserter(own),
               [&](const Block* block) { return on_.books.is_of_session(*block); });
  on_.recorder.start(*on_.memory.device, own);
  if (on_.ghosts.are_watched()) on_.ghosts.record_all();
  if (at_boundary) iterations_.mark(on_.recorder);
}

void Progress::start_timeline() {
  on_.timeline.stop();
  restart_clock();
  on_.timeline.start();
}

Timeline Progress::stop_timeline() {
  on_.copies.finish();
  on_.timeline.stop();
  on_.timeline.resolve(*on_.memory.device);
  return std::move(on_.timeline);
}

// Times that are still to be read are counted from its last start.
void Progress::restart_clock() {
  if (on_.recorder.on() || on_.timeline.on()) return;
  on_.copies.finish();
  on_.memory.device->restart_clock();
}

}  // namespace memfit
