#include "surroundings.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <concepts>
#include <iterator>
#include <limits>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "hash.h"

namespace memfit {

namespace {

using at::Context;
using at::Float32Backend;
using at::Float32Op;
using at::Float32Precision;

struct Setting {
  const char* name;
  int32_t (*read)();
  void (*write)(int32_t);
};

constexpr int32_t kNothing = std::numeric_limits<int32_t>::min(), kUnread = kNothing + 1;

template <typename Value>
int32_t number_of(const Value& value) {
  return static_cast<int32_t>(value);
}
int32_t number_of(const std::optional<int32_t>& value) { return value.value_or(kNothing); }

template <typename Value>
Value value_of(int32_t number) {
  if constexpr (std::is_same_v<Value, std::optional<int32_t>>)
    return number == kNothing ? Value() : Value(number);
  else
    return static_cast<Value>(number);
}

// One of the process's context. Of those that this torch lacks nobody reads anything but 0.
template <typename Get, typename Set>
constexpr Setting of_context(const char* name, Get, Set) {
  if constexpr (std::invocable<Get, Context&>) {
    using Value = std::remove_cvref_t<std::invoke_result_t<Get, Context&>>;
    return {name, [] { return number_of(Get{}(at::globalContext())); },
            [](int32_t to) { Set{}(at::globalContext(), value_of<Value>(to)); }};
  } else {
    return {name, [] { return int32_t{0}; }, [](int32_t) {}};
  }
}
// (Plain functions: pointers to its members crashed where they are looked at when it runs, in a build with a sanitizer.)
#define MEMFIT_SETTING(getter, setter)                                                     \
  of_context(                                                                              \
      #getter, [](auto& context) -> decltype(context.getter()) { return context.getter(); }, \
      [](auto& context, auto to) -> decltype(context.setter(to)) { return context.setter(to); })

// What products are computed with, in the order of their settings.
using Product = std::pair<Float32Backend, Float32Op>;
constexpr Product kProducts[] = {{Float32Backend::MKLDNN, Float32Op::MATMUL}, {Float32Backend::MKLDNN, Float32Op::CONV},
                                 {Float32Backend::MKLDNN, Float32Op::RNN},    {Float32Backend::CUDA, Float32Op::MATMUL},
                                 {Float32Backend::CUDA, Float32Op::CONV},     {Float32Backend::CUDA, Float32Op::RNN}};

// (They are set all together, by Precisions.)
template <size_t Number>
constexpr Setting precision(const char* name) {
  return {name, [] { return number_of(at::globalContext().float32Precision(kProducts[Number].first, kProducts[Number].second)); },
          [](int32_t) {}};
}

template <c10::DeviceType Device>
constexpr Setting autocast(const char* name) {
  return {name, [] { return number_of(at::autocast::is_autocast_enabled(Device)); },
          [](int32_t to) { at::autocast::set_autocast_enabled(Device, to != 0); }};
}

template <c10::DeviceType Device>
constexpr Setting autocast_dtype(const char* name) {
  return {name, [] { return number_of(at::autocast::get_autocast_dtype(Device)); },
          [](int32_t to) { at::autocast::set_autocast_dtype(Device, value_of<at::ScalarType>(to)); }};
}

template <typename Set>
void set_reduction(int32_t to, Set set) {
  using Option = at::CuBLASReductionOption;
  const auto option = value_of<Option>(to);
  set(option == Option::AllowReducedPrecisionWithSplitK, option != Option::DisallowReducedPrecisionDisallowSplitK);
}

// How the processor rounds, and whether numbers close to 0 are 0.
#if defined(__SSE__)
constexpr uint32_t kRounding = 0xE040;
int32_t rounding() { return static_cast<int32_t>(_mm_getcsr() & kRounding); }
void set_rounding(int32_t to) { _mm_setcsr((_mm_getcsr() & ~kRounding) | static_cast<uint32_t>(to)); }
#elif defined(__aarch64__)
constexpr uint64_t kRounding = 0x01C80000;
uint64_t control() {
  uint64_t word;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return word;
}
int32_t rounding() { return static_cast<int32_t>(control() & kRounding); }
void set_rounding(int32_t to) { asm volatile("msr fpcr, %0" : : "r"((control() & ~kRounding) | static_cast<uint64_t>(to))); }
#else
int32_t rounding() { return 0; }
void set_rounding(int32_t) {}
#endif

// A digit for each kind of attention.
constexpr int32_t kAttentions = 10;
int32_t order_of_attention() {
  int32_t digits = 0;
  for (at::SDPBackend kind : at::globalContext().sDPPriorityOrder()) digits = digits * kAttentions + number_of(kind) + 1;
  return digits;
}
void set_order_of_attention(int32_t digits) {
  std::vector<int64_t> order;
  for (; digits != 0; digits /= kAttentions) order.insert(order.begin(), digits % kAttentions - 1);
  at::globalContext().setSDPPriorityOrder(order);
}

constexpr size_t kOfThread = 8;  // of the settings the first ones are the calling thread's own; all have the others in common
constexpr size_t kFirstPrecision = 20, kPrecisions = std::size(kProducts);
constexpr size_t kOfHost = kFirstPrecision + 3;  // those that follow are a GPU's alone

const Setting kAll[] = {
    {"threads", [] { return int32_t{at::get_num_threads()}; }, [](int32_t to) { at::set_num_threads(to); }},  // a sum is cut into as many parts
    {"grad mode", [] { return number_of(c10::AutogradState::get_tls_state().get_grad_mode()); },
     [](int32_t to) { c10::AutogradState::get_tls_state().set_grad_mode(to != 0); }},
    {"inference mode", [] { return number_of(c10::AutogradState::get_tls_state().get_inference_mode()); },
     [](int32_t to) { c10::AutogradState::get_tls_state().set_inference_mode(to != 0); }},
    {"rounding", rounding, set_rounding},
    autocast<at::kCPU>("autocast on a CPU"),
    autocast<at::kCUDA>("autocast on a GPU"),
    autocast_dtype<at::kCPU>("type of autocast on a CPU"),
    autocast_dtype<at::kCUDA>("type of autocast on a GPU"),
    {"default dtype", [] { return number_of(c10::get_default_dtype_as_scalartype()); },
     [](int32_t to) { c10::set_default_dtype(c10::scalarTypeToTypeMeta(value_of<at::ScalarType>(to))); }},
    {"deterministicAlgorithms",
     [] { return (at::globalContext().deterministicAlgorithms() ? 1 : 0) | (at::globalContext().deterministicAlgorithmsWarnOnly() ? 2 : 0); },
     [](int32_t to) { at::globalContext().setDeterministicAlgorithms((to & 1) != 0, (to & 2) != 0); }},
    MEMFIT_SETTING(deterministicFillUninitializedMemory, setDeterministicFillUninitializedMemory),
    MEMFIT_SETTING(userEnabledMkldnn, setUserEnabledMkldnn),
    MEMFIT_SETTING(deterministicMkldnn, setDeterministicMkldnn),
    MEMFIT_SETTING(userEnabledNNPACK, setUserEnabledNNPACK),
    MEMFIT_SETTING(allowFP16ReductionCPU, setAllowFP16ReductionCPU),
    MEMFIT_SETTING(qEngine, setQEngine),
    {"sDPPriorityOrder", order_of_attention, set_order_of_attention},
    MEMFIT_SETTING(userEnabledFlashSDP, setSDPUseFlash),
    MEMFIT_SETTING(userEnabledMathSDP, setSDPUseMath),
    MEMFIT_SETTING(allowFP16BF16ReductionMathSDP, setAllowFP16BF16ReductionMathSDP),
    precision<0>("oneDNN's products"),
    precision<1>("oneDNN's convolutions"),
    precision<2>("oneDNN's recurrent layers"),
    precision<3>("CUDA's products"),
    precision<4>("CUDA's convolutions"),
    precision<5>("CUDA's recurrent layers"),
    MEMFIT_SETTING(userEnabledCuDNN, setUserEnabledCuDNN),
    MEMFIT_SETTING(deterministicCuDNN, setDeterministicCuDNN),
    MEMFIT_SETTING(benchmarkCuDNN, setBenchmarkCuDNN),
    MEMFIT_SETTING(benchmarkLimitCuDNN, setBenchmarkLimitCuDNN),
    MEMFIT_SETTING(cudnnDepthwiseKernel, setCuDNNDepthwiseKernel),
    MEMFIT_SETTING(immediateMiopen, setImmediateMiopen),
    MEMFIT_SETTING(linalgPreferredBackend, setLinalgPreferredBackend),
    MEMFIT_SETTING(blasPreferredBackend, setBlasPreferredBackend),
    MEMFIT_SETTING(getROCmFAPreferredBackend, setROCmFAPreferredBackend),
    MEMFIT_SETTING(allowFP16AccumulationCuBLAS, setAllowFP16AccumulationCuBLAS),
    MEMFIT_SETTING(_SMCarveout_EXPERIMENTAL, _setSMCarveout_EXPERIMENTAL),
    {"allowFP16ReductionCuBLAS", [] { return number_of(at::globalContext().allowFP16ReductionCuBLAS()); },
     [](int32_t to) { set_reduction(to, [](bool allowed, bool split) { at::globalContext().setAllowFP16ReductionCuBLAS(allowed, split); }); }},
    {"allowBF16ReductionCuBLAS", [] { return number_of(at::globalContext().allowBF16ReductionCuBLAS()); },
     [](int32_t to) { set_reduction(to, [](bool allowed, bool split) { at::globalContext().setAllowBF16ReductionCuBLAS(allowed, split); }); }},
    MEMFIT_SETTING(userEnabledFA3SDP, setSDPUseFA3),
    MEMFIT_SETTING(userEnabledMemEfficientSDP, setSDPUseMemEfficient),
    MEMFIT_SETTING(userEnabledCuDNNSDP, setSDPUseCuDNN),
    MEMFIT_SETTING(userEnabledOverrideableSDP, setSDPUseOverrideable),
    MEMFIT_SETTING(preferCublasltGroupedGemm, setPreferCublasltGroupedGemm),
    MEMFIT_SETTING(userEnabledFA4SDP, setSDPUseFA4),
    MEMFIT_SETTING(allowNativeAot, setAllowNativeAot),
    MEMFIT_SETTING(maskUnconditionalNativeAot, setMaskUnconditionalNativeAot),
};
#undef MEMFIT_SETTING
static_assert(std::size(kAll) == Surroundings::kSettings);

// Without a GPU its settings are not read.
std::atomic<bool>& with_gpus() {
  static std::atomic<bool> reads{at::hasCUDA()};
  return reads;
}

Surroundings::Values read_all() {
  Surroundings::Values values;
  values.fill(kUnread);
  const size_t end = with_gpus().load(std::memory_order_relaxed) ? values.size() : kOfHost;
  for (size_t i = 0; i < end; ++i) values[i] = kAll[i].read();
  return values;
}

void set(const Surroundings::Values& to, const Surroundings::Values& from) {
  for (size_t i = 0; i < to.size(); ++i)
    if (to[i] != from[i] && to[i] != kUnread) kAll[i].write(to[i]);
}

bool differ(const Surroundings::Values& one, const Surroundings::Values& other, size_t begin, size_t end) {
  return !std::equal(one.begin() + begin, one.begin() + end, other.begin() + begin);
}

}  // namespace

// While it lives, products have these precisions, and inherit none.
class Precisions {
 public:
  explicit Precisions(const Surroundings::Values& wanted) {
    take(Float32Backend::GENERIC, Float32Op::ALL);
    for (Float32Backend backend : {Float32Backend::MKLDNN, Float32Backend::CUDA}) take(backend, Float32Op::ALL);
    for (size_t i = 0; i < kPrecisions; ++i)
      if (wanted[kFirstPrecision + i] != kUnread) set(kProducts[i], value_of<Float32Precision>(wanted[kFirstPrecision + i]));
  }
  Precisions(const Precisions&) = delete;
  Precisions& operator=(const Precisions&) = delete;
  ~Precisions() {
    for (const Kept& each : kept_) at::globalContext().setFloat32Precision(each.product.first, each.product.second, each.own);
  }

