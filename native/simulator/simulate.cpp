#include "simulator/simulate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "simulator/lanes.h"

namespace memfit::swapping {
namespace {

// Swaps by the op at which something happens to them, in the order in which it does.
class Buckets {
 public:
  Buckets(const std::int64_t* op, const std::vector<std::int64_t>& order, std::int64_t ops)
      : begin_(ops + 1, 0), swap_(order.size()) {
    for (std::int64_t s : order) ++begin_[op[s] % ops + 1];
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    std::vector<std::int64_t> next(begin_.begin(), begin_.end() - 1);
    for (std::int64_t s : order) swap_[next[op[s] % ops]++] = s;
  }

  template <typename Visit>
  void each(std::int64_t op, Visit visit) const {
    for (std::int64_t i = begin_[op]; i < begin_[op + 1]; ++i) visit(swap_[i]);
  }

 private:
  std::vector<std::int64_t> begin_, swap_;
};

std::vector<std::int64_t> in_plan_order(std::int64_t count) {
  std::vector<std::int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Of two that start at one op, of whichever iteration, first the one with fewer ops to its use.
std::vector<std::int64_t> by_next_use(const SwapColumns& swaps) {
  const auto lead = [&](std::int64_t s) { return swaps.in_before[s] - swaps.in_start[s]; };
  auto order = in_plan_order(swaps.count);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return lead(a) < lead(b); });
  return order;
}

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

class Simulation {
 public:
  Simulation(const Ops& ops, const SwapColumns& swaps, double both_factor)
      : ops_(ops),
        swaps_(swaps),
        outs_(swaps.out_after, in_plan_order(swaps.count), ops.count),
        frees_(swaps.free_by, in_plan_order(swaps.count), ops.count),
        ins_(swaps.in_start, by_next_use(swaps), ops.count),
        uses_(swaps.in_before, by_next_use(swaps), ops.count),
        lanes_(both_factor),
        out_copy_{std::vector<std::size_t>(swaps.count, kNone), std::vector<std::size_t>(swaps.count, kNone)},
        in_copy_(out_copy_) {
    result_.start_us.resize(ops.count);
    result_.end_us.resize(ops.count);
    result_.resident_bytes.resize(ops.count);
  }

  Simulated run(int most_iterations) {
    double before_us = -1, backlog_before = -1;
    for (number_ = 0; number_ < most_iterations; ++number_) {
      iterate();
      const double backlog = lanes_.out.backlog() + lanes_.in.backlog();
      // The fresh iteration may take as long as the second one and yet have other copies, with no earlier ones beside
      // them: it is no measure of what is steady.
      const bool is_as_before = is_close(result_.iteration_us, before_us) && is_close(backlog, backlog_before);
      result_.is_steady = number_ == 0 ? crosses_nothing(backlog) : number_ > 1 && is_as_before;
      if (result_.is_steady) break;
      before_us = result_.iteration_us;
      backlog_before = backlog;
    }
    number_ = std::min(number_, static_cast<std::int64_t>(most_iterations) - 1);
    report_copies();
    for (double& t : result_.start_us) t -= begin_us_;
    for (double& t : result_.end_us) t -= begin_us_;
    return std::move(result_);
  }

 private:
  static bool is_close(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max({1.0, std::abs(a), std::abs(b)}); }

  bool crosses_nothing(double backlog) const {
    return backlog <= 0 && std::all_of(swaps_.in_before, swaps_.in_before + swaps_.count,
                                       [&](std::int64_t op) { return op < ops_.count; });
  }

  void iterate() {
    last_begin_us_ = begin_us_;
    begin_us_ = now_;
    result_.stalls.clear();
    std::fill(copies(out_copy_, 0).begin(), copies(out_copy_, 0).end(), kNone);
    std::fill(copies(in_copy_, 0).begin(), copies(in_copy_, 0).end(), kNone);
    for (std::int64_t op = 0; op < ops_.count; ++op) step(op);
    result_.iteration_us = now_ - begin_us_;
  }

