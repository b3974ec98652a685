#include "split_kernels.h"

#include <ATen/Operators.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine.h"
#include "observer.h"
#include "split_call.h"
#include "warnings.h"

namespace memfit {

namespace {

// The kernels before. Naming a private member in an explicit instantiation is allowed, and gives a way to it ([temp.spec]/6).
template <c10::KernelFunction c10::SafeKernelFunction::*Member>
struct KernelAccess {
  friend const c10::KernelFunction& kernel_in(const c10::SafeKernelFunction& safe) { return safe.*Member; }
};
const c10::KernelFunction& kernel_in(const c10::SafeKernelFunction& safe);
template struct KernelAccess<&c10::SafeKernelFunction::kernel_>;

std::vector<c10::RegistrationHandleRAII>& registrations() {
  static auto* all = new std::vector<c10::RegistrationHandleRAII>;  // never destroyed: kernels may run at the very end
  return *all;
}

template <typename Op, typename Schema>
struct SplitKernel;

template <typename Op, typename Result, typename... Args>
struct SplitKernel<Op, Result(Args...)> {
  struct Before {
    c10::OperatorHandle op;
    c10::KernelFunction kernel;
  };
  static inline const Before* before = nullptr;

  static Result call(c10::DispatchKeySet keys, Args... args) {
    if (split_call == nullptr) [[likely]]
      return before->kernel.template call<Result, Args...>(before->op, keys, std::forward<Args>(args)...);
    return split(keys, std::forward<Args>(args)...);
  }

  [[gnu::noinline]] static Result split(c10::DispatchKeySet keys, Args... args) {
    if (!split_call->op->handle || *split_call->op->handle != before->op)  // another, on the way to it
      return before->kernel.template call<Result, Args...>(before->op, keys, std::forward<Args>(args)...);
    torch::jit::Stack stack = c10::impl::boxArgs<Args...>(std::forward<Args>(args)...);
    Engine::get().run_split([&](torch::jit::Stack& each) { before->kernel.callBoxed(before->op, keys, &each); }, stack);
    return c10::impl::PopResult<Result>::call(stack);
  }

  static void install() {
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    std::optional<c10::OperatorHandle> op = dispatcher.findSchema({Op::name, Op::overload_name});
    if (!op || split_rule(name_of(*op)) == nullptr || is_overridden(*op)) return;
    before = new Before{*op, kernel_in(op->getComputedKernelForDispatchKey(c10::DispatchKey::CPU))};
    registrations().push_back(dispatcher.registerImpl(op->operator_name(), c10::DispatchKey::CPU,
                                                      c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(&call)), std::nullopt,
                                                      nullptr, kSliced));
  }

  static std::string name_of(const c10::OperatorHandle& op) {
    const c10::OperatorName& name = op.operator_name();
    return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  }
};

template <typename... Ops>
void install() {
  (SplitKernel<Ops, typename Ops::schema>::install(), ...);
}

void install_all() {
  namespace ops = at::_ops;
  const Unheard unheard;  // torch says that a kernel is overridden, which is meant for whoever does it by mistake
  install<ops::_log_softmax, ops::_log_softmax_backward_data, ops::_softmax, ops::_softmax_backward_data, ops::_scaled_dot_product_flash_attention_for_cpu,
          ops::_scaled_dot_product_flash_attention_for_cpu_backward, ops::_to_copy, ops::add_Tensor, ops::addmm,
          ops::avg_pool2d, ops::avg_pool2d_backward, ops::_adaptive_avg_pool2d, ops::_adaptive_avg_pool2d_backward, ops::bmm, ops::cat,
          ops::convolution, ops::convolution_backward, ops::div_Tensor, ops::elu, ops::embedding, ops::exp, ops::gelu, ops::gelu_backward,
          ops::hardtanh, ops::hardtanh_backward, ops::leaky_relu, ops::leaky_relu_backward, ops::log, ops::max_pool2d_with_indices,
          ops::max_pool2d_with_indices_backward, ops::mm, ops::mul_Tensor, ops::native_batch_norm, ops::native_batch_norm_backward, ops::native_layer_norm, ops::native_layer_norm_backward, ops::nll_loss_forward, ops::nll_loss_backward,
          ops::nll_loss2d_backward, ops::relu, ops::sigmoid, ops::sigmoid_backward, ops::silu, ops::silu_backward, ops::sqrt,
          ops::sub_Tensor, ops::tanh, ops::tanh_backward, ops::threshold_backward, ops::where_self>();
}

}  // namespace

void override_kernels() {
  static std::once_flag once;
  std::call_once(once, install_all);
}

}  // namespace memfit
