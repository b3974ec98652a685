// Recipe: an op's call, kept so that it can run once more and give the same bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <c10/util/typeid.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "draws.h"
#include "surroundings.h"

namespace memfit {

struct Block;
struct OpInfo;
struct Recipe;

// Value: one version of one storage's bytes. A write to the storage ends it, and begins another.
struct Value {
  Block* block = nullptr;  // whose bytes they are; null once they were overwritten, or the storage has died
  size_t bytes = 0;
  std::shared_ptr<const Recipe> recipe;  // null: it cannot be made again
  int32_t output = -1;    // of the tensors that the recipe's op returns;
  int32_t written = -1;   // otherwise of the recipe's operands, which the op writes to
  bool is_blank = false;  // uninitialised memory: any bytes will do
  std::vector<Block*> dependents;  // discarded storages that are to be made from it
};

using ValueRef = std::shared_ptr<Value>;

// A tensor among the arguments, without its bytes. Plain data.
struct Operand {
  ValueRef value;                // null: it is missing, a constant, or nobody reads its bytes
  std::string constant;          // the bytes of a number in a tensor, whose storage goes right after the op
  size_t stand_in = 0;           // bytes of nobody's that the op may write to, and is to leave the program's alone
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;
  caffe2::TypeMeta dtype;
  c10::Device device = c10::kCPU;
  bool is_defined = false, is_wrapped_number = false, requires_grad = false;
  int32_t argument = 0, item = -1;  // the position among the arguments, and in a list
  const c10::StorageImpl* storage = nullptr;  // identity, while the op runs
};

struct Recipe {
  struct List {
    int32_t argument, length;
    bool has_gaps;
  };

  const OpInfo* op = nullptr;
  std::vector<c10::IValue> arguments;  // but for tensors
  std::vector<Operand> operands;
  std::vector<List> lists;
  std::unique_ptr<Draws> draws;  // null: it draws no random numbers
  const Surroundings* surroundings = nullptr;
  bool is_planned = false;  // a plan asks for it: its chain ends
  mutable std::vector<std::weak_ptr<Value>> results;  // the values that it makes
  mutable size_t bytes = 0;  // of the storages that it reads and makes
  mutable uint64_t key = 0;  // TriedCalls::key_of, once somebody has asked

  size_t held() const;  // bytes of the heap, about
};

// The keys that ops see below autograd and autocast (which is left out by default): the backend's kernels, and the
// factories' way to them.
c10::impl::LocalDispatchKeySet backend_keys();

// One more run of a recipe's op, on these storages: one for each operand (a missing one's is not looked at). It runs
// below autograd and autocast, as the op ran itself, and no profiler sees it.
class ReRun {
 public:
  ReRun(std::shared_ptr<const Recipe> recipe, std::vector<c10::Storage> storages);

  // (Braces would make a list of two values.)
  c10::ArrayRef<const c10::IValue> inputs() const { return c10::ArrayRef<const c10::IValue>(stack_.data(), stack_.size()); }
  // Raises what the op raises.
  void run();
  c10::ArrayRef<c10::IValue> outputs() const { return c10::ArrayRef<c10::IValue>(stack_.data(), stack_.size()); }
  // That of a value which the recipe makes.
  c10::Storage result(const Value& value) const;

 private:
  std::shared_ptr<const Recipe> recipe_;
  std::vector<at::Tensor> operands_;
  std::vector<c10::IValue> stack_;
};

}  // namespace memfit
