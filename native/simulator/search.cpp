#include "simulator/search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <tuple>

#include "simulator/choice.h"
#include "simulator/covering.h"
#include "simulator/prices.h"

namespace memfit::swapping {
namespace {

constexpr double kStepsPerSecond = 1.5e8;  // of the scheduler in a second of a slow core
constexpr std::int64_t kStepsOfAnEvaluation = 2000;  // besides its ops
// Up to so many candidates, all that cover an op are compared; of more, so many of them at random.
constexpr std::int64_t kFew = 8192, kSample = 512;
constexpr double kPenaltyPerByte = 1e-9;  // us: of two plans as fast, the one that copies less
// The published floor of a candidate, and what it is of the peak it was meant for.
constexpr std::int64_t kLeastBytes = 1 << 20, kLeastShare = 600;

class Search {
 public:
  Search(const Ops& ops, const Candidates& all, const SearchOptions& options)
      : ops_(ops),
        all_(all),
        options_(options),
        scheduler_(ops, all, options.both_factor),
        choice_(ops, all, options.budget_bytes),
        random_(options.seed),
        prices_(ops, all, options.budget_bytes) {
    if (all.count > kFew) covering_ = std::make_unique<Covering>(ops, all);
  }

  Found run(const std::vector<std::int64_t>& start) {
    if (!all_fit()) return found_;
    found_.is_feasible = true;
    if (!start.empty()) keep_best([&] { start_from(start); });
    for (const bool is_at_peak : {false, true})
      for (const auto& score : scores()) keep_best([&] { start_by(score, is_at_peak); });
    keep_best([&] { start_by_relief(); });
    improve();
    report();
    return std::move(found_);
  }

 private:
  using Score = std::function<double(std::int64_t)>;

  bool all_fit() {
    for (std::int64_t c = 0; c < all_.count; ++c) choice_.flip(c);
    found_.worst_op = choice_.tightest();
    const std::int64_t left = choice_.least_slack();
    found_.least_bytes = options_.budget_bytes - left;
    found_.compute_us = scheduler_.compute_us();
    for (std::int64_t c = 0; c < all_.count; ++c) choice_.flip(c);
    return left >= 0;
  }

  // The published scores (absence, absence x size, bytes over the budget meanwhile), size, and size for the price.
  std::vector<Score> scores() const {
    return {
        [this](std::int64_t c) { return prices_.idle_us(c) - all_.out_us[c] - all_.in_us[c]; },
        [this](std::int64_t c) { return prices_.idle_us(c) * static_cast<double>(all_.size_bytes[c]); },
        [this](std::int64_t c) { return prices_.excess(c); },
        [this](std::int64_t c) { return static_cast<double>(all_.size_bytes[c]); },
        [this](std::int64_t c) { return static_cast<double>(all_.size_bytes[c]) / prices_[c]; },
    };
  }

  template <typename Fill>
  void keep_best(Fill fill) {
    for (std::int64_t c = 0; c < all_.count; ++c)
      if (choice_.has(c)) choice_.flip(c);
    fill();
    prune();
    const double cost = evaluate();
    if (!best_.empty() && cost >= best_cost_) return;
    note_best(cost);
  }

  void note_best(double cost) {
    best_cost_ = cost;
    best_us_ = time_us_;
    best_ = choice_.flags();
  }

  void start_from(const std::vector<std::int64_t>& start) {
    for (std::int64_t c : start)
      if (!choice_.has(c)) choice_.flip(c);
    repair();
  }

  // If `is_at_peak`, what is away at the peak and not too small to be worth a copy comes before all else, as published.
  void start_by(const Score& score, bool is_at_peak) {
    const std::int64_t peak = std::max_element(ops_.load_bytes, ops_.load_bytes + ops_.count) - ops_.load_bytes;
    const std::int64_t least = std::min(kLeastBytes, ops_.load_bytes[peak] / kLeastShare);
    std::vector<std::tuple<bool, double, std::int64_t>> order;
    for (std::int64_t c = 0; c < all_.count; ++c)
      order.emplace_back(is_at_peak && (all_.size_bytes[c] < least || !choice_.covers(c, peak)), -score(c), c);
    sort(order);
    for (const auto& [is_later, minus_score, c] : order) {
      if (choice_.least_slack() >= 0) break;
      if (choice_.helps(c)) choice_.flip(c);
    }
  }

  // At the worst op, by what it takes away for what it costs, scored again after each pick.
  void start_by_relief() { repair(); }

  void repair() {
    for (std::int64_t op = choice_.worst(); op >= 0; op = choice_.worst()) choice_.flip(best_at(op));
  }

