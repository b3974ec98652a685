#include "capturing.h"

#include <ATen/core/Tensor.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "observer.h"
#include "operands.h"

namespace memfit {

namespace {

constexpr size_t kLargestConstant = 16;  // bytes: a number in a tensor

// The arguments that a recipe can keep by value. Others may hold tensors, or objects of Python's.
bool is_plain(const c10::IValue& value) {
  return value.isNone() || value.isInt() || value.isDouble() || value.isBool() || value.isString() || value.isDevice() ||
         value.isComplexDouble() || value.isIntList() || value.isDoubleList() || value.isBoolList();
}

// Each of the block's bytes is the tensor's.
bool covers(const at::Tensor& tensor, const Block& block) {
  return static_cast<size_t>(tensor.numel()) * tensor.itemsize() == block.bytes && tensor.is_non_overlapping_and_dense();
}

// All but its bytes.
void describe(Operand& operand, const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  operand.is_defined = true;
  operand.sizes.assign(impl->sizes().begin(), impl->sizes().end());
  operand.strides.assign(impl->strides().begin(), impl->strides().end());
  operand.offset = impl->storage_offset();
  operand.dtype = impl->dtype();
  operand.device = impl->device();
  operand.is_wrapped_number = impl->is_wrapped_number();
  operand.requires_grad = at::isFloatingType(tensor.scalar_type()) && impl->requires_grad();
}

bool is_constant(const Recipe& recipe, const c10::IValue& input) {
  bool found = false;
  each_storage(input, [&](const c10::Storage& storage, Part) {
    for (const Operand& operand : recipe.operands)
      found |= !operand.constant.empty() && operand.storage == storage.unsafeGetStorageImpl();
  });
  return found;
}

// The generator that the op is given, if any.
at::Generator generator_of(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  const bool is_given = op.generator_argument >= 0 && inputs[op.generator_argument].isGenerator();
  return is_given ? inputs[op.generator_argument].toGenerator() : at::Generator();
}

// Autocast, or a mode of Python's, has the call first. What computes is an op that it calls in turn, perhaps of other inputs.
bool is_taken_over(const OpInfo& op) {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return !(op.autocasts - keys.excluded_).empty() || (keys.included_ - keys.excluded_).has(c10::DispatchKey::Python);
}

}  // namespace

void Capturing::op_starts(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) {
  if (!is_on(thread) || op.is_transparent || thread.recomputing) return;
  const bool is_doubtful = thread.doubts(*memory_.device);
  if (thread.leaf == 0 && !is_taken_over(op)) {
    thread.leaf = thread.depth;
    thread.first_id = lasting_.books.last_id() + 1;
    // (At depth 1 whoever called it may fill it unseen.)
    const bool may_repeat = op.is_repeatable && !is_doubtful && (!op.uninitialised || thread.depth > 1);
    thread.recipe = may_repeat && keeps(thread) && thread.failure.kind == Failure::Kind::kNone ? recipe_of(thread, op, inputs) : nullptr;
  }
  if (!op.only_describes) end_written(op, inputs, is_doubtful);  // also by what it calls: a batched tensor shows its rows only there
}

std::shared_ptr<Recipe> Capturing::recipe_of(const ThreadState& thread, const OpInfo& op,
                                             c10::ArrayRef<const c10::IValue> inputs) const {
  auto recipe = std::make_shared<Recipe>();
  recipe->op = &op;
  recipe->arguments.resize(inputs.size());
  recipe->surroundings = &Surroundings::now();
  recipe->is_planned = thread.captures;
  const bool trains = op.training_argument >= 0 && inputs[op.training_argument].isBool() && inputs[op.training_argument].toBool();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_held_off = trains && op.writes[i];  // an effect that is not to happen twice
    if (!(is_held_off ? add_stand_in(*recipe, inputs[i], i) : add(*recipe, inputs[i], i))) return nullptr;
  }
  // What was kept by value may not be what the op reads. (Of the others none that is in use twice gets here.)
  for (size_t i = 0; i < inputs.size(); ++i)
    if (op.may_write(i) && is_constant(*recipe, inputs[i])) return nullptr;
  if (!op.is_seeded) return recipe;
  if (draws_alone(thread)) recipe->draws = Draws::of(*memory_.device, generator_of(op, inputs), op.generator_argument >= 0);
  return recipe->draws ? recipe : nullptr;
}

// Since its outermost op began no other has: nobody else has drawn a number.
bool Capturing::draws_alone(const ThreadState& thread) const {
  return lasting_.turns.begun() == 1 && lasting_.books.now() == thread.serial;
}

bool Capturing::add(Recipe& recipe, const c10::IValue& input, size_t argument) const {
  if (input.isTensor()) return add_tensor(recipe, input.toTensor(), argument, -1);
  if (input.isTensorList() || input.isOptionalTensorList()) {
    auto items = input.toListRef();
    recipe.lists.push_back({static_cast<int32_t>(argument), static_cast<int32_t>(items.size()), input.isOptionalTensorList()});
    for (size_t i = 0; i < items.size(); ++i)
      if (items[i].isTensor() && !add_tensor(recipe, items[i].toTensor(), argument, static_cast<int32_t>(i))) return false;
    return true;
  }
  if (input.isGenerator()) return static_cast<int>(argument) == recipe.op->generator_argument;
  if (!is_plain(input)) return false;
  recipe.arguments[argument] = input;
  return true;
}

