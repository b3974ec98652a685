#include "observer.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>

#include "at_fork.h"
#include "common/factories.h"
#include "engine.h"
#include "hash.h"
#include "in_place_ops.h"
#include "operands.h"
#include "transparent_ops.h"
#include "verified_ops.h"
#include "witness.h"

namespace memfit {

namespace {

// Arguments that an operator writes to though its schema does not mark them, by name: all of them, and no others
// (found by comparing every operator's inputs before and after a call; tests/running/test_schema_truth.py does it again.
// cuDNN and MIOpen take what they normalise, its weight and its bias as constants).
using Names = std::vector<std::string_view>;
const Names kStatistics = {"running_mean", "running_var"};
const std::unordered_map<std::string_view, Names> kUnmarkedWrites = {
    {"aten::batch_norm", kStatistics},
    {"aten::native_batch_norm", kStatistics},
    {"aten::cudnn_batch_norm", kStatistics},
    {"aten::miopen_batch_norm", kStatistics},
    {"aten::_batch_norm_impl_index", kStatistics},
    {"aten::instance_norm", kStatistics},
    {"aten::batch_norm_gather_stats", kStatistics},
    {"aten::batch_norm_gather_stats_with_counts", kStatistics},
    {"aten::batch_norm_update_stats", kStatistics},
    {"aten::rrelu_with_noise", {"noise"}},
    {"aten::mkldnn_rnn_layer_backward", {"workspace"}},
};

bool writes_unmarked(const std::string& name, const std::string& argument) {
  const auto row = kUnmarkedWrites.find(name);
  return row != kUnmarkedWrites.end() && std::find(row->second.begin(), row->second.end(), argument) != row->second.end();
}

// Operators that look at the shape of their tensor arguments only.
const std::unordered_set<std::string_view> kMetadataReaders = {
    "aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::rand_like",
    "aten::randn_like", "aten::randint_like", "aten::new_empty", "aten::new_zeros", "aten::new_ones",
    "aten::new_full", "aten::new_empty_strided", "aten::is_same_size", "aten::_reshape_alias",
};

// Operators that only call others, for each layer and time step in turn: looked through, so that their working set
// is one call's and not the whole network's. What one reads through raw pointers all along (the `data` overloads:
// their batch sizes) stays where it is until it ends.
const std::unordered_set<std::string_view> kLookedThrough = {
    "aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu",
};

// Operators with effects beside their outputs, or with results that are not theirs alone.
const std::unordered_set<std::string_view> kNotRepeatable = {
    "aten::set_", "aten::resize_", "aten::resize_as_", "aten::_local_scalar_dense", "aten::item", "aten::record_stream",
    "aten::_pin_memory", "aten::mkldnn_rnn_layer", "aten::_efficientzerotensor",
    "aten::_ctc_loss",  // it leaves a part of what it returns uninitialised
};

bool begins_with(const std::string& name, std::string_view prefix) { return name.compare(0, prefix.size(), prefix) == 0; }

const std::unordered_set<std::string_view> kOverwriters = {"aten::copy_", "aten::fill_", "aten::zero_"};

// Numbers, names and the like, one or many, or none.
bool is_plain(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType) return is_plain(type->containedType(0));
  static const std::unordered_set<c10::TypeKind> kPlain = {
      c10::TypeKind::IntType, c10::TypeKind::FloatType, c10::TypeKind::BoolType, c10::TypeKind::StringType,
      c10::TypeKind::NumberType, c10::TypeKind::ComplexType, c10::TypeKind::SymIntType, c10::TypeKind::SymFloatType,
      c10::TypeKind::SymBoolType, c10::TypeKind::DeviceObjType, c10::TypeKind::LayoutType, c10::TypeKind::ScalarTypeType,
      c10::TypeKind::MemoryFormatType, c10::TypeKind::GeneratorType,
  };
  return kPlain.count(type->kind()) != 0;
}

bool holds_tensors(const c10::Argument& argument) { return argument.type()->repr_str().find("Tensor") != std::string::npos; }

// Only of torch's own; and not of lists of parameters, whose chains of versions have no end. (`_fused_rms_norm` is of none.)
bool may_repeat(const OpInfo& info, const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  const bool takes_list = !schema.arguments().empty() && schema.arguments()[0].type()->kind() == c10::TypeKind::ListType;
  const bool of_lists = begins_with(name, "aten::_foreach_") || (begins_with(name, "aten::_fused_") && takes_list) || begins_with(name, "aten::_amp_");
  return begins_with(name, "aten::") && !info.writes_any && !of_lists && !info.is_composite && !info.is_view && !info.only_describes && kNotRepeatable.count(name) == 0;
}

void read_repeatability(OpInfo& info, const c10::FunctionSchema& schema) {
  info.handle = c10::Dispatcher::singleton().findSchema(schema.operator_name());
  if (!info.handle) return;
  info.writes_any |= begins_with(schema.name(), "aten::") && is_overridden(*info.handle);
  const bool has_kernel = info.handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                          info.handle->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  info.is_composite = info.handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) && !has_kernel;
  for (c10::DispatchKey key : {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA})
    if (info.handle->hasKernelForDispatchKey(key)) info.autocasts = info.autocasts.add(key);
  info.is_seeded = info.handle->hasTag(at::Tag::nondeterministic_seeded);
  info.only_describes = info.handle->hasTag(at::Tag::inplace_view);
  info.overwrites = info.is_seeded || kOverwriters.count(schema.name()) != 0;
  const bool has_statistics = writes_unmarked(schema.name(), "running_mean");
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    info.overwrites |= schema.arguments()[i].is_out();
    if (schema.arguments()[i].name() == "generator") info.generator_argument = static_cast<int>(i);
    if (has_statistics && schema.arguments()[i].name() == "training") info.training_argument = static_cast<int>(i);
  }
  // What it calls takes the generator (`randn`).
  const bool is_explicit = info.handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  info.is_composite |= is_explicit && info.is_seeded && info.generator_argument < 0;
  info.is_transparent = info.is_composite && !info.writes_any && std::binary_search(std::begin(kTransparentOps), std::end(kTransparentOps), info.name);
  info.is_repeatable = may_repeat(info, schema);
  const bool writes = std::find(info.writes.begin(), info.writes.end(), true) != info.writes.end();
  info.may_be_in_place = info.is_repeatable && info.returns == 1 && !writes && may_be_in_place(schema.name());
}

