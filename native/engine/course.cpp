#include "course.h"

#include <algorithm>
#include <utility>

#include "held.h"

namespace memfit {

namespace {

constexpr size_t kAhead = 512;  // ops in which the program is looked for,
constexpr size_t kPerOp = 16;   // so many of them for each that has to be the plan's, beside two,
constexpr size_t kMostInARow = 6;  // and at most these

}  // namespace

Course::Course(std::vector<uint64_t> identities, std::vector<char> runs_again, bool at_once)
    : identities_(std::move(identities)), runs_again_(std::move(runs_again)), begun_(at_once) {}

std::optional<size_t> Course::on_op(uint64_t identity) {
  if (!begun_) return std::nullopt;
  if (comes_next(identity)) return advance(own_from(next_));
  is_derailed_ = true;
  if (is_found_ahead(identity)) return advance(ahead_);
  ++unplanned_;
  ++strayed_;
  return std::nullopt;
}

// The further on, the more ops in a row it takes: some of a program's few ops come again and again.
bool Course::is_found_ahead(uint64_t identity) {
  const size_t following = own_from(ahead_ + 1);
  if (run_ > 0 && following < ops() && identities_[following] == identity) {
    ahead_ = following, ++run_;
  } else {
    ahead_ = find_ahead(identity);
    run_ = ahead_ < ops() ? 1 : 0;
  }
  const size_t distance = ahead_ - next_;
  return run_ >= 2 + std::min<size_t>(distance / kPerOp, kMostInARow);
}

bool Course::comes_next(uint64_t identity) const {
  const size_t op = own_from(next_);
  return op < ops() && identities_[op] == identity;
}

std::optional<size_t> Course::advance(size_t op) {
  const size_t first = next_;
  for (size_t passed = first; passed < op; ++passed) missing_ += !runs_again(passed);
  lacks_ops_ |= op > own_from(first);
  last_ = op;
  next_ = op + 1;
  run_ = strayed_ = 0;
  return first;
}

// The first of the program's own from `op` on.
size_t Course::own_from(size_t op) const {
  while (op < ops() && runs_again(op)) ++op;
  return op;
}

size_t Course::find_ahead(uint64_t identity) const {
  const size_t end = std::min(ops(), next_ + kAhead);
  for (size_t op = own_from(own_from(next_) + 1); op < end; op = own_from(op + 1))
    if (identities_[op] == identity) return op;
  return ops();
}

void Course::iteration_ends() {
  if (std::exchange(begun_, true)) {
    for (size_t op = next_; op < ops(); ++op) missing_ += !runs_again(op);
    is_derailed_ |= own_from(next_) < ops();
    derailments_ += is_derailed_;
  }
  next_ = last_ = run_ = strayed_ = 0;
  is_derailed_ = lacks_ops_ = false;
}

size_t Course::held() const { return held_bytes(identities_, runs_again_); }

}  // namespace memfit
