#include "packer/pack.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>

#include "packer/clock.h"
#include "packer/core.h"
#include "packer/ejection.h"
#include "packer/exact.h"
#include "packer/greedy.h"
#include "packer/random.h"
#include "packer/skyline.h"
#include "packer/skylines.h"

namespace memfit::packing {
namespace {

// Work is counted in what took a little less than a nanosecond where it was measured: a busier machine, too, is to
// end by its count.
constexpr double kWorkPerSecond = 1.05e9;

// Of a round that counted none, so that rounds end.
constexpr double kEmptyRound = 1e6;

enum class Way { kFirstFit, kBestFit, kSkyline };

struct Portfolio {
  Key first, second;
  Way way;
};

// Those that won on real traces first.
constexpr Portfolio kGreedy[] = {
    {Key::kPressure, Key::kStart, Way::kFirstFit}, {Key::kLength, Key::kSize, Way::kSkyline},
    {Key::kArea, Key::kSize, Way::kSkyline},       {Key::kSize, Key::kLength, Way::kFirstFit},
    {Key::kPressure, Key::kArea, Way::kFirstFit},  {Key::kLength, Key::kSize, Way::kBestFit},
    {Key::kStart, Key::kLength, Way::kBestFit},    {Key::kArea, Key::kSize, Way::kFirstFit},
    {Key::kDegree, Key::kSize, Way::kFirstFit},    {Key::kTotalPressure, Key::kSize, Way::kFirstFit},
    {Key::kSize, Key::kLength, Way::kBestFit},     {Key::kDegree, Key::kSize, Way::kBestFit},
    {Key::kArea, Key::kLength, Way::kBestFit},     {Key::kPressure, Key::kArea, Way::kBestFit},
};

// Of so many items skylines come first: a fit looks at more for each item the more there are, a skyline does not.
constexpr std::size_t kMany = 20000;

double work_of(Way way, std::size_t items) {
  const auto count = static_cast<double>(items), many = std::max(1.0, count / kMany);
  if (way == Way::kSkyline) return kSkylineWork * count;
  return (way == Way::kFirstFit ? kFirstFitWork : kBestFitWork) * count * many;
}

// Greedy plans are made whatever the effort while the best is this far above the bound and they are this cheap.
constexpr double kPoorGap = 0.005, kCheapWork = 1e9;

// The item that the exact search prefers among equal offsets. The first three are tried at the bound, and solve
// most hard instances there; all are tried above it.
const std::vector<Key> kSearchOrders[] = {
    {Key::kPressure, Key::kDegree, Key::kLength},        {Key::kPressure, Key::kLength, Key::kArea},
    {Key::kPressure, Key::kArea, Key::kLength},          {Key::kLength, Key::kArea, Key::kPressure},
    {Key::kPressure, Key::kTotalPressure, Key::kLength}, {Key::kDegree, Key::kLength, Key::kArea},
};
constexpr std::int64_t kOrders = 6, kBoundOrders = 3;
// Above the bound an order that is nearly as it was finds most, but has to differ each time.
constexpr double kBoundNoise[] = {0.03, 0.1}, kRungNoise[] = {0.002, 0.004, 0.008, 0.015};

// Tasks of a round of search: at the bound with an order as it is and with a shaken one, the rest on the ladder.
constexpr int kTasks = 6;
// Skylines before the search, and in a round of it.
constexpr std::int64_t kFirstSkylines = 32, kLeastSkylines = 8, kMostSkylines = 128;
constexpr double kSkylinesShare = 0.015, kCheapShare = 0.005;  // of the effort; the less if searches are cheap
constexpr double kDearDive = 0.05;  // of the effort
constexpr std::size_t kCoreItems = kSearchable;
constexpr std::int64_t kFirstRungs = 32;  // are cheap: the bound is often met first
constexpr std::int64_t kPlainPasses = 3;  // with an order as it is, each four times as long

std::int64_t luby(std::int64_t i) { return i & -i; }  // of i = 1, 2, ...: 1 2 1 4 1 2 1 8

struct Outcome {
  Offsets offsets;  // empty if none was found
  Quanta footprint = 0;
  Quanta excluded = -1;  // the highest capacity shown to admit no plan
  Method method = Method::kExact;
  double work = 0;
};

class Packer {
 public:
  Packer(const Problem& problem, const Options& options, const Progress& progress)
      : problem_(problem),
        options_(options),
        progress_(progress),
        core_(problem, kCoreItems) {
    plan_.lower_bound = problem.lower_bound;
    for (const Item& item : core_.problem().items) dive_work_ += 10.0 + static_cast<double>(length(item)) / 6.0;
    dive_work_ *= static_cast<double>(core_.problem().size());
  }