 private:
  struct Kept {
    Product product;
    Float32Precision own;
  };

  // (What it inherits from inherits nothing any more.)
  void take(Float32Backend backend, Float32Op op) {
    kept_.push_back({{backend, op}, at::globalContext().float32Precision(backend, op)});
    at::globalContext().setFloat32Precision(backend, op, Float32Precision::NONE);
  }

  // One that torch gives a precision of its own until another is set above it cannot be set so again: it is set above it.
  void set(Product product, Float32Precision wanted) {
    Context& context = at::globalContext();
    const Float32Precision own = context.float32Precision(product.first, product.second);
    if (own == wanted) return;
    const bool is_set_above = own != Float32Precision::NONE && inherits(product, own);
    context.setFloat32Precision(product.first, is_set_above ? Float32Op::ALL : product.second, wanted);
    if (!is_set_above) kept_.push_back({product, own});
  }

  static bool inherits(Product product, Float32Precision own) {
    Context& context = at::globalContext();
    const Float32Precision above = context.float32Precision(product.first, Float32Op::ALL);
    bool does = false;
    for (Float32Precision other : {Float32Precision::IEEE, Float32Precision::TF32}) {
      context.setFloat32Precision(product.first, Float32Op::ALL, other);
      does = does || context.float32Precision(product.first, product.second) != own;
    }
    context.setFloat32Precision(product.first, Float32Op::ALL, above);
    return does;
  }

