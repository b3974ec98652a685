// The part of a sketch that swaps: copies in a row each way, and what is away meanwhile.
#include <algorithm>
#include <limits>

#include "joint/sketch.h"

namespace memfit::joint {

double Sketch::time_of(std::int64_t op, bool before_event) const {
  const std::int64_t round = op / count_, within = op % count_;
  return static_cast<double>(round) * start_us_[count_] + start_us_[within] - (before_event ? event_us_[within] : 0.0);
}

// Asked for as pieces: a storage that an op which runs again reads is back by then, and may leave again.
void Sketch::gather() {
  pieces_.clear();
  for (std::int64_t gap : chosen_swaps_) {
    const std::int64_t after = all_.gaps.after[gap], before = all_.gaps.before[gap];
    const std::uint8_t mode = modes_[gap];
    double ready = start_us_[after] + all_.ops.us[after];
    const auto until = [&](std::int64_t op, bool is_needed) {
      const double due = time_of(op, is_needed);
      const double needed = (waits_out(mode) ? 0 : all_.gaps.out_us[gap]) + (waits_in(mode) ? 0 : all_.gaps.in_us[gap]);
      if (due - ready >= needed) {
        const double shift = ready >= start_us_[count_] ? start_us_[count_] : 0.0;
        pieces_.push_back({ready - shift, due - shift, gap});
      }
      ready = time_of(op, false);
    };
    std::int64_t last = after;
    for (const bool is_next : {false, true})
      for (std::int64_t op : needed_[gap])
        if ((op <= after) == is_next) until(last = op + count_ * is_next, true);
    if (last != before) until(before, false);
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

void Sketch::add_away(std::int64_t from, std::int64_t to, std::int64_t bytes) {
  const auto add = [&](std::vector<std::int64_t>& row, std::int64_t begin, std::int64_t end) {
    row[begin % count_] += bytes;
    if (end % count_ > begin % count_) {
      row[end % count_] -= bytes;
    } else {  // over the iteration's end
      row[0] += bytes;
      row[end % count_] -= bytes;
    }
  };
  if (to - from >= count_) return;
  add(now_.swapped, from, to);
  add(now_.ahead, from + 1, to + 1);
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
  leave();
  come();
  for (const Piece& piece : pieces_) {
    if (piece.in_start < piece.out_end || piece.in_start < 0) continue;
    const std::int64_t from = first_from(piece.out_end);
    std::int64_t to = first_from(piece.in_start);
    if (time_of(to, false) > piece.in_start) --to;  // the op under way then
    if (from < to) add_away(from, to, all_.held_bytes[all_.gaps.storage[piece.gap]]);
  }
  for (std::int64_t op = 1; op < count_; ++op) {
    now_.swapped[op] += now_.swapped[op - 1];
    now_.ahead[op] += now_.ahead[op - 1];
  }
  const auto sorting = static_cast<std::int64_t>(pieces_.size());
  steps_ += count_ + 16 * sorting;
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