void read_schema(OpInfo& info, const c10::FunctionSchema& schema) {
  bool writes = false, aliases = false;
  for (const c10::Argument& argument : schema.arguments()) {
    const c10::AliasInfo* alias = argument.alias_info();
    bool write = alias != nullptr && alias->isWrite();
    info.arguments.push_back(argument.name());
    info.writes.push_back(write || writes_unmarked(schema.name(), argument.name()));
    info.aliased.push_back(alias != nullptr);
    if (!is_plain(argument.type())) info.operands.push_back(info.writes.size() - 1);
    if (argument.name() == "size") info.size_argument = static_cast<int>(info.writes.size()) - 1;
    if (argument.name() == "device") info.device_argument = static_cast<int>(info.writes.size()) - 1;
    writes |= write;
    aliases |= alias != nullptr && !write;
  }
  const std::string& name = schema.name();
  // A view does not read. (`reshape`, `to`, `contiguous` may copy: the nested copy is seen as an op of its own.)
  info.is_view = aliases && !writes;
  info.returns = schema.returns().size();
  for (const c10::Argument& result : schema.returns()) info.makes_tensors |= result.alias_info() == nullptr && holds_tensors(result);
  info.reads_data = !info.is_view && kMetadataReaders.count(name) == 0;
  if (kLookedThrough.count(name) != 0 && schema.overload_name() == "data") info.raw_arguments = {1};
  // (torch's own `prims` are what its rules for device meta call.)
  bool own = name.rfind("aten::", 0) == 0 || name.rfind("prims::", 0) == 0;
  info.writes_any = !own;
  read_repeatability(info, schema);
  info.adapts = name.rfind("aten::cudnn_convolution", 0) == 0;
  // Collectives go on after they have returned. (What `_c10d_functional` has calls these.)
  info.keeps_pointers = name.rfind("c10d::", 0) == 0;
  const auto* last = std::end(kUninitialisedFactories);
  info.uninitialised = std::find(std::begin(kUninitialisedFactories), last, name) != last;
}

