// The part of a sketch that swaps: what is away, and where nothing waits, copies in a row each way.
#include <algorithm>
#include <limits>

#include "joint/sketch.h"

namespace memfit::joint {

// On the clock without waits.
double Sketch::begin_of(std::int64_t moment) const {
  const std::int64_t op = moment / 2, round = op / count_, within = op % count_;
  return static_cast<double>(round) * start_us_[count_] + start_us_[within] - (moment % 2 ? 0.0 : event_us_[within]);
}

double Sketch::end_of(std::int64_t moment) const {
  return begin_of(moment) + (moment % 2 ? all_.ops.us : event_us_.data())[moment / 2 % count_];
}

// Asked for as pieces: a storage that an op which runs again reads is back by then, and may leave again.
void Sketch::gather() {
  pieces_.clear();
  for (std::int64_t gap : chosen_swaps_) {
    const std::int64_t after = all_.gaps.after[gap], before = all_.gaps.before[gap];
    std::int64_t from = 2 * after + 1, last = after;
    const auto until = [&](std::int64_t moment) {
      const std::int64_t shift = from / 2 >= count_ ? 2 * count_ : 0;
      pieces_.push_back({gap, from - shift, moment - shift});
      from = moment;
    };
    for (const bool is_next : {false, true})
      for (std::int64_t op : needed_[gap])
        if ((op <= after) == is_next) until(2 * (last = op + count_ * is_next));
    if (last != before) until(2 * before + 1);
  }
  steps_ += 8 * static_cast<std::int64_t>(pieces_.size());
}

// Copies out, in the order in which they may begin; a second round begins with what the first left undone. Where ops
// wait for one, all that follows is later by that; the ends are on the clock without waits.
void Sketch::leave() {
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return a.ready != b.ready ? a.ready < b.ready : a.gap < b.gap;
  });
  double free_us = 0;
  for (int round = 0; round < 2; ++round) {
    double waited_us = 0;
    for (Piece& piece : pieces_) {
      free_us = std::max(free_us, piece.ready + waited_us) + all_.gaps.out_us[piece.gap];
      if (waits_out(modes_[piece.gap])) waited_us = std::max(waited_us, free_us - piece.ready);
      piece.out_end = free_us - waited_us;
    }
    now_.wait_us = waited_us;
    free_us -= start_us_[count_] + waited_us;
    if (free_us <= 0) break;
  }
}

// Copies in, the last one first, each as late as it may be.
void Sketch::come() {
  const double whole = start_us_[count_];
  const auto within = [&](const Piece& piece) { return piece.due >= whole ? piece.due - whole : piece.due; };
  order_.resize(pieces_.size());
  for (std::size_t k = 0; k < order_.size(); ++k) order_[k] = static_cast<std::int64_t>(k);
  std::sort(order_.begin(), order_.end(), [&](std::int64_t a, std::int64_t b) {
    const double left = within(pieces_[a]), right = within(pieces_[b]);
    return left != right ? left > right : a < b;
  });
  double until_us = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t k : order_) {
      Piece& piece = pieces_[k];
      if (waits_in(modes_[piece.gap])) {  // the lane does nothing else while ops wait
        piece.in_start = piece.due;
        if (round == 0) now_.wait_us += all_.gaps.in_us[piece.gap];
        continue;
      }
      until_us = std::min(until_us, within(piece)) - all_.gaps.in_us[piece.gap];
      piece.in_start = until_us + (piece.due >= whole ? whole : 0.0);
    }
    if (until_us >= 0) break;
    until_us += whole;
  }
}

// The first op, counted on, that begins at `us` or later.
std::int64_t Sketch::first_from(double us) const {
  const double whole = start_us_[count_];
  const std::int64_t round = us >= whole ? 1 : 0;
  const double rest = us - static_cast<double>(round) * whole;
  const auto* begin = start_us_.data();
  return round * count_ + (std::lower_bound(begin, begin + count_, rest) - begin);
}

// Adds to the ops [begin, end), counted on; the rows are summed up later.
void Sketch::add_away(std::vector<std::int64_t>& row, std::int64_t begin, std::int64_t end, std::int64_t bytes) const {
  if (begin >= end || end - begin >= count_) return;
  row[begin % count_] += bytes;
  if (end % count_ <= begin % count_) row[0] += bytes;  // over the iteration's end
  row[end % count_] -= bytes;
}

// Between its copies if nothing waits, otherwise from its first moment to its last.
void Sketch::take_away(const Piece& piece) {
  const std::int64_t bytes = all_.held_bytes[all_.gaps.storage[piece.gap]];
  if (all_.waits == kTimed) {
    add_away(now_.swapped, (piece.from + 1) / 2, piece.to / 2, bytes);
    add_away(now_.ahead, piece.from / 2 + 1, (piece.to + 1) / 2, bytes);
    return;
  }
  if (piece.in_start < piece.out_end || piece.in_start < 0) return;
  const std::int64_t from = first_from(piece.out_end);
  std::int64_t to = first_from(piece.in_start);
  if (begin_of(2 * to + 1) > piece.in_start) --to;  // the op under way then
  add_away(now_.swapped, from, to, bytes);
  if (from < to) add_away(now_.ahead, from + 1, to + 1, bytes);
}

// Those that have the time copy one after the other.
void Sketch::run_lanes() {
  for (Piece& piece : pieces_) piece.ready = end_of(piece.from), piece.due = begin_of(piece.to);
  const auto has_no_time = [&](const Piece& piece) {
    const std::uint8_t mode = modes_[piece.gap];
    const double out_us = waits_out(mode) ? 0 : all_.gaps.out_us[piece.gap];
    return piece.due - piece.ready < out_us + (waits_in(mode) ? 0 : all_.gaps.in_us[piece.gap]);
  };
  pieces_.erase(std::remove_if(pieces_.begin(), pieces_.end(), has_no_time), pieces_.end());
  for (Piece& piece : pieces_)
    if (piece.ready >= start_us_[count_]) piece.ready -= start_us_[count_], piece.due -= start_us_[count_];
  leave();
  come();
}

void Sketch::copy() {
  now_.wait_us = 0;
  if (!now_.is_empty) {
    std::fill(now_.swapped.begin(), now_.swapped.end(), 0);
    std::fill(now_.ahead.begin(), now_.ahead.end(), 0);
  }
  now_.is_empty = chosen_swaps_.empty();
  if (now_.is_empty) return;
  double now = 0;
  for (std::int64_t op = 0; op < count_; ++op) {
    start_us_[op] = now += event_us_[op];
    now += all_.ops.us[op];
  }
  start_us_[count_] = now;
  gather();
  if (all_.waits != kTimed) run_lanes();
  for (const Piece& piece : pieces_) take_away(piece);
  for (std::int64_t op = 1; op < count_; ++op) {
    now_.swapped[op] += now_.swapped[op - 1];
    now_.ahead[op] += now_.ahead[op - 1];
  }
  const auto sorting = static_cast<std::int64_t>(pieces_.size());
  steps_ += count_ + 16 * sorting;
  if (all_.waits == kTimed) schedule();
}

void Sketch::count_over() {
  double over = 0;
  std::int64_t worst = 0;
  for (std::int64_t op = 0; op < count_; ++op) {
    const std::int64_t most = std::max(during(op), ahead(op));
    worst = std::max(worst, most);
    over += static_cast<double>(std::max<std::int64_t>(0, during(op) - all_.budget_bytes) +
                                std::max<std::int64_t>(0, ahead(op) - all_.budget_bytes));
  }
  now_.over = over;
  now_.worst = worst;
  steps_ += count_ / 2;
}

}  // namespace memfit::joint
