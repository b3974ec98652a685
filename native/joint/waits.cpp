// The part of a sketch that waits: the scheduler of swap plans times what is swapped.
#include <algorithm>
#include <vector>

#include "joint/sketch.h"
#include "simulator/choice.h"
#include "simulator/prices.h"
#include "simulator/schedule.h"

namespace memfit::joint {
namespace {

constexpr std::int64_t kOpSteps = 4, kPieceSteps = 60, kOwnSteps = 2000;  // of the scheduler's beginning
// Of the budget: room that the planner of swaps finds besides, by swapping what is small. Without it a copy in often
// waits for a few bytes.
constexpr double kBesides = 0.005;

}  // namespace

// Numbers the ops as they run, again or not, with their time and their bytes without swaps; and notes the first and the
// last of each moment.
void Sketch::number_moments() {
  first_of_.resize(2 * count_), last_of_.resize(2 * count_);
  moment_us_.clear(), moment_bytes_.clear();
  const auto add = [&](double us, std::int64_t bytes) { moment_us_.push_back(us), moment_bytes_.push_back(bytes); };
  for (std::int64_t op = 0; op < count_; ++op) {
    const Event& event = events_[op];
    first_of_[2 * op] = static_cast<std::int64_t>(moment_us_.size());
    for (std::size_t k = 0; k < event.ops.size(); ++k)
      add(all_.ops.again_us[event.ops[k]], begin_[op] + event.made_bytes[k]);
    const auto own = static_cast<std::int64_t>(moment_us_.size());
    last_of_[2 * op] = own - 1;
    first_of_[2 * op + 1] = last_of_[2 * op + 1] = own;
    add(all_.ops.us[op], held_[op]);
  }
}

void Sketch::schedule() {
  number_moments();
  const auto moments = static_cast<std::int64_t>(moment_us_.size());
  const auto number = [&](const std::vector<std::int64_t>& of, std::int64_t moment) {
    return of[moment % (2 * count_)] + moment / (2 * count_) * moments;
  };
  std::vector<std::int64_t> sizes, after, before;
  std::vector<double> out_us, in_us;
  for (const Piece& piece : pieces_) {
    const std::int64_t from = number(last_of_, piece.from), to = number(first_of_, piece.to);
    if (to - from < 2) continue;
    sizes.push_back(all_.held_bytes[all_.gaps.storage[piece.gap]]);
    after.push_back(from), before.push_back(to);
    out_us.push_back(all_.gaps.out_us[piece.gap]), in_us.push_back(all_.gaps.in_us[piece.gap]);
  }
  const auto pieces = static_cast<std::int64_t>(sizes.size());
  const swapping::Ops ops{moment_us_.data(), moment_bytes_.data(), moments};
  const swapping::Candidates all{sizes.data(), after.data(), before.data(), out_us.data(), in_us.data(), pieces};
  swapping::Scheduler scheduler(ops, all, all_.both_factor);
  swapping::Choice choice(ops, all, all_.budget_bytes);
  for (std::int64_t c = 0; c < pieces; ++c) choice.flip(c);
  choice.spare(swapping::Prices(ops, all, all_.budget_bytes));  // as the planner of swaps does
  std::vector<std::int64_t> room = choice.slack();
  const auto besides = static_cast<std::int64_t>(kBesides * static_cast<double>(all_.budget_bytes));
  for (std::int64_t& bytes : room) bytes += besides;
  const double took_us = scheduler.run(choice.flags(), room);
  now_.wait_us = std::max(0.0, took_us - scheduler.compute_us());
  steps_ += scheduler.steps() + kOpSteps * moments + kPieceSteps * pieces + kOwnSteps;
}

}  // namespace memfit::joint