// One of torch's own to which no bytes come but those that it says it writes to.
bool writes_all_it_reads(const OpInfo& info, const c10::FunctionSchema& schema) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (holds_tensors(schema.arguments()[i]) && info.reads(i) && !info.writes[i]) return false;
  }
  return !info.writes_any && !info.is_view;
}

// RecordFunction copies the schema for whoever asks. Naming a private member in an explicit instantiation is allowed,
// and gives a way to the original ([temp.spec]/6).
using Described = std::variant<std::string, at::RecordFunction::schema_ref_t>;
template <Described at::RecordFunction::*Member>
struct SchemaAccess {
  friend const Described& described(const at::RecordFunction& fn) { return fn.*Member; }
};
const Described& described(const at::RecordFunction& fn);
template struct SchemaAccess<&at::RecordFunction::fn_>;

// Null for what is no operator: autograd's nodes, and what a profiler's user has named.
const c10::FunctionSchema* schema_of(const at::RecordFunction& fn) {
  const auto* schema = std::get_if<at::RecordFunction::schema_ref_t>(&described(fn));
  return schema == nullptr ? nullptr : &schema->get();
}

// Operators by the address of their schema, for as long as they are registered. What is no operator has no row: its
// name is made anew at each call.
class OpTable final : public c10::OpRegistrationListener {
 public:
  // Each thread remembers those that it has had last, and asks no lock for them.
  const OpInfo& get(const c10::FunctionSchema& schema) {
    static thread_local std::array<Remembered, 256> remembered;
    Remembered& last = remembered[mix(0, reinterpret_cast<uintptr_t>(&schema)) % remembered.size()];
    const uint64_t edition = edition_.load(std::memory_order_acquire);
    if (last.schema != &schema || last.edition != edition) last = {&schema, &look_up(schema), edition};
    return *last.info;
  }

  const OpInfo& extension(const std::string& name) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    const OpInfo*& known = extensions_[name];
    if (known == nullptr) {
      auto info = std::make_unique<OpInfo>();
      info->name = name;
      info->writes_any = info->makes_tensors = true;
      known = add(std::move(info));
    }
    return *known;
  }

  // (Graphs number their kernels: two of one name may read and write differently.)
  const OpInfo& kernel(const std::string& name, const std::vector<bool>& tensors, std::vector<bool> writes) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    const OpInfo*& known = kernels_[{name, tensors, writes}];
    if (known == nullptr) {
      auto info = std::make_unique<OpInfo>();
      info->name = name;
      for (size_t i = 0; i < tensors.size(); ++i)
        if (tensors[i]) info->operands.push_back(i);
      info->writes = std::move(writes);
      info->verified = info->is_generated = true;
      known = add(std::move(info));
    }
    return *known;
  }

  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  // Another operator's schema may come to lie at the same address.
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    if (!op.hasSchema()) return;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    by_schema_.erase(&op.schema());
    ++edition_;
  }

  // Somebody's kernel has come, or gone.
  void forget() {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    by_schema_.clear();
    ++edition_;
  }

  std::vector<std::string> names() {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    std::vector<std::string> names;
    for (const auto& info : infos_) names.push_back(info->name);
    return names;
  }

 private:
  struct Remembered {
    const c10::FunctionSchema* schema = nullptr;
    const OpInfo* info = nullptr;
    uint64_t edition = 0;
  };

  const OpInfo& look_up(const c10::FunctionSchema& schema) {
    {
      std::shared_lock<std::shared_mutex> lock(mutex_);
      auto it = by_schema_.find(&schema);
      if (it != by_schema_.end()) return *it->second;
    }
    return add(schema);
  }

  const OpInfo& add(const c10::FunctionSchema& schema) {
    auto info = std::make_unique<OpInfo>();
    info->name = schema.name();
    info->is_operator = kLookedThrough.count(schema.name()) == 0;
    if (!schema.overload_name().empty()) info->name += "." + schema.overload_name();
    read_schema(*info, schema);
    const bool is_known = std::binary_search(std::begin(kVerifiedOps), std::end(kVerifiedOps), info->name);
    info->verified = !info->writes_any && (is_known || writes_all_it_reads(*info, schema));
    info->split_rule = info->writes_any ? nullptr : split_rule(info->name);
    info->passes_on = passes_on(info->name);
    std::unique_lock<std::shared_mutex> lock(mutex_);
    auto [it, is_new] = by_schema_.emplace(&schema, info.get());
    if (!is_new) return *it->second;
    add(std::move(info));
    return *it->second;
  }

  // For good: an op that runs may be the last of its operator.
  const OpInfo* add(std::unique_ptr<OpInfo> info) {
    info->id = static_cast<int64_t>(infos_.size());
    info->name_hash = fnv1a(info->name);
    info->access = access_of(info->name);
    infos_.push_back(std::move(info));
    return infos_.back().get();
  }

  FreeAtFork<std::shared_mutex> mutex_;
  std::atomic<uint64_t> edition_{0};  // grows when an operator is gone
  std::unordered_map<const c10::FunctionSchema*, const OpInfo*> by_schema_;
  std::unordered_map<std::string, const OpInfo*> extensions_;
  std::map<std::tuple<std::string, std::vector<bool>, std::vector<bool>>, const OpInfo*> kernels_;
  std::vector<std::unique_ptr<const OpInfo>> infos_;
};

