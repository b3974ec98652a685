// OpWindow: how long a free stretch an op's own allocations need, when each takes the first place that fits.
//
// Their peak sum is not enough: scratch that comes and goes leaves holes between what stays, and nothing an op
// holds can be moved while it runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace memfit {

class OpWindow {
 public:
  void clear() {
    taken_.clear();
    length_ = 0;
  }

  // Returns where the allocation lies, to be given back later.
  size_t take(size_t size) {
    size_t offset = 0;
    auto at = taken_.begin();
    for (; at != taken_.end() && at->offset < offset + size; ++at) offset = at->offset + at->size;
    taken_.insert(at, Span{offset, size});
    length_ = std::max(length_, offset + size);
    return offset;
  }

  void give_back(size_t offset) {
    auto at = std::lower_bound(taken_.begin(), taken_.end(), offset,
                               [](const Span& span, size_t value) { return span.offset < value; });
    if (at != taken_.end() && at->offset == offset) taken_.erase(at);
  }

  size_t length() const { return length_; }

 private:
  struct Span {
    size_t offset;
    size_t size;
  };

  std::vector<Span> taken_;  // by offset
  size_t length_ = 0;
};

}  // namespace memfit
