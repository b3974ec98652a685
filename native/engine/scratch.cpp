#include "scratch.h"

namespace memfit {

size_t Scratch::expected(uint64_t op, size_t given_bytes) const {
  const auto seen = most_.find(kind_of(op, given_bytes));
  return seen == most_.end() ? given_bytes : seen->second;
}

Scratch::Share Scratch::begin(uint64_t op, size_t given_bytes, size_t made_before) {
  const Share share{kind_of(op, given_bytes), expected(op, given_bytes), made_before};
  expected_ += share.expected;
  return share;
}

void Scratch::complete(const Share& share) {
  expected_ -= share.expected;
  if (share.kind == 0) return;
  if (most_.size() > kMostKnown) most_.clear();  // sizes that never come back: those that do are learnt again
  const size_t made = made_ - share.made_before;
  const auto [seen, is_first] = most_.emplace(share.kind, made);
  if (!is_first) seen->second = std::min(seen->second, made);
}

void Scratch::give_up(Share& share) {
  expected_ -= share.expected;
  share = {};
}

}  // namespace memfit
