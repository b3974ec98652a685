// Needs: the window of free space that each kind of op has needed, by the op and the sizes of its inputs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "op_window.h"

namespace memfit {

class Needs {
 public:
  // What is known of an op's need.
  struct Known {
    uint64_t serial = 0, key = 0;  // of which op
    bool known = false;
    size_t length = 0;
  };

  Known look_up(uint64_t serial, uint64_t key) const {
    auto found = needs_.find(key);
    return {serial, key, found != needs_.end(), found != needs_.end() ? found->second.length : 0};
  }

  // The op has needed `window`, and will when it runs on storages of the same sizes again. Returns the length to reckon with.
  size_t learn(uint64_t key, const OpWindow& window, size_t alignment) {
    if (needs_.size() > kMost) needs_.clear();  // sizes that never come back: those that do are learnt again
    Need& need = needs_[key];
    if (std::exchange(need.window, window.hash()) != window.hash())
      need.length = std::max(need.length, window.length(alignment));
    return need.length;
  }

  // Bytes of the heap, with the links of each node.
  size_t held() const { return needs_.size() * (sizeof(*needs_.begin()) + 2 * sizeof(void*)); }

 private:
  static constexpr size_t kMost = size_t{1} << 17;

  // The longest window that was needed, and what the op allocated when it was last looked at.
  struct Need {
    size_t length = 0;
    uint64_t window = 0;  // OpWindow::hash
  };

  std::unordered_map<uint64_t, Need> needs_;
};

}  // namespace memfit
