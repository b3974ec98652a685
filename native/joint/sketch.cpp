#include "joint/sketch.h"

#include <algorithm>
#include <numeric>

namespace memfit::joint {
namespace {

constexpr std::int64_t kNothing = -(std::int64_t{1} << 60);  // where nothing runs again

}  // namespace

Sketch::Sketch(const Problem& problem)
    : all_(problem),
      count_(problem.ops.count),
      modes_(problem.gaps.count, kKept),
      returns_(problem.gaps.before, problem.gaps.before + problem.gaps.count),
      events_(count_),
      ending_(count_),
      asking_(problem.gaps.count),
      needed_(problem.gaps.count),
      held_(problem.ops.load_bytes, problem.ops.load_bytes + count_),
      begin_(problem.ops.begin_bytes, problem.ops.begin_bytes + count_),
      peaks_(count_, kNothing),
      event_us_(count_, 0),
      place_of_(problem.gaps.count, -1),
      start_us_(count_ + 1, 0),
      seen_value_(problem.values.count, 0),
      seen_op_(count_, 0),
      own_seen_op_(count_, 0),
      last_use_(problem.storages, -1),
      own_mark_(problem.storages, 0) {
  for (Bytes* bytes : {&now_, &last_}) bytes->swapped.assign(count_, 0), bytes->ahead.assign(count_, 0);
  settle();
}

std::int64_t Sketch::gap_at(std::int64_t storage, std::int64_t op) const {
  const auto *begin = all_.gaps.of_storage.begin(storage), *end = all_.gaps.of_storage.end(storage);
  if (begin == end) return -1;
  const auto is_before = [&](std::int64_t gap, std::int64_t other) { return all_.gaps.after[gap] < other; };
  const auto* at = std::lower_bound(begin, end, op, is_before);
  if (at != begin) return op <= all_.gaps.before[at[-1]] ? at[-1] : -1;
  const std::int64_t last = end[-1];  // it alone may reach over the iteration's end
  return op + count_ <= all_.gaps.before[last] ? last : -1;
}

std::int64_t Sketch::value_at(std::int64_t storage, std::int64_t op) const {
  const auto *begin = all_.values.of_storage.begin(storage), *end = all_.values.of_storage.end(storage);
  const auto is_before = [&](std::int64_t value, std::int64_t other) { return all_.values.writer[value] < other; };
  const auto* at = std::lower_bound(begin + 1, end, op, is_before);
  return at[-1];
}

bool Sketch::is_held(std::int64_t value, std::int64_t op) const {
  return all_.values.writer[value] < op && op <= all_.values.last[value];
}

// Whether the storage of `gap` was dropped and has not been made again before the remakings at `op`.
bool Sketch::is_away(std::int64_t gap, std::int64_t op) const {
  return gap >= 0 && is_remade(modes_[gap]) && op <= returns_[gap];
}

void Sketch::set(std::int64_t gap, std::uint8_t mode) {
  const std::uint8_t old = modes_[gap];
  if (old == mode) return;
  const std::int64_t before = all_.gaps.before[gap];
  if (is_remade(old) && !is_remade(mode)) {
    const std::int64_t returned = returns_[gap];
    change_return(gap, all_.gaps.after[gap]);
    returns_[gap] = before;
    auto& ending = ending_[before];
    ending.erase(std::find(ending.begin(), ending.end(), gap));
    dirty_.insert(returned);
  }
  modes_[gap] = mode;
  if (is_remade(mode) && !is_remade(old)) {
    returns_[gap] = all_.gaps.after[gap];
    change_return(gap, before);
    auto& ending = ending_[before];
    ending.insert(std::lower_bound(ending.begin(), ending.end(), gap), gap);
  }
  if (is_swapped(old) && !is_swapped(mode)) {
    const std::int64_t place = place_of_[gap], moved = chosen_swaps_.back();
    chosen_swaps_[place] = moved;
    place_of_[moved] = place;
    chosen_swaps_.pop_back();
    place_of_[gap] = -1;
  }
  if (is_swapped(mode) && !is_swapped(old)) {
    place_of_[gap] = static_cast<std::int64_t>(chosen_swaps_.size());
    chosen_swaps_.push_back(gap);
  }
  if (is_swapped(mode) && is_swapped(old)) return;
  if (before < count_) dirty_.insert(before);
  ask_again(gap, -1);
}

// Lets the storage of a remade gap return before `op`; the rows of bytes follow.
void Sketch::change_return(std::int64_t gap, std::int64_t op) {
  const std::int64_t old = returns_[gap], held = all_.held_bytes[all_.gaps.storage[gap]];
  const auto add = [&](std::int64_t from, std::int64_t to, std::int64_t amount) {
    for (std::int64_t k = from; k < to; ++k) held_[k] += amount;
    for (std::int64_t k = from + 1; k <= to; ++k) begin_[k] += amount;
    steps_ += (to - from) / 4;
  };
  // Away are the ops (after, return), and what runs before the ops (after, return].
  const std::int64_t after = all_.gaps.after[gap];
  const auto first = [&](std::int64_t back) { return std::max(back, after + 1); };
  if (op > old) add(first(old), op, -held);
  else add(first(op), old, held);
  if (old == after && op > after) begin_[after + 1] -= held;
  if (op == after && old > after) begin_[after + 1] += held;
  returns_[gap] = op;
}

void Sketch::ask_again(std::int64_t gap, std::int64_t from) {
  for (std::int64_t op : asking_[gap])
    if (op > from) dirty_.insert(op);
}

void Sketch::settle_remakings() {
  while (!dirty_.empty()) {
    const std::int64_t op = *dirty_.begin();
    dirty_.erase(dirty_.begin());
    look_at(op);
  }
}

void Sketch::settle_bytes() {
  std::swap(now_, last_);
  copy();
  count_over();
}

void Sketch::restore_bytes() { std::swap(now_, last_); }

void Sketch::forget(std::int64_t op) {
  Event& event = events_[op];
  for (std::int64_t gap : event.asked) {
    auto& asking = asking_[gap];
    auto at = std::find(asking.begin(), asking.end(), op);
    *at = asking.back();
    asking.pop_back();
  }
  for (std::int64_t gap : event.swapped) {
    auto& needed = needed_[gap];
    needed.erase(std::find(needed.begin(), needed.end(), op));
  }
  if (event.is_lost) --lost_;
  again_us_ -= event_us_[op];
  event.asked.clear(), event.swapped.clear(), event.ops.clear(), event.made_bytes.clear();
  event_us_[op] = 0, peaks_[op] = kNothing, event.is_lost = false;
}

// Works out anew what runs again before `op`. What returns here now, or does not any more, changes what later events
// find.
void Sketch::look_at(std::int64_t op) {
  forget(op);
  Event& event = events_[op];
  std::vector<std::int64_t> before;
  before.swap(event.returned);
  for (std::int64_t gap : before)  // as if it came back at its own use, until it is asked for here
    if (is_remade(modes_[gap]) && returns_[gap] == op) change_return(gap, all_.gaps.before[gap]);
  ++event_stamp_;
  for (std::int64_t gap : ending_[op])
    if (all_.gaps.returns[gap] && returns_[gap] == op &&
        std::find(event.returned.begin(), event.returned.end(), gap) == event.returned.end())
      make(gap, op);
  if (!event.is_lost) join(op);
  if (!event.ops.empty()) run_again(op);
  if (event.is_lost) ++lost_;
  again_us_ += event_us_[op];
  for (std::int64_t gap : event.returned)
    if (std::find(before.begin(), before.end(), gap) == before.end())
      ask_again(gap, op), dirty_.insert(all_.gaps.before[gap]);
  for (std::int64_t gap : before)
    if (is_remade(modes_[gap]) && returns_[gap] != op) ask_again(gap, op), dirty_.insert(all_.gaps.before[gap]);
  dirty_.erase(op);
  steps_ += 20;
}

std::int64_t Sketch::ask(std::int64_t storage, std::int64_t op) {
  const std::int64_t gap = gap_at(storage, op);
  if (gap < 0) return gap;
  auto& asked = events_[op].asked;
  if (std::find(asked.begin(), asked.end(), gap) == asked.end()) {
    asked.push_back(gap);
    asking_[gap].push_back(op);
  }
  return gap;
}

// Makes the storage of `gap` again before `op`, and those that it is made from.
void Sketch::make(std::int64_t gap, std::int64_t op) {
  Event& event = events_[op];
  const std::size_t first = event.returned.size();
  event.returned.push_back(gap);
  for (std::size_t next = first; next < event.returned.size(); ++next) {
    needs_.clear();
    if (!follow(value_at(all_.gaps.storage[event.returned[next]], op), op)) {
      event.is_lost = true;
      return;
    }
    for (std::int64_t storage : needs_) {
      const std::int64_t other = ask(storage, op);
      if (other < 0) continue;
      if (is_swapped(modes_[other])) {
        if (std::find(event.swapped.begin(), event.swapped.end(), other) != event.swapped.end()) continue;
        event.swapped.push_back(other);
        auto& needed = needed_[other];
        needed.insert(std::lower_bound(needed.begin(), needed.end(), op), op);
      } else if (is_away(other, op) &&
                 std::find(event.returned.begin(), event.returned.end(), other) == event.returned.end()) {
        if (returns_[other] != op) change_return(other, op);
        event.returned.push_back(other);
      }
    }
  }
}

// Adds the ops that make `value` again, and to `needs_` the storages that have to be there; false if nothing can.
bool Sketch::follow(std::int64_t value, std::int64_t op) {
  ++stamp_;
  std::int64_t found = 0;
  wanted_.assign(1, value);
  seen_value_[value] = stamp_;
  while (!wanted_.empty()) {
    const std::int64_t made = wanted_.back(), writer = all_.values.writer[made];
    wanted_.pop_back();
    if (writer < 0 || !all_.values.remakable[made]) return false;
    if (own_seen_op_[writer] != stamp_) {
      own_seen_op_[writer] = stamp_;
      if (++found > all_.most_ops) return false;
      if (seen_op_[writer] != event_stamp_) {
        seen_op_[writer] = event_stamp_;
        events_[op].ops.push_back(writer);
      }
    }
    for (const auto* read = all_.values.reads.begin(made); read != all_.values.reads.end(made); ++read) {
      ++steps_;
      const std::int64_t storage = all_.values.storage[*read];
      if (is_held(*read, op)) {
        const std::int64_t gap = ask(storage, op);
        const bool passes = gap >= 0 && modes_[gap] == kPassing && op < all_.gaps.before[gap];
        if (!passes) {
          needs_.push_back(storage);
          continue;
        }
      }
      if (seen_value_[*read] == stamp_) continue;
      seen_value_[*read] = stamp_;
      wanted_.push_back(*read);
    }
  }
  return true;
}

// Lets what the ops write besides return with what they are run for, if it is away and may stay.
void Sketch::join(std::int64_t op) {
  Event& event = events_[op];
  for (std::int64_t maker : event.ops)
    for (const auto* s = all_.ops.writes.begin(maker); s != all_.ops.writes.end(maker); ++s) {
      const std::int64_t value = value_at(*s, op);
      if (all_.values.writer[value] != maker || !is_held(value, op)) continue;
      const std::int64_t gap = ask(*s, op);
      if (gap < 0 || modes_[gap] != kRemade || !is_away(gap, op) || returns_[gap] == op) continue;
      change_return(gap, op);
      event.returned.push_back(gap);
    }
}

// Whether `maker`, run again before `op`, uses a storage that is made there and not the trace's.
bool Sketch::is_made_here(std::int64_t storage, std::int64_t maker, std::int64_t op) const {
  return is_away(gap_at(storage, op), op) || !is_held(value_at(storage, maker), op);
}

// The time and the most bytes of the ops that run again before `op`, beside what is there.
void Sketch::run_again(std::int64_t op) {
  Event& event = events_[op];
  std::sort(event.ops.begin(), event.ops.end());
  for (std::int64_t gap : event.returned) own_mark_[all_.gaps.storage[gap]] = event_stamp_;  // these stay
  for (std::int64_t maker : event.ops) {
    event_us_[op] += all_.ops.again_us[maker];
    for (const auto* s = all_.ops.reads.begin(maker); s != all_.ops.reads.end(maker); ++s)
      if (is_made_here(*s, maker, op)) last_use_[*s] = maker;
    for (const auto* s = all_.ops.writes.begin(maker); s != all_.ops.writes.end(maker); ++s) last_use_[*s] = maker;
    for (const auto* s = all_.ops.born.begin(maker); s != all_.ops.born.end(maker); ++s) last_use_[*s] = maker;
    steps_ += 10;
  }
  // A storage is born before it is used: what was noted of it above is of these ops.
  std::int64_t held = 0;
  own_.clear();
  for (std::int64_t maker : event.ops) {
    for (const auto* s = all_.ops.born.begin(maker); s != all_.ops.born.end(maker); ++s) {
      held += all_.held_bytes[*s];
      own_.push_back(*s);
    }
    event.made_bytes.push_back(held);
    peaks_[op] = std::max(peaks_[op], held);
    const auto goes = [&](std::int64_t s) { return own_mark_[s] != event_stamp_ && last_use_[s] == maker; };
    for (std::int64_t s : own_)
      if (goes(s)) held -= all_.held_bytes[s];
    own_.erase(std::remove_if(own_.begin(), own_.end(), goes), own_.end());
  }
}

}  // namespace memfit::joint
