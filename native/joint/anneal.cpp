#include "joint/anneal.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "joint/sketch.h"
#include "packer/random.h"

namespace memfit::joint {
namespace {

constexpr double kStepsPerSecond = 3e8;  // of a slow core
constexpr std::int64_t kBlocks = 128;    // of ops, each with the gaps that reach into it
constexpr int kTries = 24, kCompared = 4;
constexpr int kPeriod = 50;  // moves from one adjustment of the price of bytes to the next
constexpr double kUsPerByteSwapped = 1e-9;
constexpr double kHot = 0.02, kCold = 0.01;  // the first temperature, in typical prices, and what is left of it
constexpr double kHotTimed = 2;  // the first temperature if waits are timed: copies are far dearer than ops
constexpr double kDear = 30, kCheap = 3;  // the first price of bytes, for typical gaps: neither is always better
constexpr int kRounds = 3;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

class Anneal {
 public:
  Anneal(const Problem& all, const std::vector<std::uint8_t>& start, const AnnealOptions& options)
      : all_(all),
        options_(options),
        sketch_(all),
        random_(options.seed),
        place_(all.gaps.count, -1),
        blocks_(kBlocks) {
    for (std::int64_t g = 0; g < all.gaps.count; ++g) list(g);
    for (std::int64_t g = 0; g < all.gaps.count; ++g) put(g, start[g]);
    changed_.clear();
    sketch_.settle();
    set_prices();
  }

  Annealed run() {
    cost_ = cost();
    note();
    if (options_.mends) mend();
    for (int round = 0; round < kRounds; ++round)
      improve(static_cast<double>(round) / kRounds, static_cast<double>(round + 1) / kRounds);
    go_to_best();
    prune();
    found_.modes.resize(all_.gaps.count);
    found_.returns.resize(all_.gaps.count);
    for (std::int64_t g = 0; g < all_.gaps.count; ++g) {
      found_.modes[g] = sketch_.mode(g);
      found_.returns[g] = sketch_.returns(g);
    }
    found_.again_us = sketch_.again_us();
    found_.wait_us = sketch_.wait_us();
    found_.over_bytes = sketch_.is_lost() ? kInfinite : sketch_.over_bytes();
    found_.worst_bytes = sketch_.worst_bytes();
    found_.steps = sketch_.steps() + steps_;
    return std::move(found_);
  }

 private:
  std::int64_t held(std::int64_t g) const { return all_.held_bytes[all_.gaps.storage[g]]; }
  double price(std::int64_t g) const { return (options_.price_us[g] + 0.1 * typical_us_) * options_.keep[g]; }
  bool may_swap(std::int64_t g) const { return all_.gaps.out_us[g] < kInfinite; }
  bool may_remake(std::int64_t g) const { return all_.gaps.remakable[g] != 0; }
  std::int64_t block(std::int64_t op) const { return op * kBlocks / all_.ops.count; }

  void list(std::int64_t g) {
    if (!may_swap(g) && !may_remake(g)) return;
    const std::int64_t count = all_.ops.count, first = all_.gaps.after[g], last = all_.gaps.before[g];
    for (std::int64_t b = block(first); b <= block(std::min(last, count - 1)); ++b) blocks_[b].push_back(g);
    if (last >= count)
      for (std::int64_t b = 0; b <= std::min(block(last - count), block(first) - 1); ++b) blocks_[b].push_back(g);
    usable_.push_back(g);
  }

  // What is over the budget costs so much that the gaps in use would pay for it; adjusted later.
  void set_prices() {
    std::vector<double> prices;
    double bytes = 0;
    for (std::int64_t g : usable_)
      if (may_remake(g) && all_.gaps.returns[g]) prices.push_back(options_.price_us[g]), bytes += static_cast<double>(held(g));
    if (prices.empty()) prices.push_back(1.0), bytes = 1;
    std::sort(prices.begin(), prices.end());
    typical_us_ = std::max(prices[prices.size() / 2], 1e-6);
    us_per_byte_ = (options_.seed % 2 == 0 ? kDear : kCheap) * typical_us_ * static_cast<double>(prices.size()) / bytes;
  }

  double added_us() const { return sketch_.again_us() + sketch_.wait_us() + kUsPerByteSwapped * swapped_; }

