#include "recipe.h"

#include <ATen/core/Tensor.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "held.h"
#include "observer.h"
#include "operands.h"
#include "warnings.h"

namespace memfit {

namespace {

at::Tensor tensor_over(const Operand& operand, c10::Storage storage) {
  if (!operand.is_defined) return {};
  const c10::DispatchKeySet keys(c10::computeDispatchKey(std::nullopt, std::nullopt, operand.device));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, operand.dtype);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(operand.offset);
  impl->set_sizes_and_strides(operand.sizes, operand.strides);
  if (operand.is_wrapped_number) impl->set_wrapped_number(true);
  if (operand.requires_grad) impl->set_requires_grad(true);  // a kernel may choose its backend by it
  return tensor;
}

// What autocast casts is the same with a cache as without. In a program's nothing is to be left.
class WithoutCache {
 public:
  WithoutCache() : before_(at::autocast::is_autocast_cache_enabled()) { at::autocast::set_autocast_cache_enabled(false); }
  ~WithoutCache() { at::autocast::set_autocast_cache_enabled(before_); }
  WithoutCache(const WithoutCache&) = delete;
  WithoutCache& operator=(const WithoutCache&) = delete;

 private:
  const bool before_;
};

template <typename Item>
c10::IValue list_of(const Recipe& recipe, const Recipe::List& list, const std::vector<at::Tensor>& tensors) {
  c10::List<Item> items;
  items.resize(static_cast<size_t>(list.length));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Operand& operand = recipe.operands[i];
    if (operand.argument == list.argument) items.set(static_cast<size_t>(operand.item), Item(tensors[i]));
  }
  return items;
}

torch::jit::Stack stack_of(const Recipe& recipe, const std::vector<at::Tensor>& tensors) {
  torch::jit::Stack stack = recipe.arguments;
  for (const Recipe::List& list : recipe.lists)
    stack[list.argument] =
        list.has_gaps ? list_of<std::optional<at::Tensor>>(recipe, list, tensors) : list_of<at::Tensor>(recipe, list, tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Operand& operand = recipe.operands[i];
    if (operand.item < 0) stack[operand.argument] = operand.is_defined ? c10::IValue(tensors[i]) : c10::IValue();
  }
  if (recipe.draws && recipe.op->generator_argument >= 0) stack[recipe.op->generator_argument] = recipe.draws->again();
  return stack;
}

}  // namespace

c10::impl::LocalDispatchKeySet backend_keys() {
  c10::impl::LocalDispatchKeySet keys{c10::impl::PODLocalDispatchKeySet{}};
  keys.included_ = c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
  keys.excluded_ = c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  return keys;
}

size_t Recipe::held() const {
  return sizeof(Recipe) + held_bytes(arguments, operands, lists, results) + (draws ? sizeof(Draws) + sizeof(at::CPUGeneratorImpl) : 0);
}

ReRun::ReRun(std::shared_ptr<const Recipe> recipe, std::vector<c10::Storage> storages) : recipe_(std::move(recipe)) {
  for (size_t i = 0; i < storages.size(); ++i) operands_.push_back(tensor_over(recipe_->operands[i], std::move(storages[i])));
  stack_ = stack_of(*recipe_, operands_);
}

void ReRun::run() {
  at::DisableRecordFunctionGuard unseen;
  c10::impl::ForceDispatchKeyGuard keys(backend_keys());
  const Unheard unheard;
  const WithoutCache without_cache;
  const Within surroundings(*recipe_->surroundings);
  Draws::Repeated draws(recipe_->draws.get());
  recipe_->op->handle->callBoxed(stack_);
  draws.check();
}

c10::Storage ReRun::result(const Value& value) const {
  if (value.written >= 0) return operands_.at(value.written).storage();
  std::vector<at::Tensor> outputs;
  for (const c10::IValue& output : stack_) each_tensor(output, [&](const at::Tensor& tensor) { outputs.push_back(tensor); });
  return outputs.at(value.output).storage();
}

}  // namespace memfit
