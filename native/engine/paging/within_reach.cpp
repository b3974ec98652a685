#include "within_reach.h"

#include <algorithm>
#include <utility>

#include "../arena.h"
#include "../device.h"

namespace memfit {

namespace {

constexpr size_t kShare = 16;  // of the limit is the reserve

}  // namespace

size_t WithinReach::reserve_bytes(size_t limit) const {
  if (!has_reserve()) return 0;
  const size_t page = memory_.device->page_at(limit);
  return limit / kShare / page * page;
}

// Whole pages.
void WithinReach::reserve(const Region& room) {
  const size_t page = memory_.device->page_at(room.end()), first = round_up(room.offset, page), end = room.end() / page * page;
  if (!reserve_) reserve_ = std::make_shared<Reserve>();
  reserve_->bytes = end - std::min(first, end);
}

void WithinReach::end_reserve() {
  memory_.device->finish();  // it is on its way
  reserve_->bytes = 0;
}

// Of bytes that are gone through from end to end the beginning may come; rows are read where they are.
std::shared_ptr<Mapped> WithinReach::map(const Block& block, Access access, Extent extent, Extent source) {
  if (by_ != By::kManaged)
    if (char* address = block.tier->address(extent)) return std::make_shared<InTier>(block.tier, address);
  if (by_ == By::kTier || !is_on_gpu()) return nullptr;
  std::unique_ptr<HostMemory> memory = memory_.device->host_memory(block.bytes);
  if (!memory) return nullptr;
  auto beside = std::make_shared<Beside>(block, std::move(memory), source, stats_);
  if (access != Access::kRows && reserve_) beside->come(reserve_);
  return beside;
}

void WithinReach::count(Stats& figures) const {
  if (reserve_) figures.frame_bytes = reserve_->taken, figures.peak_frame_bytes = reserve_->peak;
}

}  // namespace memfit
