#include "recorder.h"

#include <algorithm>
#include <utility>

#include "hash.h"

namespace memfit {

namespace {

// A clock that stands still for some stretches of another one's time.
class StoppedClock {
 public:
  // In the order in which they begin.
  void stand_still(int64_t from, int64_t to) {
    if (!until_.empty()) from = std::max(from, until_.back().first);
    if (to > from) until_.emplace_back(to, (until_.empty() ? 0 : until_.back().second) + to - from), from_.push_back(from);
  }
  int64_t at(int64_t time) const {
    const auto next = static_cast<size_t>(std::upper_bound(from_.begin(), from_.end(), time) - from_.begin());
    if (next == 0) return time;
    const auto& [to, stood] = until_[next - 1];
    return std::max(time, to) - stood;
  }

 private:
  std::vector<int64_t> from_;
  std::vector<std::pair<int64_t, int64_t>> until_;  // and for how long it has stood still by then, in all
};

}  // namespace

void Recorder::start(Device& device, const std::vector<Block*>& alive) {
  static uint64_t recordings = 0;  // of all sessions: an op that began in one may end in another
  device_ = &device;
  take();
  number_ = ++recordings;
  has_backward_ = false;
  for (const Block* block : alive) adopted(*block);
  on_ = true;
}

// Raw memory (a library's workspace, which outlives its op) has no storage, and can be moved as little as what is pinned.
void Recorder::adopted(const Block& block) {
  was_before(block, !block.attached());
  if (block.pinned && block.attached()) pinned(block, 0, /*inside_op=*/false, 0);
}

void Recorder::was_before(const Block& block, bool stays) {
  events_.before.insert(events_.before.end(), {static_cast<int64_t>(block.id), static_cast<int64_t>(block.bytes), stays});
}

void Recorder::pin(Block& block, Recorder* recorder) {
  if (block.pinned) return;
  block.pinned.is_set_ = true;
  if (recorder != nullptr && recorder->on())
    recorder->pinned(block, recorder->op_count(), this_thread().depth > 0, recorder->tick_count());
}

void Recorder::is_raw(const Block& block) {
  if (on()) pinned(block, 0, /*inside_op=*/false, 0);
}

void Recorder::pinned(const Block& block, int64_t ops_begun, bool inside_op, int64_t tick) {
  events_.pins.insert(events_.pins.end(), {static_cast<int64_t>(block.id), ops_begun, inside_op, tick, block.source});
}

bool Recorder::has_both_passes(int64_t from, int64_t to) const {
  bool seen[2] = {false, false};
  for (int64_t row = from; row < to; ++row)
    seen[events_.ops[static_cast<size_t>(row) * OpColumn::count + OpColumn::phase] == static_cast<int64_t>(Phase::kBackward)] =
        true;
  return seen[0] && seen[1];
}

Recording Recorder::stop() {
  read_clock(events_);
  on_ = false;
  return take();
}

// Its tickets become the times that they stand for, on a clock that stands still where it was stopped.
void Recorder::read_clock(Recording& events) const {
  std::vector<std::pair<int64_t, int64_t>> stops;
  for (const auto& [from, to] : stops_) stops.emplace_back(device_->time_of(from), device_->time_of(to));
  std::sort(stops.begin(), stops.end());
  StoppedClock clock;
  for (const auto& [from, to] : stops) clock.stand_still(from, to);
  for (size_t row = 0; row < events.ops.size(); row += OpColumn::count)
    for (size_t column : {OpColumn::start_ns, OpColumn::end_ns}) {
      int64_t& time = events.ops[row + column];
      if (time != 0) time = clock.at(device_->time_of(time));
    }
}

// Leaves nothing behind, no spare capacity either.
Recording Recorder::take() {
  give_back(source_by_sequence_);
  give_back(stops_);
  return std::exchange(events_, Recording());
}

int64_t Recorder::op_begins(int64_t name, Phase phase, int64_t source, int64_t sequence_number, int64_t node_number, bool with_grad) {
  if (phase == Phase::kForward && sequence_number >= 0 && source >= 0) {
    // Only ascending numbers are kept, so that a lookup is a binary search; a second thread's are dropped.
    if (source_by_sequence_.empty() || source_by_sequence_.back().first < sequence_number)
      source_by_sequence_.emplace_back(sequence_number, source);
  }
  has_backward_ |= phase == Phase::kBackward;
  int64_t row = events_.op_count();
  events_.ops.insert(events_.ops.end(), {name, static_cast<int64_t>(phase), source, device_->stamp(), 0, events_.tick_count(),
                                         0, 0, forward_source(node_number), 0, with_grad});
  events_.tokens.push_back(mix(0x5bd1e995u, static_cast<uint64_t>(name)));
  return row;
}

// A backward op belongs to the last forward op that began at or before its node was made.
int64_t Recorder::forward_source(int64_t node_number) const {
  if (node_number < 0) return -1;
  auto after = std::upper_bound(source_by_sequence_.begin(), source_by_sequence_.end(),
                                std::make_pair(node_number, INT64_MAX));
  return after == source_by_sequence_.begin() ? -1 : std::prev(after)->second;
}

void Recorder::op_starts(int64_t row) {
  if (device_->is_asynchronous()) clock_goes_on({number_, events_.ops[static_cast<size_t>(row) * OpColumn::count + OpColumn::start_ns]});
}

Recorder::Stop Recorder::clock_stops() const { return on() && device_->is_asynchronous() ? Stop{number_, device_->stamp()} : Stop{}; }

void Recorder::clock_goes_on(const Stop& stop) {
  if (stop.ticket == 0 || !on() || stop.recording != number_) return;
  if (const int64_t now = device_->stamp(); now != 0) stops_.emplace_back(stop.ticket, now);
}

void Recorder::op_accesses(int64_t row, const Block& block, bool write) {
  events_.accesses.insert(events_.accesses.end(), {row, static_cast<int64_t>(block.id), write});
  auto& token = events_.tokens[static_cast<size_t>(row)];
  token = mix(token, (block.bytes << 1) | (write ? 1 : 0));
}

// (What decides that is not the program alone: it is no part of the ops' tokens.)
void Recorder::held(const Block& block, int64_t from) {
  for (int64_t row = from; row < op_count(); ++row)
    events_.accesses.insert(events_.accesses.end(), {row, static_cast<int64_t>(block.id), /*is_write=*/0});
}

void Recorder::op_ends(int64_t row, int64_t workspace_bytes, int64_t split_bytes, uint64_t waited_ns) {
  int64_t* columns = &events_.ops[static_cast<size_t>(row) * OpColumn::count];
  columns[OpColumn::end_ns] = device_->stamp();
  columns[OpColumn::waited_ns] = device_->is_asynchronous() ? 0 : static_cast<int64_t>(waited_ns);
  columns[OpColumn::workspace_bytes] = workspace_bytes;
  columns[OpColumn::split_bytes] = split_bytes;
}

void Recorder::handed_over(int64_t row, uint64_t giver, uint64_t taker) {
  events_.handovers.insert(events_.handovers.end(), {row, static_cast<int64_t>(giver), static_cast<int64_t>(taker)});
}

void Recorder::allocated(const Block& block, bool inside_op, int64_t source) {
  events_.ticks.insert(events_.ticks.end(), {static_cast<int64_t>(block.id), static_cast<int64_t>(block.bytes),
                                             events_.op_count(), inside_op, source});
}

void Recorder::ghost_allocated(const Block& ghost, bool inside_op, int64_t source) {
  events_.ghosts.push_back(static_cast<int64_t>(ghost.id));
  allocated(ghost, inside_op, source);
}

void Recorder::ghost_before(const Block& ghost) {
  if (ghost.bytes == 0) return;  // a resize took them
  events_.ghosts.push_back(static_cast<int64_t>(ghost.id));
  was_before(ghost, /*stays=*/false);
}

void Recorder::went_out(const Block& block) {
  if (!on() || !block.tier->store().compresses()) return;
  const size_t stored = block.tier->store().stored(block.extent->offset, block.bytes);
  events_.stored.insert(events_.stored.end(), {static_cast<int64_t>(block.id), static_cast<int64_t>(stored)});
}

std::string& Recorder::shapes(int64_t row) {
  if (events_.shapes.size() <= static_cast<size_t>(row)) events_.shapes.resize(static_cast<size_t>(row) + 1);
  return events_.shapes[static_cast<size_t>(row)];
}

void Recorder::released(const Block& block, bool inside_op) {
  events_.ticks.insert(events_.ticks.end(), {static_cast<int64_t>(block.id), -static_cast<int64_t>(block.bytes),
                                             events_.op_count(), inside_op, -1});
}

}  // namespace memfit