  std::vector<Kept> kept_;
};

Surroundings::Surroundings(const Values& values) : values_(values), hash_(kSettings) {
  for (int32_t value : values) hash_ = mix(hash_, static_cast<uint64_t>(static_cast<uint32_t>(value)));
}

// A program has few. They are looked for without a lock, also under the engine's.
const Surroundings& Surroundings::only(const Values& values) {
  static std::atomic<const Surroundings*> first{nullptr};
  std::unique_ptr<Surroundings> made;
  for (const Surroundings* newest = first.load(std::memory_order_acquire);;) {
    for (const Surroundings* each = newest; each != nullptr; each = each->next_)
      if (each->values_ == values) return *each;
    if (!made) made.reset(new Surroundings(values));
    made->next_ = newest;
    if (first.compare_exchange_weak(newest, made.get(), std::memory_order_acq_rel)) return *made.release();
  }
}

const Surroundings& Surroundings::now() {
  static thread_local const Surroundings* last = nullptr;
  const Values values = read_all();
  if (last == nullptr || last->values_ != values) last = &only(values);
  return *last;
}

void Surroundings::read_of_gpus() { with_gpus() = true; }

const Surroundings& Surroundings::of(const std::map<std::string, int32_t>& named) {
  Values values = now().values_;
  size_t known = 0;
  for (size_t i = 0; i < kSettings; ++i)
    if (const auto value = named.find(kAll[i].name); value != named.end()) values[i] = value->second, ++known;
  if (known != named.size()) throw std::invalid_argument("a setting of this name is not among the surroundings");
  return only(values);
}

std::map<std::string, int32_t> Surroundings::by_name() const {
  std::map<std::string, int32_t> named;
  for (size_t i = 0; i < kSettings; ++i) named[kAll[i].name] = values_[i];
  return named;
}

bool Surroundings::differ_for_all(const Surroundings& others) const {
  return this != &others && differ(values_, others.values_, kOfThread, kSettings);
}

Within::Within() : before_(Surroundings::now()) {}

// (If a setting is refused, those before it are put back: the other constructor has ended.)
Within::Within(const Surroundings& then) : Within() {
  differ_ = &then != &before_;
  if (!differ_) return;
  if (differ(then.values(), before_.values(), kFirstPrecision, kFirstPrecision + kPrecisions))
    precisions_ = std::make_unique<const Precisions>(then.values());
  set(then.values(), before_.values());
  if (read_all() != then.values()) throw std::runtime_error("torch's settings could not be set as they were");
}

Within::~Within() {
  if (differ_) set(before_.values(), read_all());
}

}  // namespace memfit
