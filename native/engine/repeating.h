// Repeating: the ops that a plan has run again before an op, one after the other, in a thread that is about to begin it.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <string>
#include <vector>

#include "making.h"
#include "planned.h"

namespace memfit {

class Repeating {
 public:
  explicit Repeating(Engine& engine) : engine_(engine) {}

  // What is due before the op.
  void run_before(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs);

 private:
  using ValueRefs = std::vector<ValueRef>;

  void try_drops(const Planned::Trials& trials);
  void try_drop(Making& making, const Planned::Trials& trials, const Remakings::Trial& trial);
  bool begins(const Planned::Remaking& remaking, const Planned::Step& step);
  void run(Making& making, const Planned::Remaking& remaking, const Planned::Step& step, ValueRefs& on_the_way);
  bool bring_back(Making& making, const Planned::Remaking& remaking, const ValueRef& value);
  void refuse(const Planned::Remaking& remaking, const Value& value, const std::string& why, bool has_run = true);

  Engine& engine_;
};

}  // namespace memfit
