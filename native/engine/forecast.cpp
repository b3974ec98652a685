#include "forecast.h"

#include <algorithm>

#include "held.h"

namespace memfit {

int32_t Forecast::Log::new_position() {
  released.push_back(0);
  return static_cast<int32_t>(released.size()) - 1;
}

void Forecast::Log::index() {
  first_access.assign(released.size() + 1, 0);
  for (auto [position, op] : accesses) ++first_access[position + 1];
  for (size_t i = 1; i < first_access.size(); ++i) first_access[i] += first_access[i - 1];
  access_ops.resize(accesses.size());
  std::vector<uint32_t> fill(first_access.begin(), first_access.end() - 1);
  for (auto [position, op] : accesses) access_ops[fill[position]++] = op;
}

// A log that is only asked from now on holds no byte that it does not need.
void Forecast::Log::shrink() {
  give_back(accesses);
  allocation_bytes.shrink_to_fit();
  allocation_position.shrink_to_fit();
  released.shrink_to_fit();
}

// An iteration like the last one is logged without a table's growing, which would leave it up to twice as large.
void Forecast::Log::reserve(const Log& like) {
  allocation_bytes.reserve(like.allocation_bytes.size());
  allocation_position.reserve(like.allocation_position.size());
  accesses.reserve(like.access_ops.size());
  released.reserve(like.released.size());
}

size_t Forecast::Log::held() const {
  return held_bytes(allocation_bytes, allocation_position, accesses, released, first_access, access_ops);
}

void Forecast::on_allocation(Block& block) {
  size_t ordinal = now_.allocation_bytes.size();
  block.position = now_.new_position();
  now_.allocation_bytes.push_back(block.bytes);
  now_.allocation_position.push_back(block.position);
  bool same = ordinal < last_.allocation_bytes.size() && last_.allocation_bytes[ordinal] == block.bytes;
  block.forecast = same ? last_.allocation_position[ordinal] : -1;
}

void Forecast::on_access(Block& block) {
  if (block.position < 0) block.position = now_.new_position();
  now_.accesses.emplace_back(block.position, now_.ops);
}

void Forecast::on_release(const Block& block) {
  if (block.position >= 0) now_.released[block.position] = 1;
}

void Forecast::on_boundary(const std::vector<Block*>& alive) {
  for (Block* block : alive) {
    block->forecast = block->position;
    block->position = -1;
  }
  now_.index();
  now_.shrink();
  last_ = std::move(now_);
  now_ = Log();
  now_.reserve(last_);
}

int64_t Forecast::last_ordinal(const Block& block) const {
  const std::vector<int32_t>& positions = last_.allocation_position;  // ascending
  auto found = std::lower_bound(positions.begin(), positions.end(), block.forecast);
  return block.forecast >= 0 && found != positions.end() && *found == block.forecast ? found - positions.begin() : -1;
}

uint64_t Forecast::distance(const Block& block) const {
  if (block.forecast < 0) return 0;
  auto begin = last_.access_ops.begin() + last_.first_access[block.forecast];
  auto end = last_.access_ops.begin() + last_.first_access[block.forecast + 1];
  auto next = std::upper_bound(begin, end, now_.ops);
  if (next != end) return *next - now_.ops;
  if (last_.released[block.forecast] || begin == end) return kNever;
  return last_.ops - std::min(now_.ops, last_.ops) + *begin + 1;
}

bool Forecast::read_again(const Block& block) const { return distance(block) != kNever; }

}  // namespace memfit
