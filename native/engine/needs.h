// Needs: the window of free space that each kind of op has needed, by the op and the sizes of its inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace memfit {

struct ThreadState;

class Needs {
 public:
  // The known part of an op's need.
  struct Known {
    uint64_t serial = 0, key = 0;  // of which op
    bool known = false;
    size_t length = 0;
  };

  // Whether the thread's op has run on storages of the same sizes before.
  bool knows(ThreadState& thread) const;
  // Likewise of ops of this key, and they have allocated nothing.
  bool is_nothing(uint64_t need_key) const;
  // The bytes that it will allocate, as far as can be known before it runs.
  size_t wanted(ThreadState& thread) const;
  // It is over, and has needed its window: so it will when it runs on storages of the same sizes again. Returns the
  // length to reckon with.
  size_t learn(const ThreadState& thread, size_t alignment);
  // It is over, and ran in slices: what it needs when it runs whole.
  size_t whole(ThreadState& thread, size_t alignment) const;

  // Bytes of the heap, with the links of each node.
  size_t held() const { return needs_.size() * (sizeof(*needs_.begin()) + 2 * sizeof(void*)); }

 private:
  // The longest window that was needed, and what the op allocated when it was last looked at.
  struct Need {
    size_t length = 0;
    uint64_t window = 0;  // OpWindow::hash
  };

  std::unordered_map<uint64_t, Need> needs_;
};

}  // namespace memfit