  std::int64_t best_at(std::int64_t op) {
    return best_covering(op, -1, [this] { return 0.5 + random_.unit(); });
  }

  // What is not chosen and covers `op`, but not `barred`: of the most bytes for its price, times a `noise`. -1 if
  // nothing does.
  template <typename Noise>
  std::int64_t best_covering(std::int64_t op, std::int64_t barred, Noise noise) {
    const std::int64_t wanted = -choice_.slack_at(op);
    std::int64_t best = -1;
    double best_score = -1;
    const auto look = [&](std::int64_t c) {
      if (choice_.has(c) || c == barred || !choice_.covers(c, op)) return;
      const double score = static_cast<double>(std::min(all_.size_bytes[c], wanted)) / prices_[c] * noise();
      if (score > best_score) best_score = score, best = c;
    };
    if (covering_) look_at_some(op, look);
    if (best < 0) look_at_all(look);  // nothing, or next to nothing that covers the op is left
    return best;
  }

  template <typename Look>
  void look_at_all(Look look) {
    for (std::int64_t c = 0; c < all_.count; ++c) look(c);
    steps_ += all_.count / 4;
  }

  template <typename Look>
  void look_at_some(std::int64_t op, Look look) {
    const std::int64_t count = covering_->count(op);
    for (std::int64_t i = 0; i < std::min(count, kSample); ++i) {
      const bool is_all = count <= kSample;
      look(covering_->nth(op, is_all ? i : static_cast<std::int64_t>(random_.below(count))));
    }
    steps_ += 2 * std::min(count, kSample);
  }

  // Takes back what is not needed, the dearest first.
  void prune() { count_sorting(choice_.spare(prices_)); }

  double evaluate() {
    ++found_.evaluations;
    double copied = 0;
    for (std::int64_t c = 0; c < all_.count; ++c)
      if (choice_.has(c)) copied += static_cast<double>(all_.size_bytes[c]);
    time_us_ = scheduler_.run(choice_.flags(), choice_.slack());
    return time_us_ + kPenaltyPerByte * copied;
  }

  template <typename Row>
  void sort(std::vector<Row>& order) {
    std::sort(order.begin(), order.end());
    count_sorting(static_cast<std::int64_t>(order.size()));
  }

  void count_sorting(std::int64_t rows) {
    steps_ += static_cast<std::int64_t>(static_cast<double>(rows) * std::log2(static_cast<double>(rows) + 1.0));
  }

  // Work, whoever did it: in seconds of a slow core, so that a busy machine comes to the same end.
  double spent() const {
    const auto others = found_.evaluations * (kStepsOfAnEvaluation + 4 * all_.count);
    return static_cast<double>(scheduler_.steps() + choice_.steps() + steps_ + others) / kStepsPerSecond;
  }

  bool is_enough() const { return best_us_ - scheduler_.compute_us() <= options_.enough_us; }

  // Simulated annealing: from the best, cooling down twice.
  void improve() {
    const double begin_s = spent();
    const double left_s = options_.effort_s - begin_s;
    if (left_s <= 0) return;
    for (int round = 0; round < 2; ++round) {
      go_to(best_);
      cost_ = best_cost_;
      const double end_s = begin_s + left_s * (round + 1) / 2, start_s = begin_s + left_s * round / 2;
      const double hot_us = std::max(0.02 * (best_cost_ - scheduler_.compute_us()), 1e-5 * scheduler_.compute_us());
      while (spent() < end_s && !is_enough() && !is_stuck()) {
        const double cooled = (spent() - start_s) / (end_s - start_s);
        try_move(hot_us * std::pow(0.001, cooled));
      }
    }
  }

  bool is_stuck() const { return found_.evaluations - improved_at_ > 3000 + 30 * all_.count; }

  void try_move(double temperature_us) {
    changed_.clear();
    propose();
    if (changed_.empty()) {
      ++found_.evaluations;  // so that a search with nothing to try ends
      return;
    }
    const double cost = evaluate();
    const double worse = cost - cost_;
    if (worse > 0 && random_.unit() >= std::exp(-worse / temperature_us)) {
      for (std::int64_t c : changed_) choice_.flip(c);
      return;
    }
    cost_ = cost;
    if (cost >= best_cost_ - 1e-9) return;
    note_best(cost);
    improved_at_ = found_.evaluations;
  }

  void flip(std::int64_t c) {
    choice_.flip(c);
    changed_.push_back(c);
  }

  void propose() {
    switch (random_.below(4)) {
      case 0: add_where_it_stalls(); break;
      case 1: remove(some_stalled()); break;
      case 2: remove(some_chosen()); break;
      default: exchange(); break;
    }
    mend();
    spare_some();
  }

