// Mutexes that a forked child finds free, whoever held them, and what they guard whole: who forks takes them first.
#pragma once

#include <atomic>
#include <new>

namespace memfit {

class AtFork {
 public:
  // In the order of one list, always: no thread may hold one of them while it waits for another.
  static void take_all() {
    for (AtFork* one = first(); one != nullptr; one = one->next_) one->take();
  }
  static void give_all_back() {
    for (AtFork* one = first(); one != nullptr; one = one->next_) one->give_back();
  }
  static void renew_all() {
    for (AtFork* one = first(); one != nullptr; one = one->next_) one->renew();
  }

 protected:
  AtFork() : next_(first()) {
    while (!first().compare_exchange_weak(next_, this)) continue;
  }
  ~AtFork() = default;  // they are never destroyed
  virtual void take() = 0;
  virtual void give_back() = 0;
  virtual void renew() = 0;

 private:
  static std::atomic<AtFork*>& first() {
    static std::atomic<AtFork*> list{nullptr};
    return list;
  }

  AtFork* next_;
};

template <typename Mutex>
class FreeAtFork final : public Mutex, public AtFork {
 private:
  void take() override { this->lock(); }
  void give_back() override { this->unlock(); }
  // It has no memory of waiters, nor of which thread of another process took it.
  void renew() override { new (static_cast<Mutex*>(this)) Mutex(); }
};

}  // namespace memfit