  double cost() const {
    if (sketch_.is_lost()) return kInfinite;
    return added_us() + us_per_byte_ * sketch_.over_bytes();
  }

  void put(std::int64_t g, std::uint8_t mode) {
    const std::uint8_t old = sketch_.mode(g);
    if (old == mode) return;
    changed_.emplace_back(g, old);
    sketch_.set(g, mode);
    if (is_swapped(old)) swapped_ -= static_cast<double>(held(g));
    if (is_swapped(mode)) swapped_ += static_cast<double>(held(g));
    if (old == kKept) {
      place_[g] = static_cast<std::int64_t>(used_.size());
      used_.push_back(g);
    } else if (mode == kKept) {
      const std::int64_t moved = used_.back();
      used_[place_[g]] = moved;
      place_[moved] = place_[g];
      used_.pop_back();
      place_[g] = -1;
    }
  }

  // Takes the changes back; `is_counted` says whether their bytes were.
  void undo(bool is_counted) {
    auto changed = std::move(changed_);
    for (auto at = changed.rbegin(); at != changed.rend(); ++at) put(at->first, at->second);
    changed_.clear();
    sketch_.settle_remakings();
    if (is_counted) sketch_.restore_bytes();
  }

  double spent() const { return static_cast<double>(sketch_.steps() + steps_) / kStepsPerSecond; }

  // From the best so far, cooling down. The price of bytes rises while there is too much, and falls otherwise, so that
  // the search goes along the budget's edge.
  void improve(double from, double to) {
    const double end_s = options_.effort_s * to, start_s = std::max(spent(), options_.effort_s * from);
    const double hot = all_.waits == kTimed ? kHotTimed : kHot;
    if (start_s >= end_s || usable_.empty()) return;
    go_to_best();
    cost_ = cost();
    for (std::int64_t moves = 0; spent() < end_s; ++moves) {
      const double cooled = (spent() - start_s) / (end_s - start_s);
      try_move(hot * typical_us_ * std::pow(kCold, cooled));
      if (moves % kPeriod == kPeriod - 1) {
        us_per_byte_ *= sketch_.over_bytes() > 0 ? 1.15 : 0.9;
        is_tight_ = all_.waits == kWhereForced && (best_over_ > 0 || sketch_.wait_us() > 0);
        cost_ = cost();
      }
    }
  }

  void try_move(double temperature_us) {
    changed_.clear();
    propose();
    steps_ += 100;
    if (changed_.empty()) return;
    sketch_.settle_remakings();
    ++found_.evaluations;
    const double most = cost_ - temperature_us * std::log(1 - random_.unit());
    if (sketch_.is_lost() || sketch_.again_us() > most) return undo(false);
    sketch_.settle_bytes();
    const double cost = this->cost();
    if (cost > most) return undo(true);
    cost_ = cost;
    note();
  }

  void note() {
    if (sketch_.is_lost()) return;
    const double over = sketch_.over_bytes(), us = added_us();
    if (!best_.empty() && std::make_pair(over, us) >= std::make_pair(best_over_, best_us_)) return;
    best_over_ = over, best_us_ = us;
    best_.clear();
    for (std::int64_t g : used_) best_.emplace_back(g, sketch_.mode(g));
    best_.emplace_back(-1, kKept);  // it is never empty
    steps_ += static_cast<std::int64_t>(used_.size());
  }

  void go_to_best() {
    for (std::int64_t k = static_cast<std::int64_t>(used_.size()); k-- > 0;) put(used_[k], kKept);
    for (const auto& [g, mode] : best_)
      if (g >= 0) put(g, mode);
    changed_.clear();
    sketch_.settle();
  }

  void propose() {
    const bool is_over = sketch_.over_bytes() > 0;
    if (is_over && random_.unit() < 0.5) return relieve();
    const double kind = random_.unit();
    if (kind < 0.35) drop();
    else if (kind < 0.6) exchange();
    else if (kind < 0.75) turn();
    else if (kind < 0.9) pass();
    else if (!usable_.empty()) use(usable_[random_.below(usable_.size())]);
  }

  std::int64_t some_used() { return used_.empty() ? -1 : used_[random_.below(used_.size())]; }

