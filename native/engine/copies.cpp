#include "copies.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "pointers.h"

namespace memfit {

void Copies::begin(Block& block, Copy::Direction direction, Region* region, uint32_t swap) {
  block.copy = std::make_shared<Copy>();
  *block.copy = {direction, block.tier, block.extent, memory_.arena->base() + region->offset, block.bytes, region, swap};
  block.copy->is_timed = are_timed();
  block.copy->takes_print = !memory_.device->is_asynchronous();
  ++block.active;
  copying_.push_back(&block);
  lane(direction).push(block.copy);
}

bool Copies::are_timed() const {
  constexpr uint64_t kFirst = 32, kOfEvery = 64, kInARow = 16;
  return !memory_.device->is_asynchronous() || timeline_.on() || iterations_ < kFirst || iterations_ % kOfEvery < kInARow;
}

void Copies::iteration_ends() {
  stats_.timed_iterations += are_timed();
  ++iterations_;
}

void Copies::tell_tier() {
  const uint64_t waited = stats_.stall_ns + stats_.copy_ns, copied = stats_.out_ns + stats_.in_ns;
  memory_.tier->store().iteration_ends(waited - std::exchange(waited_ns_, waited), copied - std::exchange(copied_ns_, copied));
}

bool Copies::make_lanes() {
  try {
    if (memory_.tier->refuses_lanes) throw std::system_error(EAGAIN, std::generic_category());
    for (std::unique_ptr<Lane>& lane : lanes_)
      if (!lane) lane = memory_.device->make_lane(*memory_.tier);
    return true;
  } catch (const std::exception&) {
    ++stats_.lane_failures;
    return false;
  }
}

Lane& Copies::lane(Copy::Direction direction) { return *lanes_[direction == Copy::Direction::kIn]; }

bool Copies::settle(Block& block) {
  std::shared_ptr<Copy> copy = std::move(block.copy);
  block.copy.reset();
  lane(copy->direction).wait(*copy);
  copy->waited_by = timeline_.op();
  copying_.erase(std::find(copying_.begin(), copying_.end(), &block));
  --block.active;
  block.print = copy->print;
  stats_.failed_copies += !copy->error.empty();
  const bool out = copy->direction == Copy::Direction::kOut;
  copy->counts = out ? has_gone(block, *copy) : has_come(block, *copy);
  if (copy->counts) (out ? stats_.untimed_out_bytes : stats_.untimed_in_bytes) += copy->bytes;  // until its time is known
  settled_.push_back(copy);
  account();
  return !out && block.resident();
}

bool Copies::has_gone(Block& block, const Copy& copy) {
  const bool succeeded = copy.error.empty();
  if (succeeded)
    moves_.went_out(block);
  else
    block.dirty = true;
  return succeeded;
}

bool Copies::has_come(Block& block, const Copy& copy) {
  c10::StorageImpl* storage = storage_behind(block);
  const bool succeeded = copy.error.empty() && storage != nullptr;
  if (succeeded)
    moves_.come_in(block, copy.region, *storage), ++stats_.prefetches;
  else
    memory_.arena->give_back(copy.region);
  return succeeded;
}

// Write the times of copies that have been waited for into the books, as far as they are known.
void Copies::account() {
  size_t known = 0;
  for (; known < settled_.size(); ++known) {
    Copy& copy = *settled_[known];
    if (!copy.is_timed) continue;
    if (!lane(copy.direction).knows_times(copy)) break;
    const bool out = copy.direction == Copy::Direction::kOut;
    if (copy.counts) {
      (out ? stats_.untimed_out_bytes : stats_.untimed_in_bytes) -= copy.bytes;
      (out ? stats_.out_ns : stats_.in_ns) += static_cast<uint64_t>(copy.ended - copy.began);
      ++(out ? stats_.timed_copies_out : stats_.timed_copies_in);
    }
    stats_.stall_ns += static_cast<uint64_t>(copy.waited_until - copy.waited_from);
    timeline_.copied(copy);
  }
  settled_.erase(settled_.begin(), settled_.begin() + static_cast<std::ptrdiff_t>(known));
}

void Copies::settle_all() {
  while (!copying_.empty()) settle(*copying_.back());
}

void Copies::finish() {
  if (!settled_.empty()) memory_.device->finish();
  account();
}

void Copies::close() {
  for (std::unique_ptr<Lane>& lane : lanes_) lane.reset();
}

void Copies::abandon() {
  for (std::unique_ptr<Lane>& lane : lanes_) (void)lane.release();  // its thread is not in this process
  settled_.clear();
}

}  // namespace memfit