  Plan run() {
    greedy();
    const bool is_hopeless = options_.goal > 0 && options_.goal < problem_.lower_bound;
    if (!is_hopeless) first_skylines();
    if (!is_done() && !is_hopeless) search();
    plan_.seconds = clock_.seconds();
    return std::move(plan_);
  }

 private:
  bool is_done() const { return is_met() || left() <= 0; }

  bool is_met() const { return plan_.footprint <= goal(); }

  // A footprint that is good enough.
  Quanta goal() const { return std::max(plan_.lower_bound, options_.goal); }

  // Whether the plan is better than all before.
  bool accept(Offsets offsets, Method method) {
    const Quanta top = footprint(problem_, offsets);
    if (!plan_.offsets.empty() && top >= plan_.footprint) return false;
    plan_.offsets = std::move(offsets);
    plan_.footprint = top;
    plan_.method = method;
    if (progress_) progress_(clock_.seconds(), top);
    return true;
  }

  void greedy() {
    std::vector<Portfolio> entries(std::begin(kGreedy), std::end(kGreedy));
    const auto is_skyline = [](const Portfolio& entry) { return entry.way == Way::kSkyline; };
    if (!is_flat(problem_))
      entries.erase(std::remove_if(entries.begin(), entries.end(), is_skyline), entries.end());
    else if (problem_.size() > kMany)
      std::stable_partition(entries.begin(), entries.end(), is_skyline);
    for (const Portfolio& entry : entries)
      if (plan_.offsets.empty() || is_worth(work_of(entry.way, problem_.size()))) accept(make(entry), Method::kGreedy);
  }

  Offsets make(const Portfolio& entry) {
    const std::vector<std::int32_t> order = order_by(problem_, {entry.first, entry.second});
    std::int64_t left = 0;
    Offsets offsets = entry.way == Way::kSkyline
                          ? place_on_skyline(problem_, order, left)
                          : place(problem_, order, entry.way == Way::kFirstFit ? Fit::kFirst : Fit::kBest, left);
    work_ += static_cast<double>(-left);
    return offsets;
  }

  // Cheap plans before dear searches.
  void first_skylines() {
    const double one = kSkylineWork * static_cast<double>(problem_.size());
    if (is_done() || !is_flat(problem_) || one > kSkylinesShare * options_.effort * kWorkPerSecond) return;
    skylines_ = std::make_unique<Skylines>(problem_, options_.seed);
    const std::atomic<int> none{1};
    const double share = is_dive_dear() ? kSkylinesShare : kCheapShare;
    const Outcome outcome = improve_skylines(kFirstSkylines, share, Stop(none, 0));
    work_ += outcome.work;
    if (!outcome.offsets.empty()) accept(outcome.offsets, outcome.method);
  }

  Outcome improve_skylines(std::int64_t plans, double share, const Stop& stop) {
    Outcome outcome;
    outcome.method = Method::kSkyline;
    const auto given = static_cast<std::int64_t>(share * options_.effort * kWorkPerSecond);
    std::int64_t work = given;
    if (skylines_->improve(goal(), plans, work, stop)) {
      outcome.offsets = skylines_->offsets();
      outcome.footprint = footprint(problem_, outcome.offsets);
    }
    outcome.work = static_cast<double>(given - work);
    return outcome;
  }