  // The copies of absences that began `ago` iterations ago; no absence is longer than two.
  std::vector<std::size_t>& copies(std::vector<std::size_t> (&both)[2], std::int64_t ago) {
    return both[(number_ + ago) & 1];
  }

  void step(std::int64_t op) {
    frees_.each(op, [&](std::int64_t s) { wait(op, s, swaps_.free_by[s], false); });
    release_ended();
    ins_.each(op, [&](std::int64_t s) { start_in(s); });
    uses_.each(op, [&](std::int64_t s) { wait(op, s, swaps_.in_before[s], true); });
    release_ended();
    result_.resident_bytes[op] = ops_.load_bytes[op] - away_bytes_;
    result_.start_us[op] = now_;
    now_ += ops_.duration_us[op];
    result_.end_us[op] = now_;
    outs_.each(op, [&](std::int64_t s) { copies(out_copy_, 0)[s] = start_out(s); });
  }

  std::size_t start_out(std::int64_t s) {
    lanes_.advance(now_);
    swap_of_out_.push_back(s);
    return lanes_.out.push(now_, swaps_.out_us[s]);
  }

  void start_in(std::int64_t s) {
    const std::int64_t ago = swaps_.in_start[s] / ops_.count;
    if (copies(out_copy_, ago)[s] == kNone) return;
    away_bytes_ -= swaps_.size_bytes[s];
    if (swaps_.in_us[s] <= 0) return;  // it does not return
    lanes_.advance(now_);
    copies(in_copy_, ago)[s] = lanes_.in.push(now_, swaps_.in_us[s]);
  }

  void wait(std::int64_t op, std::int64_t s, std::int64_t wanted_at, bool is_in) {
    const std::size_t copy = copies(is_in ? in_copy_ : out_copy_, wanted_at / ops_.count)[s];
    if (copy == kNone) return;
    const double end = lanes_.wait(is_in ? lanes_.in : lanes_.out, copy);
    if (!is_in && !swaps_.is_early[s]) away_bytes_ += swaps_.size_bytes[s];
    if (end <= now_) return;
    result_.stalls.push_back({op, s, is_in, end - now_});
    now_ = end;
  }

  void release_ended() {
    if (lanes_.out.is_idle() && released_ == lanes_.out.done()) return;
    lanes_.advance(now_);
    for (; released_ < lanes_.out.done(); ++released_) {
      const std::int64_t s = swap_of_out_[released_];
      if (swaps_.is_early[s]) away_bytes_ += swaps_.size_bytes[s];
    }
  }

  // Of the iteration before where there is one: in a steady state it had the same copies, and they have ended.
  void report_copies() {
    const std::int64_t ago = number_ > 0 ? 1 : 0;
    const double begin_us = ago ? last_begin_us_ : begin_us_;
    lanes_.advance(std::numeric_limits<double>::max());
    report(lanes_.out, copies(out_copy_, ago), begin_us, result_.out_start_us, result_.out_end_us);
    report(lanes_.in, copies(in_copy_, ago), begin_us, result_.in_start_us, result_.in_end_us);
  }

  void report(const Lane& lane, const std::vector<std::size_t>& copies, double begin_us, std::vector<double>& start,
              std::vector<double>& end) {
    for (std::size_t copy : copies) {
      start.push_back(copy == kNone ? kUnknown : lane[copy].start - begin_us);
      end.push_back(copy == kNone ? kUnknown : lane[copy].end - begin_us);
    }
  }

  const Ops ops_;
  const SwapColumns swaps_;
  const Buckets outs_, frees_, ins_, uses_;
  Lanes lanes_;
  std::vector<std::size_t> out_copy_[2], in_copy_[2];  // by parity of the iteration
  std::vector<std::int64_t> swap_of_out_;
  std::size_t released_ = 0;
  std::int64_t away_bytes_ = 0;
  std::int64_t number_ = 0;
  double now_ = 0, begin_us_ = 0, last_begin_us_ = 0;
  Simulated result_;
};

}  // namespace

Simulated simulate(const Ops& ops, const SwapColumns& swaps, double both_factor, int most_iterations) {
  return Simulation(ops, swaps, both_factor).run(most_iterations);
}

}  // namespace memfit::swapping
