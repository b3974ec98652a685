#include "simulator/faults.h"

#include <algorithm>
#include <deque>

#include "simulator/block_order.h"

namespace memfit::swapping {
namespace {

constexpr std::int64_t kNever = -1, kNone = -1;

struct Chunk {
  bool is_here = false, is_written = false, has_copy = false;
  double ready_us = 0;  // of one that was fetched
};

// splitmix64: small, and the same everywhere.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed) {}
  std::int64_t below(std::int64_t count) {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return static_cast<std::int64_t>((z ^ z >> 31) % static_cast<std::uint64_t>(count));
  }

 private:
  std::uint64_t state_;
};

class Paging {
 public:
  Paging(const Paged& paged, const PagingRates& rates, std::uint64_t seed)
      : paged_(paged),
        rates_(rates),
        draws_(seed),
        chunks_(paged.chunks.count),
        block_of_(paged.chunks.count),
        held_for_(paged.chunks.blocks, kNever),
        missed_at_(paged.chunks.blocks, kNever),
        order_(rates.leaves, paged.chunks.blocks) {
    for (std::int64_t c = 0; c < paged.chunks.count; ++c) chunks_[c].has_copy = paged.chunks.has_copy[c];
    for (std::int64_t b = 0; b < paged.chunks.blocks; ++b)
      std::fill(block_of_.begin() + begin(b), block_of_.begin() + begin(b + 1), b);
  }

  Faulted run() && {
    for (op_ = 0; op_ < paged_.ops; ++op_) run_op();
    return std::move(result_);
  }

 private:
  void run_op() {
    result_.faults.push_back(0), result_.bytes_in.push_back(0), result_.bytes_out.push_back(0);
    ready_us_ = now_us_;
    while (!leaving_.empty() && leaving_.front().first <= now_us_) one_has_left();
    demand_us_ = make_room(0, kNone, now_us_, /*for_fetch=*/false);
    result_.used_bytes.push_back(used_bytes_);
    fetch_all();
    touch_all();
    const double done_us = std::max({now_us_ + paged_.duration_us[op_], demand_us_, ready_us_});
    const std::int64_t groups = (result_.faults[op_] + rates_.chunks_per_fault - 1) / rates_.chunks_per_fault;
    now_us_ = done_us + static_cast<double>(groups) * rates_.fault_us;
    result_.end_us.push_back(now_us_);
    each(paged_.dismissed, [this](std::int64_t c) { dismiss(c); });
    each(paged_.dropped, [this](std::int64_t c) { drop(c); });
  }

  template <typename Visit>
  void each(const RangeColumns& ranges, Visit visit) {
    for (std::int64_t r = ranges.begin[op_]; r < ranges.begin[op_ + 1]; ++r)
      for (std::int64_t c = ranges.first[r]; c < ranges.last[r]; ++c) visit(c);
  }

  // All touches go forward side by side, each from its beginning to its end in the same time.
  void touch_all() {
    const std::int64_t first = touches().begin[op_], last = touches().begin[op_ + 1];
    std::int64_t rounds = 0;
    for (std::int64_t t = first; t < last; ++t) rounds = std::max(rounds, paged_.touches.sweeps[t]);
    for (std::int64_t round = 0; round < rounds; ++round) touch_round(first, last, round);
  }

  void touch_round(std::int64_t first, std::int64_t last, std::int64_t round) {
    std::int64_t steps = 0;
    for (std::int64_t t = first; t < last; ++t) steps = std::max(steps, units(t, round));
    for (std::int64_t step = 0; step < steps; ++step)
      for (std::int64_t t = first; t < last; ++t)
        for (std::int64_t u = units(t, round) * step / steps; u < units(t, round) * (step + 1) / steps; ++u)
          touch_unit(t, u, round);
  }

  std::int64_t units(std::int64_t t, std::int64_t round) const {
    if (round >= paged_.touches.sweeps[t]) return 0;
    return paged_.touches.draws[t] ? paged_.touches.draws[t] : touches().last[t] - touches().first[t];
  }