  void add_where_it_stalls() {
    const std::int64_t op = some_stalled_op();
    const std::int64_t c = some_covering(op >= 0 ? op : static_cast<std::int64_t>(random_.below(ops_.count)));
    if (c >= 0) flip(c);
  }

  void remove(std::int64_t c) {
    if (c >= 0) flip(c);
  }

  void exchange() {
    const std::int64_t c = some_chosen();
    if (c < 0) return;
    const std::int64_t length = all_.before[c] - all_.after[c] - 1;
    const std::int64_t op = (all_.after[c] + 1 + static_cast<std::int64_t>(random_.below(length))) % ops_.count;
    const std::int64_t other = some_covering(op);
    flip(c);
    if (other >= 0) flip(other);
  }

  // Covers again what a removal has left open, by other candidates where there are any.
  void mend() {
    for (std::int64_t op = choice_.worst(); op >= 0; op = choice_.worst()) {
      const std::int64_t removed = changed_.empty() ? -1 : changed_.front();
      const std::int64_t best = best_covering(op, removed, [this] { return random_.unit(); });
      flip(best >= 0 ? best : removed);
    }
  }

  void spare_some() {
    const std::size_t before = changed_.size();
    for (std::size_t tries = 0; tries < 2 + before; ++tries) {
      const std::int64_t c = some_chosen();
      const bool is_new = std::find(changed_.begin(), changed_.end(), c) != changed_.end();
      if (c >= 0 && !is_new && choice_.can_spare(c)) flip(c);
    }
  }

  std::int64_t some_chosen() { return pick([&](std::int64_t c) { return choice_.has(c) ? 1.0 : 0.0; }); }
  std::int64_t some_stalled() {
    return pick([&](std::int64_t c) { return choice_.has(c) ? scheduler_.stall_of()[c] : 0.0; });
  }
  std::int64_t some_covering(std::int64_t op) {
    return pick([&](std::int64_t c) { return !choice_.has(c) && choice_.covers(c, op) ? 1.0 : 0.0; });
  }

  std::int64_t some_stalled_op() {
    const auto& stalls = scheduler_.stall_us();
    double left = random_.unit() * std::accumulate(stalls.begin(), stalls.end(), 0.0);
    if (left <= 0) return -1;
    for (std::size_t op = 0; op < stalls.size(); ++op)
      if ((left -= stalls[op]) < 0) return static_cast<std::int64_t>(op);
    return -1;
  }

  template <typename Weight>
  std::int64_t pick(Weight weight) {
    double sum = 0;
    for (std::int64_t c = 0; c < all_.count; ++c) sum += weight(c);
    if (sum <= 0) return -1;
    double left = random_.unit() * sum;
    std::int64_t last = -1;
    for (std::int64_t c = 0; c < all_.count; ++c) {
      const double here = weight(c);
      if (here <= 0) continue;
      last = c;
      if ((left -= here) < 0) break;
    }
    return last;
  }

  void go_to(const std::vector<std::uint8_t>& flags) {
    for (std::int64_t c = 0; c < all_.count; ++c)
      if (choice_.flags()[c] != flags[c]) choice_.flip(c);
    scheduler_.run(choice_.flags(), choice_.slack());
  }

  void report() {
    go_to(best_);
    found_.iteration_us = scheduler_.run(choice_.flags(), choice_.slack());
    found_.steps = scheduler_.steps() + choice_.steps() + steps_;
    for (std::int64_t c = 0; c < all_.count; ++c) {
      if (!choice_.has(c)) continue;
      found_.chosen.push_back(c);
      found_.schedules.push_back(scheduler_.schedules()[c]);
    }
  }

  const Ops ops_;
  const Candidates all_;
  const SearchOptions options_;
  Scheduler scheduler_;
  Choice choice_;
  packing::Random random_;
  const Prices prices_;
  std::unique_ptr<Covering> covering_;  // where there are more than few
  std::vector<std::uint8_t> best_;
  double best_cost_ = 0, cost_ = 0;      // with the penalty for what is copied
  double best_us_ = 0, time_us_ = 0;     // without it
  std::int64_t improved_at_ = 0;
  std::int64_t steps_ = 0;  // of the search itself, in the scheduler's
  std::vector<std::int64_t> changed_;
  Found found_;
};

}  // namespace

Found search(const Ops& ops, const Candidates& candidates, const std::vector<std::int64_t>& start,
             const SearchOptions& options) {
  return Search(ops, candidates, options).run(start);
}

}  // namespace memfit::swapping
