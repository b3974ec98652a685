#include "scratch.h"

namespace memfit {

Scratch::Share Scratch::expect(uint64_t op, size_t given_bytes, size_t made_before) {
  const uint64_t kind = op ^ (given_bytes * 0x9e3779b97f4a7c15);
  const auto seen = most_.find(kind);
  const Share share{kind, seen == most_.end() ? given_bytes : seen->second, made_before};
  expected_ += share.expected;
  return share;
}

void Scratch::complete(const Share& share) {
  expected_ -= share.expected;
  if (share.kind == 0) return;
  const size_t made = made_ - share.made_before;
  const auto [seen, is_first] = most_.emplace(share.kind, made);
  if (!is_first) seen->second = std::min(seen->second, made);
}

void Scratch::give_up(Share& share) {
  expected_ -= share.expected;
  share = {};
}

}  // namespace memfit