  void touch_unit(std::int64_t t, std::int64_t unit, std::int64_t round) {
    const bool is_last = round + 1 == paged_.touches.sweeps[t] || paged_.touches.draws[t];
    const std::int64_t next_op = is_last ? paged_.touches.next_op[t] : op_;
    if (!paged_.touches.draws[t]) return touch(touches().first[t] + unit, paged_.touches.writes[t], next_op);
    const std::int64_t run = paged_.touches.run[t];
    const std::int64_t at = touches().first[t] + draws_.below(touches().last[t] - touches().first[t] - run + 1);
    for (std::int64_t c = at; c < at + run; ++c) touch(c, paged_.touches.writes[t], next_op);
  }

  void touch(std::int64_t c, bool writes, std::int64_t next_op) {
    Chunk& chunk = chunks_[c];
    if (chunk.is_here)
      ready_us_ = std::max(ready_us_, chunk.ready_us);
    else
      fault(c);
    chunk.is_written |= writes;
    order_.touch(block_of_[c], next_op);
  }

  // The op waits: what makes room is written first, then the chunk is read.
  void fault(std::int64_t c) {
    const bool has_room = used_bytes_ + size(c) <= window_bytes();
    if (has_room && !chunks_[c].has_copy && !rates_.fresh_faults) return bring(c, now_us_);
    ++result_.faults[op_];
    const std::int64_t block = block_of_[c];
    if (missed_at_[block] != op_) {
      missed_at_[block] = op_;
      result_.missed_op.push_back(op_), result_.missed_block.push_back(block);
    }
    demand_us_ = make_room(size(c), block, demand_us_, /*for_fetch=*/false);
    if (chunks_[c].has_copy) demand_us_ = copied_in_us(c, demand_us_);
    bring(c, demand_us_);
  }

  // In order; one that finds no room waits for a later op, and those behind it too.
  void fetch_all() {
    for (std::int64_t f = fetches().begin[op_]; f < fetches().begin[op_ + 1]; ++f) waiting_.push_back(f);
    while (!waiting_.empty() && (paged_.fetches.for_op[waiting_.front()] < op_ || fetch(waiting_.front())))
      waiting_.pop_front();
  }

  bool fetch(std::int64_t f) {
    double at_us = now_us_ + rates_.request_us;
    for (std::int64_t c = fetches().first[f]; c < fetches().last[f]; ++c) {
      const std::int64_t block = block_of_[c];
      held_for_[block] = std::max(held_for_[block], paged_.fetches.for_op[f]);
      if (chunks_[c].is_here) continue;
      const double room_us = make_room(size(c), block, at_us, /*for_fetch=*/true);
      if (room_us < 0) return false;
      at_us = chunks_[c].has_copy ? copied_in_us(c, room_us) : room_us;
      bring(c, at_us);
      order_.touch(block, paged_.fetches.for_op[f]);
    }
    return true;
  }

  double copied_in_us(std::int64_t c, double us) {
    const double from_us = std::max(us, in_us_), alone_us = static_cast<double>(size(c)) * rates_.in_us_per_byte;
    in_us_ = from_us + (out_us_ > from_us ? alone_us / rates_.both_factor : alone_us);
    return in_us_;
  }

  void bring(std::int64_t c, double ready_us) {
    Chunk& chunk = chunks_[c];
    if (chunk.has_copy) result_.bytes_in[op_] += size(c);
    chunk.is_here = true, chunk.ready_us = ready_us;
    chunk.is_written = chunk.has_copy && !rates_.keeps_copies;
    used_bytes_ += size(c);
    result_.used_bytes[op_] = std::max(result_.used_bytes[op_], used_bytes_);
  }