// A strided tensor of the host's or the device's, whose bytes are what its elements say.
bool Capturing::is_ordinary(const at::Tensor& tensor) const {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (is_wrapper(*impl)) return false;
  const bool is_strided = impl->has_storage() && impl->layout() == at::kStrided && !impl->has_symbolic_sizes_strides();
  const bool is_literal = !tensor.is_conj() && !tensor.is_neg() && !impl->is_quantized() && !impl->is_nested();
  return is_strided && (impl->is_cpu() || memory_.device->has(impl->device())) && is_literal;
}

bool Capturing::add_tensor(Recipe& recipe, const at::Tensor& tensor, size_t argument, int32_t item) const {
  Operand& operand = recipe.operands.emplace_back();
  operand.argument = static_cast<int32_t>(argument);
  operand.item = item;
  if (!tensor.defined()) return true;
  if (!is_ordinary(tensor)) return false;
  describe(operand, tensor);
  return !recipe.op->reads_data || add_bytes(recipe, operand, tensor);
}

// Another tensor of the same kind: a kernel may be chosen by what its statistics are like. (One that is missing stays so.)
bool Capturing::add_stand_in(Recipe& recipe, const c10::IValue& input, size_t argument) const {
  if (!input.isTensor() || !input.toTensor().defined()) return true;
  const at::Tensor& tensor = input.toTensor();
  if (!is_ordinary(tensor)) return false;
  Operand& operand = recipe.operands.emplace_back();
  operand.argument = static_cast<int32_t>(argument);
  describe(operand, tensor);
  operand.offset = 0;
  operand.stand_in = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
  return true;
}

bool Capturing::add_bytes(Recipe& recipe, Operand& operand, const at::Tensor& tensor) const {
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  const OpInfo& op = *recipe.op;
  const bool written = op.may_write(operand.argument);
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  operand.storage = &impl;
  if (impl.nbytes() == 0) return true;
  Block* block = lasting_.books.find(impl);
  const bool is_readable = operand.device.is_cpu();  // elsewhere to look at the bytes is to wait for the device
  if (!written && is_readable && (operand.is_wrapped_number || impl.nbytes() <= kLargestConstant)) {
    const auto* data = static_cast<const char*>(impl._mutable_data_ptr_no_checks().get());
    if (data != nullptr) operand.constant.assign(data, impl.nbytes());
    return data != nullptr;
  }
  if (block == nullptr || block->pinned || block->active > 1 || !lasting_.books.is_of_session(*block)) return false;
  Books::attach(*block, storage);
  operand.value = Values::of(*block);
  recipe.bytes += block->bytes;
  // Of uninitialised memory nothing may be left, or it would be other bytes each time.
  return !operand.value->is_blank || (written && op.overwrites && covers(tensor, *block));
}

void Capturing::end_written(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, bool is_doubtful) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!op.may_write(i, is_doubtful)) continue;
    each_storage(inputs[i], [&](const c10::Storage& storage, Part) {
      if (Block* block = lasting_.books.find(*storage.unsafeGetStorageImpl())) Values::end(*block);
    });
  }
}

void Capturing::op_ends(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::IValue> outputs) {
  if (thread.leaf != thread.depth) return;
  thread.leaf = 0;
  std::shared_ptr<const Recipe> recipe = std::move(thread.recipe);
  thread.recipe.reset();
  if (!recipe || memory_.is_closed || !keeps(thread)) return;
  if (recipe->draws ? !draws_alone(thread) || !recipe->draws->end() : was_disturbed(*recipe)) return;
  int32_t number = 0;
  for (const c10::IValue& output : outputs)
    each_tensor(output, [&](const at::Tensor& tensor) { keep_result(thread, tensor, number++, recipe); });
  if (thread.captures && !recipe->results.empty()) thread.captured.push_back(std::move(recipe));
}

// Another thread's op has begun to write to what the op reads. (One that had begun before is in the way of a recipe.)
bool Capturing::was_disturbed(const Recipe& recipe) {
  return std::any_of(recipe.operands.begin(), recipe.operands.end(), [&](const Operand& operand) {
    return operand.value && operand.value->block == nullptr && !recipe.op->may_write(operand.argument);
  });
}

// Of a storage that the op has made or written to. One that was made is to be covered by its tensor: other bytes of it
// are whatever lay there (a reduced loss keeps the storage of its terms).
void Capturing::keep_result(const ThreadState& thread, const at::Tensor& tensor, int32_t output,
                            const std::shared_ptr<const Recipe>& recipe) const {
  if (!tensor.defined() || !is_ordinary(tensor)) return;
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  Block* block = lasting_.books.find(*storage.unsafeGetStorageImpl());
  if (block == nullptr || block->pinned || block->value || block->active > 1 || block->written_by != thread.serial) return;
  int32_t written = -1;
  for (size_t i = 0; i < recipe->operands.size(); ++i)
    if (recipe->operands[i].storage == storage.unsafeGetStorageImpl() && recipe->op->may_write(recipe->operands[i].argument))
      written = static_cast<int32_t>(i);
  const bool is_new = block->id >= thread.first_id && block->maker == &thread;
  if (written < 0 && (!is_new || !covers(tensor, *block))) return;
  Value& value = *Values::of(*block);
  value.is_blank = recipe->op->uninitialised;
  value.recipe = recipe;
  value.written = written;
  value.output = written < 0 ? output : -1;
  recipe->results.push_back(block->value);
  recipe->bytes += block->bytes;
}

}  // namespace memfit
