// Notices: lines for the user, each kind said once, by Python, as soon as no lock is held.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace memfit {

class Notices {
 public:
  // `action` says a line.
  void tell(std::function<void(const std::string&)> action) { say_ = std::move(action); }
  void add(const std::string& key, const std::string& text) {
    if (said_.size() >= kMost || !said_.insert(key).second) return;
    waiting_.push_back(text);
    any_.store(true);
  }
  // Whether there are any; asked without a lock.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  std::vector<std::string> take() {
    any_.store(false);
    return std::exchange(waiting_, {});
  }
  const std::function<void(const std::string&)>& say() const { return say_; }
  void begin_anew() {
    said_.clear();
    waiting_.clear();
  }

 private:
  static constexpr size_t kMost = 20;

  std::function<void(const std::string&)> say_;
  std::unordered_set<std::string> said_;
  std::vector<std::string> waiting_;
  std::atomic<bool> any_{false};
};

}  // namespace memfit