OpTable& table() {
  static OpTable* instance = [] {  // the dispatcher owns it, and goes with the process
    auto made = std::make_unique<OpTable>();
    OpTable* table = made.get();
    static auto* registration =
        new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(std::move(made)));
    (void)registration;
    return table;
  }();
  return *instance;
}

// A boxed call shows the whole stack of its interpreter: what is the call's own lies on top.
template <typename Values>
Values top(const Values& stack, size_t count) {
  if (stack.size() <= count) return stack;
  return Values(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
}

// The storages that somebody reads through raw pointers all along, held until it ends.
struct Reading final : at::ObserverContext {
  ~Reading() override {
    for (Block* block : held) Engine::get().unhold(block);
  }
  std::vector<Block*> held;
};

void hold(Reading& reading, const c10::IValue& input) {
  each_storage(input, [&](const c10::Storage& storage, Part) {
    try {
      if (Block* block = Engine::get().hold(storage)) reading.held.push_back(block);
    } catch (const std::exception&) {
      // It stays away, and whoever reads it is told.
    }
  });
}

std::unique_ptr<at::ObserverContext> look_through(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs) {
  if (info.raw_arguments.empty() || !Engine::get().active()) return nullptr;
  auto reading = std::make_unique<Reading>();
  for (size_t argument : info.raw_arguments) hold(*reading, inputs[argument]);
  return reading;
}

std::unique_ptr<at::ObserverContext> on_node(const at::RecordFunction& fn) {
  if (!Engine::get().active() || !at::hasThreadLocalCallbacks()) return nullptr;
  auto reading = std::make_unique<Reading>();
  for (const c10::IValue& input : fn.inputs()) hold(*reading, input);
  return reading;
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  const c10::FunctionSchema* schema = schema_of(fn);
  if (schema == nullptr) return nullptr;
  Engine& engine = Engine::get();
  ThreadState& thread = this_thread();
  const OpInfo& info = table().get(*schema);
  c10::ArrayRef<const c10::IValue> inputs = top(fn.inputs(), info.writes.size());
  if (!info.is_operator) return look_through(info, inputs);
  bool record = thread.depth == 0 && engine.recording() && !thread.is_apart();
  // A refusal names storages that are made and not filled yet, if they are in the way.
  bool asks = thread.depth == 0 && info.uninitialised && engine.active();
  engine.op_begins(thread, info, inputs, record || asks ? current_source() : -1, record ? fn.seqNr() : -1);
  engine.say();
  return witness(info, inputs);
}

void on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  const c10::FunctionSchema* schema = schema_of(fn);
  if (schema == nullptr) return;
  const OpInfo& info = table().get(*schema);
  if (context != nullptr) testify(context, top(c10::ArrayRef<c10::IValue>(fn.outputs()), info.returns));
  if (info.is_operator) Engine::get().op_ends(this_thread(), info, top(c10::ArrayRef<c10::IValue>(fn.outputs()), info.returns));
}

