// Notices: lines for the user, each kind said once in a session, as soon as no lock is held.
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
  // `any`: whether there are any, for those who ask without a lock.
  explicit Notices(std::atomic<bool>& any) : any_(any) {}
  void add(const std::string& key, const std::string& text) {
    if (said_.size() >= kMost || !said_.insert(key).second) return;
    waiting_.push_back(text);
    any_.store(true);
  }
  std::vector<std::string> take() {
    any_.store(false);
    return std::exchange(waiting_, {});
  }

 private:
  static constexpr size_t kMost = 20;

  std::unordered_set<std::string> said_;
  std::vector<std::string> waiting_;
  std::atomic<bool>& any_;
};

}  // namespace memfit