  void drop() {
    const std::int64_t g = some_used();
    if (g >= 0) put(g, kKept);
  }

  void exchange() {
    const std::int64_t g = some_used();
    if (g < 0) return;
    const std::int64_t after = all_.gaps.after[g], length = all_.gaps.before[g] - after;
    const std::int64_t op = (after + 1 + static_cast<std::int64_t>(random_.below(length))) % all_.ops.count;
    put(g, kKept);
    use(best_covering(op, g));
  }

  // The other way to be away.
  void turn() {
    const std::int64_t g = some_used();
    if (g < 0) return;
    const std::uint8_t mode = sketch_.mode(g);
    if (is_swapped(mode) && may_remake(g) && random_.unit() < 0.6) put(g, kRemade);
    else if (is_swapped(mode)) put(g, all_.waits == kWhereForced ? other_swap(mode) : kKept);
    else if (may_swap(g)) put(g, kSwapped);
  }

  // With a wait, or another one; or without.
  std::uint8_t other_swap(std::uint8_t mode) {
    constexpr std::uint8_t kWays[] = {kSwapped, kLeaving, kComing, kForced};
    const std::uint8_t way = kWays[random_.below(4)];
    return way == mode ? kWays[random_.below(4)] : way;
  }

  void pass() {
    for (int tries = 0; tries < kCompared; ++tries) {
      const std::int64_t g = some_used();
      if (g < 0 || !is_remade(sketch_.mode(g))) continue;
      return put(g, sketch_.mode(g) == kPassing ? kRemade : kPassing);
    }
  }

  void use(std::int64_t g) {
    if (g < 0 || sketch_.mode(g) != kKept) return;
    const bool remade = may_remake(g) && (!may_swap(g) || random_.unit() < options_.remake[g]);
    const bool waits = is_tight_ && random_.unit() < 0.5;
    const std::uint8_t swapped = waits ? other_swap(kSwapped) : std::uint8_t{kSwapped};
    put(g, !remade ? swapped : random_.unit() < 0.2 ? std::uint8_t{kPassing} : std::uint8_t{kRemade});
  }

  // Somewhere over the budget: something else away there, or less that runs again there.
  void relieve() {
    const std::int64_t count = all_.ops.count, first = static_cast<std::int64_t>(random_.below(count));
    std::int64_t op = first;
    while (sketch_.during(op) <= all_.budget_bytes && sketch_.ahead(op) <= all_.budget_bytes) {
      op = op + 1 == count ? 0 : op + 1;
      ++steps_;
      if (op == first) return;
    }
    const Event& event = sketch_.event(op);
    if (sketch_.ahead(op) > all_.budget_bytes && random_.unit() < 0.5 && !event.returned.empty()) {
      const std::int64_t g = event.returned[random_.below(event.returned.size())];
      if (all_.gaps.before[g] > op) return put(g, kPassing);
      return put(g, may_swap(g) && random_.unit() < 0.5 ? kSwapped : kKept);
    }
    if (is_tight_ && random_.unit() < 0.3) {  // let ops wait for what is swapped meanwhile
      const std::int64_t g = some_used();
      if (g >= 0 && is_swapped(sketch_.mode(g)) && reaches(g, op)) return put(g, other_swap(sketch_.mode(g)));
    }
    const std::int64_t early = some_early(op);
    if (early >= 0 && random_.unit() < 0.5) return put(early, kPassing);
    use(best_covering(op, -1));
  }

  // Something remade before `op` that is not used until later.
  std::int64_t some_early(std::int64_t op) {
    for (int tries = 0; tries < kTries; ++tries) {
      const std::int64_t g = some_used();
      ++steps_;
      if (g >= 0 && sketch_.mode(g) == kRemade && sketch_.returns(g) <= op && op < all_.gaps.before[g]) return g;
    }
    return -1;
  }

  bool covers(std::int64_t g, std::int64_t op) const {
    return (all_.gaps.after[g] < op && op < all_.gaps.before[g]) || op + all_.ops.count < all_.gaps.before[g];
  }

  bool reaches(std::int64_t g, std::int64_t op) const {
    return (all_.gaps.after[g] <= op && op <= all_.gaps.before[g]) || op + all_.ops.count <= all_.gaps.before[g];
  }

