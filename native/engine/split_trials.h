// SplitTrials: whether a call gives the same bits slice by slice.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "slices.h"
#include "split_call.h"

namespace memfit {

class Engine;
class Written;

class SplitTrials {
 public:
  explicit SplitTrials(Engine& engine) : engine_(engine), slices_(engine) {}

  // Runs it whole, and then in slices, if it is worth knowing. With no lock held.
  void run(SplitCall& call, const Kernel& kernel, Stack& stack);

 private:
  // Which slices give the same bits as `outputs`, those of the call when it ran whole, of what was as `before`. Nothing if
  // that would tell nothing.
  std::optional<Answer> tried_against(const std::vector<at::Tensor>& outputs, const Written& before, const SplitCall& call, const Kernel& kernel,
                                      const Stack& inputs);
  std::optional<Answer> tried_with_others(const SplitCall& call, const Kernel& kernel, const Stack& inputs);
  std::vector<int64_t> lengths(const SplitCall& call, Inputs inputs, const std::vector<OutputLayout>& outputs);
  bool is_same_in(const SplitCall& call, const Kernel& kernel, const Stack& inputs, const std::vector<at::Tensor>& outputs, int64_t steps);
  bool is_same_gathered(const SplitCall& call, const Kernel& kernel, const Stack& inputs, const std::vector<at::Tensor>& outputs);
  bool is_same_in_parts(const SplitCall& call, const Kernel& kernel, const Stack& inputs, const std::vector<at::Tensor>& outputs);
  std::optional<Answer> tried_part(const SplitCall& part, const Kernel& kernel, const Stack& inputs, const Stack& outputs);

  Engine& engine_;
  Slices slices_;
};

}  // namespace memfit
