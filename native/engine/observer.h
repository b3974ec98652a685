// The observer: a RecordFunction callback that sees every dispatcher call on every thread.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paging/access.h"
#include "split_rules.h"

namespace memfit {

// The engine's knowledge of an operator, worked out once from its schema. Plain data.
struct OpInfo {
  std::string name;        // "aten::add.Tensor"
  int64_t id = 0;
  uint64_t name_hash = 0;  // the same in every process
  bool is_operator = true;  // false: only groups operators (autograd's nodes, an LSTM)
  bool reads_data = true;  // false: views and factories that look at metadata only (but for what `reads` says)
  bool is_view = false;
  bool writes_any = false; // the schema is not to be trusted: every argument may be written to
  bool verified = false;   // it was seen to write to nothing but what `writes` says, or cannot
  bool uninitialised = false;  // its output is filled by whoever called it
  bool adapts = false;  // if it cannot have the scratch that it asks for, it does with less
  bool keeps_pointers = false;  // works on its arguments after it has returned: they must stay where they are
  std::vector<std::string> arguments;  // their names
  std::vector<bool> writes;    // by argument
  std::vector<bool> aliased;   // by argument: a view of it is returned
  std::vector<size_t> operands;  // the arguments that may be, or hold, tensors
  size_t returns = 0;
  std::optional<c10::OperatorHandle> handle;
  bool is_composite = false;   // it is made of calls of others,
  bool is_transparent = false;  // and was seen to write nothing that these do not write
  c10::DispatchKeySet autocasts;  // those of autocast's keys that have a kernel for it
  bool is_repeatable = false;  // it may run once more: its outputs, and what it is said to write to, are all it does
  bool may_be_in_place = false;  // its one output may lie over an input
  Access access = Access::kStream;  // how it goes through what it is given
  const SplitRule* split_rule = nullptr;  // how it may run in slices; null: it may not
  bool passes_on = false;  // it only hands on what it is given
  bool is_seeded = false;      // by a generator's state
  bool overwrites = false;     // it reads nothing of what it writes to
  bool only_describes = false;  // it changes a tensor, and no bytes
  int generator_argument = -1;
  int training_argument = -1;  // while it is true, what is written to is statistics, which may be missing
  int size_argument = -1;  // of a factory: the shape of what it returns
  int device_argument = -1;  // where that is to be
  bool makes_tensors = false;  // it returns what is none of its arguments
  bool is_generated = false;   // for its arguments' shapes: what it allocates follows from their sizes
  std::vector<size_t> raw_arguments;  // of one that is looked through: what it reads through raw pointers all along

  // `is_doubtful`: it is not believed to leave what it reads as it was.
  bool may_write(size_t argument, bool is_doubtful = false) const {
    return writes_any || (argument < writes.size() && writes[argument]) || (is_doubtful && reads(argument));
  }
  // A view reads none of what it is a view of, but may well read another argument (indices to split at).
  bool reads(size_t argument) const { return reads_data || (is_view && !aliased[argument]); }
};

// `use(number)` for each of so many arguments that may be, or hold, tensors. (A function that is no op has its tensors alone.)
template <typename Use>
void each_operand_number(const OpInfo& op, size_t arguments, const Use& use) {
  const bool are_known = op.writes.size() == arguments;
  const size_t operands = are_known ? op.operands.size() : arguments;
  for (size_t i = 0; i < operands; ++i) use(are_known ? op.operands[i] : i);
}

// `use(number, argument)` likewise.
template <typename Use>
void each_operand(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, const Use& use) {
  each_operand_number(op, inputs.size(), [&](size_t i) { use(i, inputs[i]); });
}

// Of a function that is no op: it may write to whatever it is given.
const OpInfo& extension_op(const std::string& name);
// Of a kernel, by argument: which are tensors, and which of these it writes to. It reads the others.
const OpInfo& kernel_op(const std::string& name, const std::vector<bool>& tensors, std::vector<bool> writes);

uint64_t add_observer();
void remove_observer(uint64_t handle);
// A profiler that notes shapes asks for the addresses of what comes into autograd's nodes: it is brought in for that.
void watch_nodes(bool on);
// What the dispatcher calls the engine's kernels that stand before torch's.
inline constexpr const char* kSliced = "runs in slices what does not fit (memfit)";
// Somebody has put a kernel of their own in the place of one of torch's (torch.library, an extension): it may do more than
// torch's does.
bool is_overridden(const c10::OperatorHandle& op);
// What is known of operators is worked out again: somebody has registered a kernel, or taken one back.
void forget_operators();
// For tests: registered kernels are taken for torch's own.
void trust_registered_kernels(bool on);
// What torch takes to tell an observer of ops: for benchmarks, one that does nothing.
void observe_idly(bool on);
// "2 x Float[2,3] of a storage of 24 B; ...": for a message.
std::string describe(c10::ArrayRef<const c10::IValue> values);
// "Float[2,3];Long[2]>Float[]": the tensors that went in and came out, '-' for one that is missing.
void append_shapes(const c10::IValue& value, std::string& text);
// Names of all operators seen so far, by OpInfo::id.
std::vector<std::string> op_names();

// The user's line of Python that is running on this thread, as an index into `sources()`; -1 when there is
// none. Takes the interpreter lock: never call it with the engine's mutex held.
int64_t current_source();
bool is_python_thread();
std::vector<std::string> sources();
std::string source_text(int64_t source);
// Frames of files below these folders are not the user's.
void set_library_folders(std::vector<std::string> folders);

}  // namespace memfit