  bool is_worth(double greedy_work) const {
    if (is_met()) return false;
    const bool poor = static_cast<double>(plan_.footprint) > (1 + kPoorGap) * static_cast<double>(plan_.lower_bound);
    if (poor && work_ + greedy_work <= kCheapWork) return true;
    // The search decides: greedy plans only have to give it a start.
    const double share = core_.is_whole() ? 0.01 : 0.03;
    return work_ + greedy_work <= share * options_.effort * kWorkPerSecond;
  }

  // Each round is the same few tasks on any number of threads.
  void search() {
    for (round_ = 1; !is_done(); ++round_) {
      std::vector<Outcome> outcomes = run_round();
      const double before = work_;
      for (Outcome& outcome : outcomes) {
        work_ += outcome.work;
        task_work_ = std::max(task_work_, outcome.work);
        plan_.lower_bound = std::max(plan_.lower_bound, outcome.excluded + 1);
        const bool is_better = !outcome.offsets.empty() && accept(std::move(outcome.offsets), outcome.method);
        if (is_met()) return;
        if (outcome.method == Method::kSkyline) share_out(is_better);
      }
      if (work_ <= before) work_ += kEmptyRound;
    }
  }

  // Skylines get more of the next round when they have found a better plan, and less when not.
  void share_out(bool has_found) {
    round_skylines_ = std::clamp(has_found ? 4 * round_skylines_ : round_skylines_ / 2, kLeastSkylines, kMostSkylines);
  }

  bool ends_search(const Outcome& outcome) const {
    const bool is_met = !outcome.offsets.empty() && outcome.footprint <= goal();
    return is_met || outcome.excluded + 1 >= plan_.footprint;
  }

  static void lower(std::atomic<int>& least, int value) {
    int now = least;
    while (value < now && !least.compare_exchange_weak(now, value)) {
    }
  }

  bool is_dive_dear() const { return dive_work_ > kDearDive * left(); }

  double left() const { return options_.effort * kWorkPerSecond - work_; }

  // So that the last round does not take several times what is left, and the first ends soon: what is found counts
  // when its round is over.
  int affordable_tasks() const {
    if (round_ == 1 && is_dive_dear()) return 1;
    return std::max(1, static_cast<int>(std::min<double>(kTasks, left() / task_work_)));
  }

  // Exact searches, and skylines; ejection where the searches do not see all items.
  std::vector<Outcome> run_round() {
    const int searches = is_searchable(core_.problem()) ? affordable_tasks() : 0;
    const int ejections = searches == 0 || !core_.is_whole(), skylines = skylines_ != nullptr;
    const int tasks = searches + ejections + skylines;
    std::vector<Outcome> outcomes(tasks);
    std::atomic<int> next{0}, first_done{tasks};
    const auto worker = [&] {
      for (int task; (task = next++) < tasks;) {
        const Stop stop(first_done, task);
        if (stop()) continue;
        outcomes[task] = task < searches               ? prove(task, stop)
                         : task < searches + ejections ? eject(stop)
                                                       : improve_skylines(round_skylines_, kSkylinesShare, stop);
        if (ends_search(outcomes[task])) lower(first_done, task);
      }
    };
    std::vector<std::thread> others;
    for (int i = 1; i < std::min(options_.threads, tasks); ++i) others.emplace_back(worker);
    worker();
    for (std::thread& other : others) other.join();
    return outcomes;
  }

  // One search of a round. How long a search takes is wildly uneven in the capacity and the order, so none is
  // worth waiting for: searches are short, budgets grow slowly, and capacities are spread over the whole ladder
  // from the bound to just under the best plan.
  struct Probe {
    Quanta capacity;
    std::int64_t order;
    double noise;
    double work;
  };

