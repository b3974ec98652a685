// Holds the engine's mutex; drops the references gathered under it once it is released again.
#pragma once

#include "engine.h"

namespace memfit {

class Lock {
 public:
  explicit Lock(Engine& engine) : engine_(engine) { engine_.mutex_.lock(); }
  ~Lock() {
    std::vector<Books::StorageRef> dying = engine_.books_.take_buried();
    engine_.mutex_.unlock();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Engine& engine_;
};

// No other thread's op runs, as far as that can be had. The mutex is held.
class Standstill {
 public:
  explicit Standstill(Engine& engine) : engine_(engine) { engine_.turns_.stand_still(this_thread()); }
  ~Standstill() { engine_.turns_.move_again(); }
  Standstill(const Standstill&) = delete;
  Standstill& operator=(const Standstill&) = delete;

 private:
  Engine& engine_;
};

}  // namespace memfit