  // Returns when there is room; below 0 if a fetch would need what is fetched for an op yet to come.
  double make_room(std::int64_t needed_bytes, std::int64_t filling, double us, bool for_fetch) {
    while (used_bytes_ + needed_bytes > window_bytes()) {
      if (!leaving_.empty()) {
        us = std::max(us, one_has_left());
        continue;
      }
      std::int64_t victim = order_.first(op_, [&](std::int64_t b) { return b != filling && held_for_[b] < op_; });
      if (victim < 0 && for_fetch) return -1;
      if (victim < 0) victim = held_longest(filling);
      evict(victim < 0 ? filling : victim, us);
      while (!for_fetch && !leaving_.empty()) us = std::max(us, one_has_left());  // a fault waits for the whole block
    }
    return us;
  }

  double one_has_left() {
    const auto [us, bytes] = leaving_.front();
    leaving_.pop_front();
    used_bytes_ -= bytes;
    return us;
  }

  // Of what was fetched for ops yet to come, that for the last of them.
  std::int64_t held_longest(std::int64_t filling) const {
    std::int64_t found = -1;
    for (std::int64_t b = 0; b < paged_.chunks.blocks; ++b)
      if (b != filling && order_.contains(b) && (found < 0 || held_for_[b] > held_for_[found])) found = b;
    return found;
  }

  void evict(std::int64_t block, double us) {
    for (std::int64_t c = begin(block); c < begin(block + 1); ++c) leave(c, us);
    if (order_.contains(block)) order_.remove(block);
  }

  void dismiss(std::int64_t c) {
    const std::int64_t block = block_of_[c];
    leave(c, now_us_);
    if (order_.contains(block) && is_empty(block)) order_.remove(block);
  }

  void leave(std::int64_t c, double us) {
    Chunk& chunk = chunks_[c];
    if (!chunk.is_here) return;
    chunk.is_here = false;
    if (!chunk.is_written) {
      used_bytes_ -= size(c);
      return;
    }
    const double alone_us = static_cast<double>(size(c)) * rates_.out_us_per_byte;
    const double from_us = std::max({us, out_us_, chunk.ready_us});
    out_us_ = from_us + (in_us_ > from_us ? alone_us / rates_.both_factor : alone_us);
    leaving_.push_back({out_us_, size(c)});
    chunk.has_copy = true;
    result_.bytes_out[op_] += size(c);
  }

  void drop(std::int64_t c) {
    Chunk& chunk = chunks_[c];
    if (chunk.is_here) used_bytes_ -= size(c);
    chunk = {};
    const std::int64_t block = block_of_[c];
    if (order_.contains(block) && is_empty(block)) order_.remove(block);
  }

  bool is_empty(std::int64_t block) const {
    return std::none_of(chunks_.begin() + begin(block), chunks_.begin() + begin(block + 1),
                        [](const Chunk& chunk) { return chunk.is_here; });
  }

  const RangeColumns& touches() const { return paged_.touches.ranges; }
  const RangeColumns& fetches() const { return paged_.fetches.ranges; }
  std::int64_t begin(std::int64_t block) const { return paged_.chunks.block_begin[block]; }
  std::int64_t window_bytes() const { return paged_.window_bytes[op_]; }
  std::int64_t size(std::int64_t c) const { return paged_.chunks.size_bytes[c]; }

  const Paged& paged_;
  const PagingRates& rates_;
  Draws draws_;
  std::vector<Chunk> chunks_;
  std::vector<std::int64_t> block_of_, held_for_, missed_at_;
  BlockOrder order_;
  std::deque<std::int64_t> waiting_;                     // fetches
  std::deque<std::pair<double, std::int64_t>> leaving_;  // when a copy out ends, and the bytes it frees
  std::int64_t op_ = 0, used_bytes_ = 0;
  double now_us_ = 0, in_us_ = 0, out_us_ = 0;  // of the ops, and of the link each way
  double demand_us_ = 0, ready_us_ = 0;         // until when the op waits for what it touches
  Faulted result_;
};

}  // namespace

Faulted page(const Paged& paged, const PagingRates& rates, std::uint64_t seed) {
  return Paging(paged, rates, seed).run();
}

}  // namespace memfit::swapping
