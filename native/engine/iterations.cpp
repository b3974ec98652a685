#include "iterations.h"

#include <algorithm>

#include "common/period.h"

namespace memfit {

namespace {

constexpr size_t kSignatures = 1024;  // that are kept in order
constexpr size_t kKinds = 4096;       // of iterations that are counted apart
constexpr int64_t kLongestSearch = int64_t{1} << 18;     // ops without an optimizer's step: some 60 MB of records
constexpr int64_t kLongestIteration = int64_t{1} << 21;  // ops that are recorded
constexpr size_t kLongestForecast = size_t{1} << 18;     // ops without an iteration's end

}  // namespace

bool Iterations::period_ends(uint64_t ops) {
  if (!is_over(ops)) return false;
  period_start_ = ops - 1;
  return ended_by_period_ = true;
}

void Iterations::on_step() {
  steps_seen_ = true;
  period_ = 0;
}

void Iterations::reject_period() {
  on_step();
  marks_.clear();
}

std::optional<int64_t> Iterations::find_period(const Recorder& recorder, uint64_t ops) {
  const int64_t recorded = recorder.op_count();
  if (steps_seen_ || period_ != 0 || recorded < next_search_ || recorded > kLongestSearch) return std::nullopt;
  next_search_ *= 2;
  auto found = memfit::find_period(recorder.tokens().data(), recorder.tokens().size());
  if (!found) return std::nullopt;
  const auto length = static_cast<int64_t>(found->length);
  // The layers of one backward pass repeat themselves too, and so does a loop that initialises them.
  if (!recorder.has_both_passes(recorded - length, recorded)) return std::nullopt;
  period_ = length;
  period_start_ = ops;
  return length;
}

void Iterations::end(size_t ops) {
  longest_ = std::max(longest_, ops);
  signatures_.push_back(hash_);
  if (signatures_.size() > kSignatures) signatures_.pop_front();
  if (signature_counts_.size() < kKinds || signature_counts_.count(hash_) != 0) ++signature_counts_[hash_];
  hash_ = 0;
  ++count_;
}

bool Iterations::takes_too_long(int64_t recorded) const {
  return recorded > (count_ == 0 ? kLongestSearch : kLongestIteration);
}

bool Iterations::takes_too_long_to_forecast(size_t ops) const { return ops > std::max(kLongestForecast, 2 * longest_); }

void Iterations::mark(const Recorder& recorder) {
  marks_.push_back(recorder.op_count());
  tick_marks_.push_back(recorder.tick_count());
}

void Iterations::forget_marks() {
  marks_.clear();
  tick_marks_.clear();
}

std::function<void()> Iterations::due(bool found) {
  return std::exchange(ended_by_period_, false) || found ? told_ : std::function<void()>();
}

void Iterations::abandon() {
  ended_by_period_ = false;
  period_ = 0;
}

}  // namespace memfit