  Probe probe(int task) const {
    const Quanta low = goal(), top = plan_.footprint - 1;
    const std::int64_t pass = (round_ - 1) / kBoundOrders, order = (round_ - 1) % kBoundOrders;
    if (task == 0 && pass < kPlainPasses) return {low, order, 0, 4e6 * static_cast<double>(1 << 2 * pass)};
    if (task <= 1) return {low, order, kBoundNoise[(pass + task + 1) % 2], 4e6 * static_cast<double>(luby(pass + 1))};
    const std::int64_t rung = (kTasks - 2) * (round_ - 1) + task - 2;
    const double work = rung < kFirstRungs ? 2e6 : 1.3e7 * (1.0 + static_cast<double>(rung / (64 * kOrders)));
    return {spread(low, top, rung), rung % kOrders, kRungNoise[rung / kOrders % 4], work};
  }

  // The rungs of a golden ladder: any number in a row is spread evenly, three of four over the third power of the
  // way down, since plans get rare fast. The last rung always has its turn, so that a plan of which nothing better
  // exists is proven.
  static Quanta spread(Quanta low, Quanta top, std::int64_t rung) {
    if (rung % 16 == 15) return top;
    const double whole = 0.6180339887498949 * static_cast<double>(rung + 1);
    const double part = whole - std::floor(whole);
    const double down = rung % 4 == 0 ? part : part * part * part;
    return top - static_cast<Quanta>(down * static_cast<double>(top - low + 1));
  }

  Outcome prove(int task, const Stop& stop) {
    const Probe probe = this->probe(task);
    const Problem& core = core_.problem();
    std::vector<std::int32_t> order = order_by(core, kSearchOrders[probe.order]);
    Random random(options_.seed * 1000003 + static_cast<std::uint64_t>(round_ * 8 + task));
    if (probe.noise > 0) shake(order, probe.noise, random);
    Exact exact(core, order);
    const auto given = static_cast<std::int64_t>(std::max(probe.work, dive_work_));
    std::int64_t work = given;
    const Verdict verdict = exact.search(core_.scale(probe.capacity), work, stop);
    Outcome outcome;
    if (verdict == Verdict::kNone) outcome.excluded = probe.capacity;
    if (verdict == Verdict::kFound) {
      outcome.offsets = core_.complete(exact.offsets(), probe.capacity, work, stop);
      outcome.footprint = footprint(problem_, outcome.offsets);
    }
    outcome.work = static_cast<double>(given - work) + 300.0 * static_cast<double>(core.size());
    return outcome;
  }

  Outcome eject(const Stop& stop) {
    if (!ejection_ || plan_.footprint < ejected_) {
      ejection_ = std::make_unique<Ejection>(problem_, plan_.offsets, options_.seed);
      ejected_ = plan_.footprint;
    }
    const Quanta low = goal();
    std::int64_t given = 1000000, work = given;
    Outcome outcome;
    outcome.method = Method::kEjection;
    while (work > 0 && ejected_ > low &&
           ejection_->fit_under(low + static_cast<Quanta>(0.9 * static_cast<double>(ejected_ - 1 - low)), work, stop)) {
      outcome.offsets = ejection_->offsets();
      outcome.footprint = ejected_ = footprint(problem_, outcome.offsets);
    }
    outcome.work = 1000.0 + 120.0 * static_cast<double>(given - work);
    return outcome;
  }

  const Problem& problem_;
  const Options& options_;
  const Progress& progress_;
  const Clock clock_;
  const Core core_;
  Plan plan_;
  double work_ = 0;
  double dive_work_ = 0;  // what a search takes at most that never turns back
  double task_work_ = 1;  // the most that one has taken
  std::int64_t round_ = 0;
  std::unique_ptr<Skylines> skylines_;  // none if there can be none
  std::int64_t round_skylines_ = 16;
  std::unique_ptr<Ejection> ejection_;
  Quanta ejected_ = 0;  // the footprint that `ejection_` has reached
};

}  // namespace

Plan pack(const Problem& problem, const Options& options, const Progress& progress) {
  if (problem.items.empty()) return {};
  return Packer(problem, options, progress).run();
}

}  // namespace memfit::packing
