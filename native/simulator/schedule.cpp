#include "simulator/schedule.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace memfit::swapping {
namespace {

constexpr std::int64_t kMostIterations = 6;
// A step is counted for each look at a copy, and more, as was measured, for what takes longer.
constexpr std::int64_t kOpSteps = 3;     // of an op of an iteration
constexpr std::int64_t kRoomSteps = 40;  // of a question to the room, or a change of it

bool is_close(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(1.0, std::abs(a)); }

}  // namespace

Scheduler::Scheduler(const Ops& ops, const Candidates& candidates, double both_factor)
    : ops_(ops),
      all_(candidates),
      both_factor_(both_factor),
      begin_us_(ops.count + 1, 0),
      outs_begin_(ops.count + 1, 0),
      outs_by_op_(candidates.count),
      ins_order_(candidates.count),
      use_(candidates.count),
      lead_(candidates.count),
      blocked_until_(candidates.count),
      absence_(candidates.count),
      place_(candidates.count),
      lanes_(both_factor),
      schedules_(candidates.count),
      stall_us_(ops.count),
      stall_of_(candidates.count) {
  std::partial_sum(ops.duration_us, ops.duration_us + ops.count, begin_us_.begin() + 1);
  compute_us_ = begin_us_.back();
  for (std::int64_t c = 0; c < all_.count; ++c) ++outs_begin_[all_.after[c] + 1];
  std::partial_sum(outs_begin_.begin(), outs_begin_.end(), outs_begin_.begin());
  for (std::int64_t c = 0; c < all_.count; ++c) use_[c] = all_.before[c] % ops_.count;
  // The order of a plan's swaps.
  std::iota(outs_by_op_.begin(), outs_by_op_.end(), 0);
  std::stable_sort(outs_by_op_.begin(), outs_by_op_.end(), [&](std::int64_t a, std::int64_t b) {
    return std::pair(all_.after[a], all_.before[a]) < std::pair(all_.after[b], all_.before[b]);
  });
  ins_order_ = outs_by_op_;
  std::stable_sort(ins_order_.begin(), ins_order_.end(), [&](std::int64_t a, std::int64_t b) { return use_[a] < use_[b]; });
}

double Scheduler::run(const std::vector<std::uint8_t>& chosen, const std::vector<std::int64_t>& slack_bytes) {
  is_chosen_ = chosen;
  ins_.clear();
  for (std::int64_t c : ins_order_)
    if (chosen[c]) ins_.push_back(c);
  find_latest_starts();
  room_.reset(slack_bytes);
  for (std::size_t place = 0; place < ins_.size(); ++place) place_[ins_[place]] = place;
  open_.reset(ins_.size());
  std::fill(blocked_until_.begin(), blocked_until_.end(), 0);
  leaving_.clear();
  leaving_head_ = next_use_ = 0;
  leaving_bytes_ = 0;
  lanes_.clear();
  now_us_ = 0;
  // A storage that is away over the iteration's end is away when the first one begins.
  crosses_ = false;
  for (std::int64_t c : ins_) crosses_ = crosses_ || all_.before[c] >= ops_.count;
  for (std::int64_t c : ins_) absence_[c] = {0, 0, all_.before[c] >= ops_.count, all_.before[c] >= ops_.count, false};
  double begin_us = 0, before_us = -1, backlog_before_us = -1;
  for (std::int64_t number = 0; number < kMostIterations; ++number) {
    begin_us = now_us_;
    has_changed_ = false;
    iterate(number);
    const double took_us = now_us_ - begin_us, backlog_us = lanes_.out.backlog() + lanes_.in.backlog();
    if (number == 0 && !crosses_ && backlog_us <= 0) break;
    if (!has_changed_ && is_close(took_us, before_us) && is_close(backlog_us, backlog_before_us)) break;
    backlog_before_us = backlog_us;
    before_us = took_us;
  }
  return now_us_ - begin_us;
}

