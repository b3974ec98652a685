#include "draws.h"

#include <ATen/Context.h>

#include <mutex>
#include <stdexcept>
#include <utility>

namespace memfit {

// The lock of who draws must not be waited for: it may wait for the engine's.
std::unique_ptr<Draws> Draws::of(const Device& device, const at::Generator& given, bool is_argument) {
  at::Generator from = given.defined() ? given : at::globalContext().defaultGenerator(device.name());
  const bool can_be_exchanged = !from.device().is_cpu();
  if (!is_argument && !can_be_exchanged) return nullptr;
  std::unique_lock<std::mutex> lock(from.mutex(), std::try_to_lock);
  if (!lock.owns_lock()) return nullptr;
  auto draws = std::make_unique<Draws>();
  draws->state_ = from.clone();
  if (!is_argument) draws->shared_ = from;
  return draws;
}

bool Draws::end() {
  if (!shared_.defined()) return true;
  std::unique_lock<std::mutex> lock(shared_.mutex(), std::try_to_lock);
  if (lock.owns_lock()) ended_ = shared_.get_offset();
  return lock.owns_lock();
}

Draws::Repeated::Repeated(const Draws* draws) : draws_(draws), shared_(draws != nullptr ? draws->shared_ : at::Generator()) {
  if (!shared_.defined()) return;
  again_ = draws_->again();
  std::lock_guard<std::mutex> lock(shared_.mutex());
  before_ = shared_.graphsafe_get_state();
  shared_.graphsafe_set_state(again_);
}

Draws::Repeated::~Repeated() {
  if (!shared_.defined()) return;
  std::lock_guard<std::mutex> lock(shared_.mutex());
  shared_.graphsafe_set_state(before_);
}

void Draws::Repeated::check() {
  if (!shared_.defined()) return;
  std::lock_guard<std::mutex> lock(shared_.mutex());
  if (again_.get_offset() != draws_->ended_) throw std::runtime_error("another thread drew random numbers meanwhile");
}

}  // namespace memfit
