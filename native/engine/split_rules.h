// Split rules: along which dimensions an op's call may be cut into slices, each computed by a call of the same op.
//
// A rule says that no element of the output depends on two slices. Whether slices give the same bits is tried
// (slicing.h). Sums over the dimension that is cut have no rule: a weight's gradient is computed of the whole batch, though
// not with the input's, and statistics of a batch are cut by channel.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace memfit {

// An argument, or an item of a list, that is cut along `dim`.
struct Cut {
  int32_t argument = 0;
  int32_t item = -1;
  int64_t dim = 0;
  bool is_read = true;  // false: its shape alone counts
  bool is_written = false;  // too, in place
};

// What an element's bits depend on, beside the bytes that it is computed from.
enum class Bits {
  kExact,    // nothing: it is copied, chosen, or rounded once
  kVectors,  // whether it lies in a whole vector, or in what is left over at the end of a thread's part
  kRows,     // nothing, if its whole row is there
  kSums,     // the order in which a library adds, which it chooses by the shapes
};

// One way to cut a call. What has no cut is given whole to each slice's call.
struct Way {
  std::vector<Cut> cuts;
  std::vector<int64_t> outputs;  // the dimension along which each output is put together, or kEmpty
  int64_t length = 0;  // steps along the dimension
  // It reads one element of each row of its first argument, as its second says (a loss, of the scores of the target): these
  // alone are brought together, and it is called once.
  bool gathers = false;
  // Not cut at all: of the outputs that its argument of this number asks for, the first is computed by one call, and the
  // rest by another, each of which may be cut.
  int32_t mask = -1;
  size_t first = 0;  // of its outputs: those before it are not asked for
  Bits bits = Bits::kExact;
};

using Inputs = c10::ArrayRef<const c10::IValue>;

inline constexpr int64_t kEmpty = -1;  // an output of no elements

struct SplitRule {
  std::vector<Way> (*cut)(Inputs inputs);
  Bits bits;  // of all ways, at least

  // The one first that leaves the least whole.
  std::vector<Way> ways(Inputs inputs) const;
};

// By the op's name with its overload; null: it is never split.
const SplitRule* split_rule(std::string_view name);
// It reads no bytes itself, and calls one op after another with what it is given.
bool passes_on(std::string_view name);

// What a call that asks for several outputs may be replaced by.
std::vector<c10::List<bool>> parts_asked_for(const c10::List<bool>& wanted);

// The tensor that a cut is made in.
inline const at::Tensor& tensor_at(Inputs inputs, int32_t argument, int32_t item) {
  return item < 0 ? inputs[argument].toTensor() : inputs[argument].toListRef()[item].toTensor();
}

}  // namespace memfit