// Told of each op's beginning and end, with its arguments and results.
at::RecordFunctionCallback of_ops(at::RecordFunctionCallback::StartCallback begins, at::RecordFunctionCallback::EndCallback ends) {
  return at::RecordFunctionCallback(begins, ends).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION});
}

}  // namespace

uint64_t add_observer() {
  table();  // made here, where no op runs
  return at::addGlobalCallback(of_ops(&on_start, &on_end));
}

void remove_observer(uint64_t handle) { at::removeCallback(handle); }

// A callback of torch's that comes and goes.
class Switch {
 public:
  void turn(bool on, const at::RecordFunctionCallback& callback) {
    if (handle_.has_value() == on) return;
    if (on)
      handle_ = at::addGlobalCallback(callback);
    else
      at::removeCallback(*std::exchange(handle_, std::nullopt));
  }

 private:
  std::optional<at::CallbackHandle> handle_;
};

void watch_nodes(bool on) {
  static Switch nodes;
  nodes.turn(on, at::RecordFunctionCallback(&on_node).needsInputs(true).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

namespace {

std::atomic<bool> registered_are_trusted{false};

// Where torch's own files in Python lie.
const std::string& torch_folder() {
  static const std::string* folder = [] {  // never destroyed: kernels may run at the very end
    Dl_info library {};
    const bool is_known = dladdr(reinterpret_cast<void*>(&c10::Dispatcher::realSingleton), &library) != 0;
    const std::string path = is_known ? library.dli_fname : "";
    const size_t end = path.rfind("/lib/");
    return new std::string(end == std::string::npos ? "?" : path.substr(0, end + 1));
  }();
  return *folder;
}

// Of a line of the dispatcher's dump: by whom, and how, that kernel was registered.
enum class Registered { kInCpp, kByTorch, kByPython };

Registered how_registered(std::string_view line) {
  constexpr std::string_view kAt = ": registered at ";
  const size_t at = line.find(kAt);
  if (at == std::string_view::npos) return Registered::kInCpp;
  const std::string_view place = line.substr(at + kAt.size(), line.find(" :: ", at) - at - kAt.size());
  const std::string_view file = place.substr(0, place.rfind(':'));
  const std::string_view ending = file.substr(std::min(file.rfind('.'), file.size()));
  for (std::string_view each : {".cpp", ".h", ".cc", ".cu", ".cuh", ".hpp"})
    if (ending == each) return Registered::kInCpp;
  return file.substr(0, torch_folder().size()) == torch_folder() ? Registered::kByTorch : Registered::kByPython;
}

}  // namespace

// Kernels for device meta compute no bytes, and the engine's own call what was there before. Some of torch's own are in
// Python (functorch's).
bool is_overridden(const c10::OperatorHandle& op) {
  if (registered_are_trusted.load(std::memory_order_relaxed)) return false;
  const std::string state = op.dumpState();  // a line for each kernel, those that are inactive after the one in their place
  std::string_view rest = state, own;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::string_view key = line.substr(0, line.find_first_of(": "));
    if (key == "Meta") continue;
    const Registered how = how_registered(line);
    if (how == Registered::kByPython) return true;
    if (line.find(kSliced) != std::string_view::npos || how == Registered::kByTorch)
      own = key;
    else if (line.find(" (inactive): ") != std::string_view::npos && key != std::exchange(own, {}))
      return true;
  }
  return false;
}

void forget_operators() { table().forget(); }

void trust_registered_kernels(bool on) {
  registered_are_trusted = on;
  table().forget();
}

void observe_idly(bool on) {
  static Switch idle;
  idle.turn(on, of_ops([](const at::RecordFunction&) { return std::unique_ptr<at::ObserverContext>(); },
                       [](const at::RecordFunction&, at::ObserverContext*) {}));
}

const OpInfo& extension_op(const std::string& name) { return table().extension(name); }

const OpInfo& kernel_op(const std::string& name, const std::vector<bool>& tensors, std::vector<bool> writes) {
  return table().kernel(name, tensors, std::move(writes));
}

std::vector<std::string> op_names() { return table().names(); }

}  // namespace memfit
