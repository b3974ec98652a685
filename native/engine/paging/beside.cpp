#include "beside.h"

#include <utility>

namespace memfit {

Beside::Beside(const Block& block, std::unique_ptr<HostMemory> memory, Extent source, Stats& stats)
    : block_(block), memory_(std::move(memory)), stats_(stats) {
  if (source == nullptr) return;
  block_.tier->get(source, memory_->address(), block_.bytes);
  stats_.mapped_bytes_in += block_.bytes;
}

Beside::~Beside() {
  try {
    go_home();
  } catch (const TierFailure&) {
    // The device answers nothing any more.
  }
}

void Beside::come(std::shared_ptr<Reserve> reserve) {
  if (there_ != 0 || reserve->taken >= reserve->bytes) return;
  const size_t bytes = memory_->come(reserve->bytes - reserve->taken);
  reserve_ = std::move(reserve);
  there_ = bytes;
  reserve_->taken += bytes;
  reserve_->peak = std::max(reserve_->peak, reserve_->taken);
}

void Beside::go_home() {
  if (there_ == 0) return;
  memory_->go_home();
  reserve_->taken -= std::exchange(there_, 0);
}

void Beside::settle() {
  go_home();
  if (!block_.dirty) return;
  block_.tier->write(block_.extent, memory_->address(), block_.bytes);
  stats_.mapped_bytes_out += block_.bytes;
}

}  // namespace memfit
