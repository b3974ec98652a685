#include "swaps.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "block.h"
#include "held.h"

namespace memfit {

namespace {

uint64_t key_of(uint32_t again, uint32_t ordinal) { return uint64_t{again} << 32 | ordinal; }

// The later of two takes, either of which may be none.
uint32_t later(uint32_t one, uint32_t other) {
  if (one == SwapTable::kNone || other == SwapTable::kNone) return std::min(one, other);
  return std::max(one, other);
}

// The first row of each key in a list sorted by key.
std::vector<uint32_t> begins(const std::vector<uint32_t>& keys, size_t count) {
  std::vector<uint32_t> begin(count + 1, 0);
  for (uint32_t key : keys) ++begin[key + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  return begin;
}

}  // namespace

Swaps::Swaps(SwapTable table, size_t ops)
    : table_(std::move(table)), blocks_(table_.storages.size()), arrivals_(blocks_.size(), SwapTable::kNone) {
  for (uint32_t s = 0; s < table_.storages.size(); ++s)
    if (table_.storages[s].block_id == 0)
      by_ordinal_[key_of(table_.storages[s].again, table_.storages[s].ordinal)] = s;
    else
      by_id_[table_.storages[s].block_id] = s;
  for (const SwapTable::Swap& swap : table_.swaps)  // at first what came back last in the iteration before
    arrivals_[swap.storage] = later(arrivals_[swap.storage], swap.take);
  index_actions(ops);
}

size_t Swaps::held() const {
  const size_t maps = table_.maps.size() * (sizeof(*table_.maps.begin()) + 4 * sizeof(void*));  // with the links of each node
  return maps + held_bytes(table_.storages, table_.swaps, blocks_, arrivals_, before_begin_, after_begin_, before_, after_);
}

void Swaps::index_actions(size_t ops) {
  std::vector<uint32_t> all(table_.swaps.size());
  std::iota(all.begin(), all.end(), 0);
  auto sorted = [&](auto key) {
    std::vector<uint32_t> order = all;
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key(table_.swaps[a]) < key(table_.swaps[b]); });
    return order;
  };
  after_ = sorted([](const SwapTable::Swap& s) { return s.out_after; });
  std::vector<uint32_t> keys;
  for (uint32_t swap : after_) keys.push_back(table_.swaps[swap].out_after);
  after_begin_ = begins(keys, ops);
  // Storages that must have left go first, then those that come in, in the order of the takes. (Who waits for the last copy
  // has waited for those before it.)
  std::vector<std::pair<uint32_t, Action>> rows;
  for (uint32_t swap : sorted([](const SwapTable::Swap& s) { return std::pair(s.free_by, -int64_t{s.out_after}); }))
    rows.push_back({left_by(table_.swaps[swap], ops), {Action::Kind::kFinishOut, swap}});
  for (uint32_t swap : sorted([](const SwapTable::Swap& s) { return s.take; }))
    if (table_.swaps[swap].take != SwapTable::kNone) rows.push_back({table_.swaps[swap].in_start, {Action::Kind::kStartIn, swap}});
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  keys.clear();
  for (const auto& [op, action] : rows) {
    keys.push_back(op);
    before_.push_back(action);
  }
  before_begin_ = begins(keys, ops);
}

// Its bytes are free then at the latest; and an op that uses it where it waits would use it where it is, and write to it there.
uint32_t Swaps::left_by(const SwapTable::Swap& swap, size_t ops) const {
  const auto after = [&](uint32_t op) { return op > swap.out_after ? op - swap.out_after : op + ops - swap.out_after; };
  uint32_t by = swap.free_by;
  for (const auto& [op, storage] : table_.maps)
    if (storage == swap.storage && after(op) < after(by)) by = op;
  return by;
}

Swaps::Span<Swaps::Action> Swaps::before(size_t op) const {
  return {before_.data() + before_begin_[op], before_.data() + before_begin_[op + 1]};
}

Swaps::Span<uint32_t> Swaps::after(size_t op) const {
  return {after_.data() + after_begin_[op], after_.data() + after_begin_[op + 1]};
}

bool Swaps::maps(size_t op, const Block& block) const {
  return block.swapped >= 0 && table_.maps.count({static_cast<uint32_t>(op), static_cast<uint32_t>(block.swapped)}) != 0;
}

bool Swaps::maps_any(size_t op) const {
  const auto found = table_.maps.lower_bound({static_cast<uint32_t>(op), 0});
  return found != table_.maps.end() && found->first == op;
}

void Swaps::bind(Block& block) {
  auto found = by_id_.find(block.id);
  if (found == by_id_.end() || table_.storages[found->second].bytes != block.bytes) return;
  blocks_[found->second] = &block;
  block.swapped = static_cast<int32_t>(found->second);
}

void Swaps::bind_as(uint32_t again, uint32_t number, Block& block) {
  auto found = by_ordinal_.find(key_of(again, number));
  if (found == by_ordinal_.end() || table_.storages[found->second].bytes != block.bytes) return;
  Block*& known = blocks_[found->second];
  if (known != nullptr) known->swapped = -1;
  known = &block;
  block.swapped = static_cast<int32_t>(found->second);
}

void Swaps::on_release(Block& block) {
  if (block.swapped >= 0 && blocks_[block.swapped] == &block) blocks_[block.swapped] = nullptr;
  block.swapped = -1;
}

void Swaps::pass_on(Block& from, Block& to) {
  on_release(to);
  to.swapped = std::exchange(from.swapped, -1);
  if (to.swapped >= 0) blocks_[to.swapped] = &to;
}

uint32_t& Swaps::arrival(const Block& block) { return arrivals_[block.swapped]; }

uint32_t Swaps::last_arrival(uint32_t ordinal) const {
  auto found = by_ordinal_.find(key_of(0, ordinal));
  uint32_t last = SwapTable::kNone;
  if (found == by_ordinal_.end()) return last;
  for (const SwapTable::Swap& swap : table_.swaps)
    if (swap.storage == found->second) last = later(last, swap.take);
  return last;
}

bool Swaps::leaves_for_good(uint32_t ordinal) const {
  auto found = by_ordinal_.find(key_of(0, ordinal));
  return found != by_ordinal_.end() && std::any_of(table_.swaps.begin(), table_.swaps.end(), [&](const SwapTable::Swap& swap) {
    return swap.storage == found->second && swap.take == SwapTable::kNone;
  });
}

}  // namespace memfit