// From the last use of the next iteration backwards: each copy ends before its use and before the next one begins.
void Scheduler::find_latest_starts() {
  double next_us = kUnknown;
  for (int round = 1; round >= 0; --round)
    for (auto c = ins_.rbegin(); c != ins_.rend(); ++c) {
      const std::int64_t before = all_.before[*c];
      if (!returns(*c)) {
        lead_[*c] = 0;
        continue;
      }
      const double due_us = begin_us_[use_[*c]] + round * compute_us_;
      next_us = std::min(due_us, next_us) - all_.in_us[*c] / both_factor_;
      const double since_us = next_us - round * compute_us_ + (before >= ops_.count ? compute_us_ : 0);
      lead_[*c] = before - std::max(all_.after[*c] + 1, std::min(op_at(since_us), before));
    }
}

// The last op that begins at or before `us`, counted on over the iteration's end; 0 for what lies before it.
std::int64_t Scheduler::op_at(double us) const {
  if (us <= 0 || compute_us_ <= 0) return 0;
  const auto round = static_cast<std::int64_t>(us / compute_us_);
  const double within_us = us - static_cast<double>(round) * compute_us_;
  const auto above = std::upper_bound(begin_us_.begin(), begin_us_.end() - 1, within_us);
  return round * ops_.count + (above - begin_us_.begin()) - 1;
}

void Scheduler::iterate(std::int64_t number) {
  std::fill(stall_us_.begin(), stall_us_.end(), 0);
  for (std::int64_t c : ins_) stall_of_[c] = 0;
  steps_ += kOpSteps * ops_.count;
  const std::int64_t first = number * ops_.count;
  std::size_t next = 0;  // of `ins_` to be used
  for (std::int64_t op = first; op < first + ops_.count; ++op) {
    const std::int64_t k = op - first;
    if (leaving_head_ < leaving_.size()) {
      lanes_.advance(now_us_);
      free_ended(op);
      make_room(op);
    }
    std::size_t end = next;
    while (end < ins_.size() && use_[ins_[end]] == k) ++end;
    if (!ins_.empty()) use(next, end, op);
    next = end;
    now_us_ += ops_.duration_us[k];
    room_.restore(k);
    for (std::int64_t i = outs_begin_[k]; i < outs_begin_[k + 1]; ++i) {
      const std::int64_t c = outs_by_op_[i];
      if (!is_chosen_[c]) continue;
      lanes_.advance(now_us_);
      absence_[c] = {lanes_.out.push(now_us_, all_.out_us[c]), 0, true, false, false};
      open_.clear(place_[c]);
      leaving_.push_back(c);
      leaving_bytes_ += all_.size_bytes[c];
    }
  }
}

void Scheduler::free_ended(std::int64_t op) {
  while (leaving_head_ < leaving_.size() && absence_[leaving_[leaving_head_]].out_copy < lanes_.out.done()) free_head(op);
}

void Scheduler::make_room(std::int64_t op) {
  const std::int64_t room = room_.at(op % ops_.count);
  while (leaving_head_ < leaving_.size() && leaving_bytes_ > room) {
    const std::int64_t c = leaving_[leaving_head_];
    wait(c, op, lanes_.wait(lanes_.out, absence_[c].out_copy));
    free_head(op);
  }
}

void Scheduler::free_head(std::int64_t op) {
  const std::int64_t c = leaving_[leaving_head_++];
  leaving_bytes_ -= all_.size_bytes[c];
  absence_[c].is_free = true;
  open_.set(place_[c]);
  decide(schedules_[c].free_by, all_.after[c] + 1 + (op - all_.after[c] - 1) % ops_.count);
}

// In order of use, but past what has not left yet: its turn has not come.
void Scheduler::prefetch(std::int64_t op) {
  const std::size_t count = ins_.size(), last = next_use_ + count;
  for (std::size_t position = next_open(next_use_); position < last; position = next_open(position + 1)) {
    ++steps_;
    const std::int64_t c = ins_[position % count];
    const std::int64_t due = static_cast<std::int64_t>(position / count) * ops_.count + use_[c];
    if (due <= op || !returns(c)) continue;  // used in a moment, or never again
    if (op < due - lead_[c]) return;
    if (!absence_[c].is_pending) continue;
    if (!may_come(c, op, due)) return;
    bring_in(c, op, due);
    open_.clear(position % count);
  }
}

