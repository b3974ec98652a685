// Ordinary memory of adopted storages. Ops that were running when the session began may still read it: it is kept until
// they have ended, or do not read what they were given.
#pragma once

#include <chrono>
#include <thread>
#include <vector>

#include "device.h"

namespace memfit {

class OrdinaryMemory {
 public:
  // A session begins. `others`: other threads may be in the midst of an op that nobody has seen begin.
  void begin(bool others) {
    is_kept_ = others;
    until_ = std::chrono::steady_clock::now() + kGrace;
  }
  void release(Device& device, void* memory) {
    if (is_kept_)
      kept_.push_back(memory);
    else
      device.free_ordinary(memory);
  }
  void free_when_due(Device& device) {
    if (is_kept_ && std::chrono::steady_clock::now() >= until_) free_all(device);
  }
  // What is kept is wanted elsewhere: those ops have the rest of their time to end.
  void give_up(Device& device) {
    if (kept_.empty()) return;
    std::this_thread::sleep_until(until_);
    free_all(device);
  }
  void free_all(Device& device) {
    for (void* memory : kept_) device.free_ordinary(memory);
    kept_.clear();
    is_kept_ = false;
  }

 private:
  static constexpr std::chrono::seconds kGrace{2};

  bool is_kept_ = false;
  std::chrono::steady_clock::time_point until_;
  std::vector<void*> kept_;
};

}  // namespace memfit
