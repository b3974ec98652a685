// The part of a sketch that waits: the scheduler of swap plans times what is swapped.
#include <algorithm>
#include <numeric>

#include "joint/sketch.h"
#include "simulator/schedule.h"

namespace memfit::joint {
namespace {

constexpr std::int64_t kOpSteps = 4, kPieceSteps = 60, kOwnSteps = 2000;  // of the scheduler's beginning

}  // namespace

// Numbers the moments at which something runs, with their time and what they leave of the budget.
void Sketch::number_moments() {
  number_of_.resize(2 * count_);
  slack_.clear();
  moment_us_.clear();
  const auto add = [&](std::int64_t moment, double us, std::int64_t bytes) {
    number_of_[moment] = static_cast<std::int64_t>(slack_.size());
    moment_us_.push_back(us);
    slack_.push_back(all_.budget_bytes - bytes);
  };
  for (std::int64_t op = 0; op < count_; ++op) {
    if (!events_[op].ops.empty()) add(2 * op, event_us_[op], ahead(op));
    add(2 * op + 1, all_.ops.us[op], during(op));
  }
}

void Sketch::schedule() {
  number_moments();
  const auto moments = static_cast<std::int64_t>(slack_.size());
  const auto number = [&](std::int64_t moment) {
    return number_of_[moment % (2 * count_)] + moment / (2 * count_) * moments;
  };
  std::vector<std::int64_t> sizes, after, before;
  std::vector<double> out_us, in_us;
  for (const Piece& piece : pieces_) {
    const std::int64_t from = number(piece.from), to = number(piece.to);
    if (to - from < 2) continue;
    sizes.push_back(all_.held_bytes[all_.gaps.storage[piece.gap]]);
    after.push_back(from), before.push_back(to);
    out_us.push_back(all_.gaps.out_us[piece.gap]), in_us.push_back(all_.gaps.in_us[piece.gap]);
  }
  const auto pieces = static_cast<std::int64_t>(sizes.size());
  swapping::Scheduler scheduler(
      {moment_us_.data(), nullptr, moments},
      {sizes.data(), after.data(), before.data(), out_us.data(), in_us.data(), pieces}, all_.both_factor);
  const double took_us = scheduler.run(std::vector<std::uint8_t>(pieces, 1), slack_);
  now_.wait_us = std::max(0.0, took_us - scheduler.compute_us());
  steps_ += scheduler.steps() + kOpSteps * moments + kPieceSteps * pieces + kOwnSteps;
}

}  // namespace memfit::joint
