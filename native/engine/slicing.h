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

#include "slices.h"
#include "split_call.h"
#include "split_trials.h"

namespace memfit {

class Engine;
class SaidOnce;
struct Session;
struct ThreadState;

class Slicing {
 public:
  explicit Slicing(Engine& engine) : engine_(engine), slices_(engine), trials_(engine) {}

  // The thread's call has reached its kernel, with `stack`, which gets its outputs. With no lock held.
  void run(std::unique_ptr<SplitCall> call, const Kernel& kernel, Stack& stack);

 private:
  class Output;
  struct Plan;
  void run_in_slices(const SplitCall& call, const Kernel& own_kernel, Stack& stack);
  void run_in_parts(const SplitCall& call, SaidOnce& said, Stack& stack);
  Plan plan(const SplitCall& call, Inputs inputs);
  // False, with `stack` as it was, when there is less room than there seemed to be.
  bool runs_by(const Plan& plan, const SplitCall& call, const Kernel& kernel, Stack& stack);
  void run_by(const Plan& plan, const SplitCall& call, const Kernel& kernel, Stack& stack);
  std::vector<Output> make_outputs(const Plan& plan, const SplitCall& call);
  void count(const SplitCall& call, uint64_t slices, uint64_t written);
  at::Tensor make_output(const OutputLayout& layout, bool is_away);

  Engine& engine_;
  Slices slices_;
  SplitTrials trials_;
};

}  // namespace memfit
