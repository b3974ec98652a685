// Written: what a call writes in place, as it is now, to be compared or put back.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "slices.h"
#include "split_rules.h"

namespace memfit {

class Written {
 public:
  // What slices of `way` write to: contiguous tensors of the call's, in memory.
  Written(const Way& way, Inputs inputs) {
    for (const Cut& cut : way.cuts) {
      if (!cut.is_written) continue;
      const at::Tensor& tensor = tensor_at(inputs, cut.argument, cut.item);
      kept_.emplace_back(tensor, std::vector<char>(first_byte(tensor), first_byte(tensor) + tensor.nbytes()));
    }
  }
  // Nothing has been written since.
  bool is_as_it_was() const {
    for (const auto& [tensor, bytes] : kept_)
      if (std::memcmp(first_byte(tensor), bytes.data(), bytes.size()) != 0) return false;
    return true;
  }
  void put_back() const {
    for (const auto& [tensor, bytes] : kept_) std::memcpy(first_byte(tensor), bytes.data(), bytes.size());
  }

 private:
  std::vector<std::pair<at::Tensor, std::vector<char>>> kept_;
};

}  // namespace memfit