  std::int64_t best_covering(std::int64_t op, std::int64_t barred) {
    const auto& here = blocks_[block(op)];
    if (here.empty()) return -1;
    std::int64_t best = -1;
    double best_score = 0;
    for (int tries = 0, compared = 0; tries < kTries && compared < kCompared; ++tries) {
      const std::int64_t g = here[random_.below(here.size())];
      ++steps_;
      if (g == barred || sketch_.mode(g) != kKept || !covers(g, op)) continue;
      ++compared;
      const double score = static_cast<double>(held(g)) / price(g) * random_.unit();
      if (score > best_score) best_score = score, best = g;
    }
    return best;
  }

  // From the fullest op to the next: the largest storage that was made again early is not kept, otherwise what is the
  // cheapest for its bytes is away too.
  void mend() {
    std::vector<std::pair<double, std::int64_t>> order;
    for (std::int64_t g : usable_) order.emplace_back(price(g) / static_cast<double>(held(g)), g);
    std::sort(order.begin(), order.end());
    for (std::size_t left = 2 * order.size(); left > 0 && sketch_.over_bytes() > 0; --left) {
      if (spent() > options_.effort_s / 2) break;
      const std::int64_t op = fullest();
      changed_.clear();
      const std::int64_t early = largest_early(op);
      if (early >= 0) put(early, kPassing);
      else {
        const auto at = std::find_if(order.begin(), order.end(), [&](const auto& each) {
          return sketch_.mode(each.second) == kKept && covers(each.second, op);
        });
        steps_ += at - order.begin();
        if (at == order.end()) return;
        const bool remade = may_remake(at->second) && (!may_swap(at->second) || options_.remake[at->second] >= 0.5);
        put(at->second, remade ? kRemade : kSwapped);
      }
      sketch_.settle();
      if (sketch_.is_lost()) return undo(true);
      note();
    }
    if (sketch_.over_bytes() > 0) return;
    prune();
    note();
  }

  std::int64_t fullest() const {
    const auto most = [&](std::int64_t op) { return std::max(sketch_.during(op), sketch_.ahead(op)); };
    std::int64_t worst = 0;
    for (std::int64_t op = 1; op < all_.ops.count; ++op)
      if (most(op) > most(worst)) worst = op;
    return worst;
  }

  std::int64_t largest_early(std::int64_t op) {
    std::int64_t best = -1;
    for (std::int64_t g : used_)
      if (sketch_.mode(g) == kRemade && sketch_.returns(g) <= op && op < all_.gaps.before[g] &&
          sketch_.returns(g) < all_.gaps.before[g] && (best < 0 || held(g) > held(best)))
        best = g;
    steps_ += static_cast<std::int64_t>(used_.size());
    return best;
  }

  // What need not be away after all, the dearest first.
  void prune() {
    if (sketch_.is_lost()) return;
    auto order = used_;
    std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return options_.price_us[a] != options_.price_us[b] ? options_.price_us[a] > options_.price_us[b] : a < b;
    });
    for (std::int64_t g : order) {
      const double before = added_us(), over = sketch_.over_bytes();
      changed_.clear();
      put(g, kKept);
      sketch_.settle();
      if (sketch_.is_lost() || sketch_.over_bytes() > over || added_us() > before) undo(true);
    }
  }

  const Problem& all_;
  const AnnealOptions& options_;
  Sketch sketch_;
  packing::Random random_;
  std::vector<std::int64_t> usable_, used_, place_;
  std::vector<std::vector<std::int64_t>> blocks_;
  std::vector<std::pair<std::int64_t, std::uint8_t>> changed_, best_;
  double best_over_ = 0, best_us_ = 0, cost_ = 0, swapped_ = 0;
  bool is_tight_ = false;  // nothing without waits has been found
  double typical_us_ = 1, us_per_byte_ = 1;
  std::int64_t steps_ = 0;
  Annealed found_;
};

}  // namespace

Annealed anneal(const Problem& problem, const std::vector<std::uint8_t>& start, const AnnealOptions& options) {
  return Anneal(problem, start, options).run();
}

}  // namespace memfit::joint
