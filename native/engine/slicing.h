// Slicing: a call runs slice by slice, or is tried so. Each slice is one more call of the op's own kernel.
//
// Slices of what is in the arena are views of it, or copies where a view would begin unevenly; slices of what waits in the
// tier are read from there. An output that finds no room is made away: its bytes are written to the tier. Each byte is
// read once, and written once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "split_call.h"

namespace memfit {

class Engine;
struct Session;
struct ThreadState;

class Slicing {
 public:
  explicit Slicing(Engine& engine) : engine_(engine) {}

  using Stack = torch::jit::Stack;
  using Kernel = std::function<void(Stack&)>;
  // The thread's call has reached its kernel, with `stack`, which gets its outputs. With no lock held.
  void run(std::unique_ptr<SplitCall> call, const Kernel& kernel, Stack& stack);
  // Which slices give the same bits as `outputs`, those of the call when it ran whole. Nothing if that would tell nothing.
  std::optional<Answer> tried_against(const std::vector<at::Tensor>& outputs, const SplitCall& call, const Kernel& kernel, const Stack& inputs);

 private:
  class Output;
  struct Plan;
  void run_in_slices(const SplitCall& call, const Kernel& kernel, Stack& stack);
  void run_and_try(SplitCall& call, const Kernel& kernel, Stack& stack);
  Plan plan(const SplitCall& call, Inputs inputs);
  // False, with `stack` as it was, when there is less room than there seemed to be.
  bool runs_by(const Plan& plan, const SplitCall& call, const Kernel& kernel, Stack& stack);
  at::Tensor slice_of(const SplitCall& call, size_t cut, const at::Tensor& whole, int64_t begin, int64_t end);
  void read(const Block* block, const at::Tensor& whole, const Cut& cut, int64_t begin, int64_t end, char* to);
  Stack slices(const SplitCall& call, const Stack& stack, int64_t begin, int64_t end);
  bool is_same_in(const SplitCall& call, const Kernel& kernel, const Stack& inputs, const std::vector<at::Tensor>& outputs, int64_t steps);
  Stack gathered(const SplitCall& call, const Stack& stack);
  bool is_same_gathered(const SplitCall& call, const Kernel& kernel, const Stack& inputs, const std::vector<at::Tensor>& outputs);
  std::vector<int64_t> lengths(const SplitCall& call, Inputs inputs, const std::vector<OutputLayout>& outputs);
  void count(const SplitCall& call, uint64_t slices, uint64_t written);
  at::Tensor make_output(const OutputLayout& layout, bool is_away);
  [[noreturn]] void fail(const std::string& why);

  Engine& engine_;
};

}  // namespace memfit