// The first position from this one on that is open, counted on over the iteration's end.
std::size_t Scheduler::next_open(std::size_t position) const {
  const std::size_t count = ins_.size(), place = position % count, begin = position - place;
  const std::size_t found = open_.next(place);
  return found < count ? begin + found : begin + count + open_.next(0);
}

bool Scheduler::may_come(std::int64_t c, std::int64_t op, std::int64_t due) {
  if (op < blocked_until_[c]) return false;
  if (leaving_bytes_ + all_.size_bytes[c] > room_.at(op % ops_.count)) return false;
  const std::int64_t blocked = blocked_at(c, op, due);
  if (blocked >= 0) blocked_until_[c] = blocked + 1;
  return blocked < 0;
}

// The last op between `op` and the use at `due` that has no room for it, or -1.
std::int64_t Scheduler::blocked_at(std::int64_t c, std::int64_t op, std::int64_t due) {
  steps_ += kRoomSteps;
  const std::int64_t size = all_.size_bytes[c], use = use_[c], begin = use - (due - 1 - op);
  std::int64_t at = room_.last_below(std::max<std::int64_t>(begin, 0), use, size);
  if (at >= 0) return due - use + at;
  if (begin >= 0) return -1;
  at = room_.last_below(begin + ops_.count, ops_.count, size);  // before the iteration's end
  return at >= 0 ? due - use - ops_.count + at : -1;
}

void Scheduler::bring_in(std::int64_t c, std::int64_t op, std::int64_t due) {
  lanes_.advance(now_us_);
  if (returns(c)) absence_[c].in_copy = lanes_.in.push(now_us_, all_.in_us[c]);
  absence_[c].is_coming = true;
  steps_ += kRoomSteps;
  const std::int64_t begin = use_[c] - (due - op);
  room_.take(std::max<std::int64_t>(begin, 0), use_[c], all_.size_bytes[c]);
  if (begin < 0) room_.take(begin + ops_.count, ops_.count, all_.size_bytes[c]);
  decide(schedules_[c].in_start, all_.before[c] - (due - op));
}

void Scheduler::decide(std::int64_t& when, std::int64_t op) {
  has_changed_ = has_changed_ || when != op;
  when = op;
}

// Uses entries [begin, end) of `ins_` at `op`. As in the simulator all copies out are waited for first, then all copies
// in are enqueued, the nearest use first, and then those that are due are waited for.
void Scheduler::use(std::size_t begin, std::size_t end, std::int64_t op) {
  for (std::size_t i = begin; i < end; ++i)
    if (absence_[ins_[i]].is_pending) free(ins_[i], op);
  for (std::size_t i = begin; i < end; ++i)
    if (absence_[ins_[i]].is_pending && !absence_[ins_[i]].is_coming) bring_in(ins_[i], op, op);
  prefetch(op);
  for (std::size_t i = begin; i < end; ++i) {
    Absence& absence = absence_[ins_[i]];
    open_.set(next_use_ % ins_.size());
    ++next_use_;
    if (absence.is_pending && returns(ins_[i])) wait(ins_[i], op, lanes_.wait(lanes_.in, absence.in_copy));
    absence.is_pending = false;
  }
}

void Scheduler::free(std::int64_t c, std::int64_t op) {
  while (!absence_[c].is_free) {
    const std::int64_t head = leaving_[leaving_head_];
    wait(head, op, lanes_.wait(lanes_.out, absence_[head].out_copy));
    free_head(op);
  }
}

void Scheduler::wait(std::int64_t c, std::int64_t op, double until_us) {
  if (until_us <= now_us_) return;
  stall_us_[op % ops_.count] += until_us - now_us_;
  stall_of_[c] += until_us - now_us_;
  now_us_ = until_us;
}

}  // namespace memfit::swapping
