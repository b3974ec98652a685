// The engine as a Python module.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/utils/pybind.h>

#include "engine.h"
#include "hash.h"
#include "measure.h"
#include "observer.h"
#include "plan_columns.h"
#include "pointers.h"
#include "redirect.h"
#include "undisturbed.h"
#include "witness.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>

namespace py = pybind11;

namespace memfit {

namespace {

PyObject* budget_error_type = nullptr;
PyObject* tier_error_type = nullptr;

struct PythonError final : torch::PyTorchError {
  PythonError(std::string message, PyObject* type) : torch::PyTorchError(std::move(message)), type(type) {}
  PyObject* python_type() override { return type; }
  PyObject* type;
};

c10::Storage storage_of(py::handle object) {
  if (THPVariable_Check(object.ptr())) {
    const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
    return tensor.has_storage() ? tensor.storage() : c10::Storage();
  }
  if (THPStorage_Check(object.ptr())) return THPStorage_Unpack(object.ptr());
  throw py::type_error("a tensor or a storage is needed");
}

// Runs `action` with the storage and without the interpreter lock.
template <typename Action>
auto without_gil(py::handle object, Action&& action) {
  c10::Storage storage = storage_of(object);
  py::gil_scoped_release no_gil;
  if (!storage.unsafeGetStorageImpl()) throw std::invalid_argument("a tensor without a storage cannot be held");
  return action(storage);
}

// Runs `action`; a TierFailure becomes Python's TierError.
template <typename Action>
auto telling_of_tiers(Action&& action) {
  try {
    return action();
  } catch (const TierFailure& error) {
    throw PythonError(std::string("memfit: ") + error.what(), tier_error_type);
  }
}

// The storages of a tensor, a storage, or a tuple or list of such and of other things, which are passed over.
void gather_storages(py::handle target, std::vector<c10::Storage>& storages) {
  if (py::isinstance<py::tuple>(target) || py::isinstance<py::list>(target)) {
    for (py::handle item : target) gather_storages(item, storages);
  } else if (THPVariable_Check(target.ptr()) || THPStorage_Check(target.ptr())) {
    c10::Storage storage = storage_of(target);
    if (storage && (storage.device().is_cpu() || storage.device().is_cuda())) storages.push_back(std::move(storage));
  }
}

// The bytes of storages kept in memory until this goes, or the `with` block ends: however an exception comes in
// between, it does go, at once. Nothing of it is Python's own, so that no signal's handler runs inside it.
class Hold {
 public:
  // `pin`: their memory is about to escape; when the block has ended well, they stay where they are.
  Hold(py::handle target, bool pin) : pins_(pin) {
    std::vector<c10::Storage> storages;
    gather_storages(target, storages);
    py::gil_scoped_release no_gil;
    try {
      // What is ordinary memory becomes the engine's before its address escapes: it would be moved later otherwise.
      for (const c10::Storage& storage : storages)
        if (pin) telling_of_tiers([&] { Engine::get().adopt(storage); });
      for (const c10::Storage& storage : storages)
        if (Block* block = Engine::get().hold(storage, pin)) blocks_.push_back(block);
    } catch (...) {
      let_go();
      throw;
    }
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { release(); }
  void exit(const py::object& error) {
    if (pins_ && error.is_none()) pin();  // not when the call failed: then nothing escaped
    release();
  }
  void release() {
    py::gil_scoped_release no_gil;
    let_go();
  }
  void pin() {
    const int64_t source = current_source();
    py::gil_scoped_release no_gil;
    for (Block* block : blocks_) Engine::get().pin(block, source);
  }

 private:
  void let_go() {
    for (Block* block : std::exchange(blocks_, {})) Engine::get().unhold(block);
  }

  std::vector<Block*> blocks_;
  bool pins_;
};

TierRecipe tier_recipe(const py::dict& tier) {
  TierRecipe recipe;
  recipe.kind = tier["kind"].cast<std::string>();
  recipe.folder = tier["folder"].cast<std::string>();
  recipe.capacity = tier["capacity"].cast<size_t>();
  recipe.checked = tier["checked"].cast<bool>();
  recipe.faults = {tier["fail_write"].cast<int64_t>(), tier["fail_read"].cast<int64_t>(), tier["corrupt_read"].cast<int64_t>(),
                   tier["repeat"].cast<bool>()};
  recipe.link = {tier["link_bytes_per_second"].cast<double>(), tier["link_latency_seconds"].cast<double>(),
                 tier["link_changes_at"].cast<int64_t>(), tier["link_change"].cast<double>()};
  recipe.longest_delay_us = tier["longest_delay_us"].cast<int64_t>();
  recipe.no_threads = tier["no_threads"].cast<bool>();
  return recipe;
}

void start(const std::string& device, size_t budget, size_t most, bool grows, const py::dict& tier, bool others) {
  TierRecipe recipe = tier_recipe(tier);
  py::gil_scoped_release no_gil;
  telling_of_tiers([&] {
    Device& where = find_device(c10::Device(device));
    Engine::get().start(where, budget, most, grows, make_tier(where, recipe), others);
  });
}

py::bytes as_bytes(const std::vector<int64_t>& values) {
  return py::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
}

bool use_plan(const Columns& takes, size_t zone_bytes, size_t iterations, const Columns& swaps,
              const std::vector<uint64_t>& resident, bool at_boundary) {
  py::gil_scoped_release no_gil;
  PlanTable table = plan_table(takes, zone_bytes, iterations, column(swaps, "storage").size(), Engine::get().alignment());
  SwapTable swap = swap_table(swaps, table.takes.size() / iterations);
  return Engine::get().use_plan(std::move(table), std::move(swap), resident, at_boundary);
}

// (out, in, out while the other way is busy, in likewise), in seconds.
std::tuple<double, double, double, double> measure_tier(const std::string& kind, const std::string& folder, size_t size,
                                                        size_t repeats) {
  py::gil_scoped_release no_gil;
  return telling_of_tiers([&]() -> std::tuple<double, double, double, double> {
    std::shared_ptr<Tier> tier = make_tier(host(), {kind, folder, 4 * size});
    LinkTimes times = measure_link(*tier, size, repeats);
    return {times.out, times.in, times.out_beside, times.in_beside};
  });
}

py::dict stop_timeline() {
  Timeline timeline;
  {
    py::gil_scoped_release no_gil;
    timeline = Engine::get().stop_timeline();
  }
  py::dict d;
  d["copies"] = as_bytes(timeline.copies());
  d["op_begins"] = as_bytes(timeline.op_begins());
  d["iteration_ends"] = as_bytes(timeline.iteration_ends_rows());
  return d;
}

py::dict stop() {
  StopReport report;
  {
    py::gil_scoped_release no_gil;
    report = Engine::get().stop();
  }
  py::dict result;
  result["restored"] = report.restored;
  result["left_in_arena"] = report.left_in_arena;
  result["lost"] = report.lost;
  return result;
}

py::dict stats() {
  Stats s;
  {
    py::gil_scoped_release no_gil;
    s = Engine::get().stats();
  }
  py::dict d;
  d["budget_bytes"] = s.budget;
  d["live_bytes"] = s.live;
  d["resident_bytes"] = s.resident;
  d["footprint_bytes"] = s.footprint;
  d["free_bytes"] = s.free_bytes;
  d["largest_free_bytes"] = s.largest_free;
  d["peak_live_bytes"] = s.peak_live;
  d["peak_resident_bytes"] = s.peak_resident;
  d["peak_footprint_bytes"] = s.peak_footprint;
  d["tier_used_bytes"] = s.tier_used;
  d["tier_footprint_bytes"] = s.tier_footprint;
  d["adopted_bytes"] = s.adopted;
  d["stray_bytes"] = s.strays;
  d["ops"] = s.ops;
  d["allocations"] = s.allocations;
  d["evictions"] = s.evictions;
  d["drops"] = s.drops;
  d["bytes_out"] = s.bytes_out;
  d["bytes_in"] = s.bytes_in;
  d["relocations"] = s.relocations;
  d["bytes_relocated"] = s.bytes_relocated;
  d["consolidations"] = s.consolidations;
  d["iterations"] = s.iterations;
  d["planned_footprint_bytes"] = s.planned_footprint;
  d["plans"] = s.plans;
  d["planned_allocations"] = s.planned;
  d["plan_mismatches"] = s.mismatches;
  d["unseen_writes"] = s.unseen_writes;
  d["bytes_checked"] = s.bytes_checked;
  d["check_ns"] = s.check_ns;
  d["growths"] = s.growths;
  d["peak_growth_bytes"] = s.peak_growth;
  d["swaps"] = s.swaps;
  d["prefetches"] = s.prefetches;
  d["failed_copies"] = s.failed_copies;
  d["derailments"] = s.derailments;
  d["lane_failures"] = s.lane_failures;
  d["record_bytes"] = s.records;
  d["recording_given_up_ops"] = s.recording_given_up;
  d["stall_ns"] = s.stall_ns;
  d["copy_ns"] = s.copy_ns;
  d["out_ns"] = s.out_ns;
  d["in_ns"] = s.in_ns;
  d["untimed_out_bytes"] = s.untimed_out;
  d["untimed_in_bytes"] = s.untimed_in;
  return d;
}

// Calls `use` with everything that the garbage collector knows of. Some of it may be in the making by other threads,
// which rely on nobody else's having a reference to it: none is left by the time that they go on, since neither this
// nor `use` lets go of the interpreter.
template <typename Use>
void each_visible(const Use& use) {
  py::object get_objects = py::module_::import("gc").attr("get_objects");
  py::list objects = get_objects();
  for (py::handle object : objects) use(object);
}

// A tensor in the making may have nothing in it yet.
c10::Storage storage_if_any(py::handle tensor) {
  const c10::TensorImpl* impl = THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl();
  return impl != nullptr && impl->has_storage() ? impl->storage() : c10::Storage();
}

// Show the engine some tensors.
void adopt(const py::list& tensors) {
  std::vector<c10::Storage> storages;
  for (py::handle tensor : tensors)
    if (c10::Storage storage = storage_of(tensor)) storages.push_back(std::move(storage));
  py::gil_scoped_release no_gil;
  telling_of_tiers([&] {
    for (const c10::Storage& storage : storages) Engine::get().adopt(storage);
  });
}

// Show the engine every tensor that Python can see.
void adopt_visible() {
  {
    py::gil_scoped_release no_gil;
    telling_of_tiers([] { Engine::get().finish(); });
  }
  std::vector<c10::Storage> storages;
  auto* tensor_type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  each_visible([&](py::handle object) {
    if (!PyObject_TypeCheck(object.ptr(), tensor_type)) return;
    if (c10::Storage storage = storage_if_any(object)) storages.push_back(std::move(storage));
  });
  py::gil_scoped_release no_gil;
  telling_of_tiers([&] {
    for (const c10::Storage& storage : storages) Engine::get().adopt(storage);
  });
}

bool has_instance(const py::type& type) {
  bool found = false;
  auto* wanted = reinterpret_cast<PyTypeObject*>(type.ptr());
  each_visible([&](py::handle object) { found = found || PyObject_TypeCheck(object.ptr(), wanted); });
  return found;
}

// Every tensor among the attributes of a TorchScript module and of those in it.
std::vector<at::Tensor> script_tensors(const torch::jit::Module& module) {
  std::vector<at::Tensor> tensors;
  auto keep = [&](const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined()) tensors.push_back(value.toTensor());
    return value.isObject();  // an attribute of its own
  };
  for (const c10::IValue& attribute : module.attributes()) attribute.visit(keep);
  return tensors;
}

py::object original(py::object function) {
  PyObject* result = original_of(function.ptr());
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

// As bytes, one copy at a time: a recording is large.
py::bytes moved_out(std::vector<int64_t>& values) {
  py::bytes bytes = as_bytes(values);
  give_back(values);
  return bytes;
}

py::dict stop_recording() {
  Recording recording = Engine::get().stop_recording();
  give_back(recording.tokens);
  py::dict d;
  d["ops"] = moved_out(recording.ops);
  d["accesses"] = moved_out(recording.accesses);
  d["ticks"] = moved_out(recording.ticks);
  d["before"] = moved_out(recording.before);
  d["ghosts"] = moved_out(recording.ghosts);
  d["shapes"] = recording.shapes;
  d["op_names"] = op_names();
  d["sources"] = sources();
  return d;
}

py::dict last_failure() {
  Failure failure = Engine::get().last_failure();
  const char* kinds[] = {"", "budget", "tier"};
  py::dict d;
  d["kind"] = kinds[static_cast<int>(failure.kind)];
  d["message"] = in_words(failure);
  d["op"] = failure.op;
  d["tensors"] = failure.tensors;
  d["source"] = failure.source;
  d["required_bytes"] = failure.required_bytes;
  return d;
}

// What torch's own error with this message met: torch hands on no more than the text behind the storage.
const char* met_in(const std::string& message) {
  auto has = [&](const char* text) { return message.find(text) != std::string::npos; };
  return has(kAbsent) ? "absent" : has(kLost) ? "lost" : has(kMark) ? "refused" : "";
}

void set_phase(const std::string& name) {
  auto known = std::find(std::begin(kPhases), std::end(kPhases), name);
  if (known == std::end(kPhases)) throw py::value_error("there is no phase '" + name + "'");
  Engine::get().set_phase(static_cast<Phase>(known - std::begin(kPhases)));
}

// A reference that may go where the interpreter is not held, or no more.
using SharedObject = std::shared_ptr<PyObject>;
SharedObject shared(py::object object) {
  return SharedObject(object.release().ptr(), [](PyObject* owned) {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    Py_DECREF(owned);
  });
}

// Raises what Py_AddPendingCall was given, in the main thread.
int raise_pending(void* error) {
  auto* value = static_cast<PyObject*>(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value)), value);
  Py_DECREF(value);
  return -1;
}

// What the callback raised may be an interrupt, or come from a signal's handler. It cannot be raised into the op that
// happens to run: the main thread raises it as soon as it is back in Python. Another thread's is printed.
void raise_later(py::error_already_set& error) {
  bool main = PyThread_get_thread_ident() == py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  py::object value = error.value();
  if (main && Py_AddPendingCall(&raise_pending, value.ptr()) == 0)
    value.release();  // the pending call's
  else
    error.discard_as_unraisable("memfit");
}

// Python's answer to a repeating op stream, until the session ends.
void set_on_period(py::object action) {
  Engine::get().on_period([callable = shared(std::move(action))] {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    try {
      py::reinterpret_borrow<py::object>(callable.get())();
    } catch (py::error_already_set& error) {
      raise_later(error);
    }
  });
}

// Python's way to tell the user a line, said once for the process. It must not raise into the op that happens to run.
void set_on_notice(py::object action) {
  Engine::get().on_notice([callable = shared(std::move(action))](const std::string& line) {
    py::gil_scoped_acquire gil;
    try {
      py::reinterpret_borrow<py::object>(callable.get())(line);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("memfit");
    }
  });
}

}  // namespace

void raise(const Failure& failure) {
  Failure told = failure;
  told.source = source_text(current_source());
  Engine::get().note_failure_source(told.source);
  throw PythonError(in_words(told), failure.kind == Failure::Kind::kTier ? tier_error_type : budget_error_type);
}

std::string format_bytes(size_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  char text[64];
  if (unit == 0)
    std::snprintf(text, sizeof text, "%zu B", bytes);
  else
    std::snprintf(text, sizeof text, "%.2f %s (%zu bytes)", value, units[unit], bytes);
  return text;
}

}  // namespace memfit

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using memfit::Engine;
  using namespace memfit;
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (PythonError& e) {
      PyErr_SetString(e.python_type(), e.what());
    }
  });
  m.def("set_error_types", [](py::object budget, py::object tier) {
    budget_error_type = budget.release().ptr();
    tier_error_type = tier.release().ptr();
  });
  m.def("set_library_folders", &set_library_folders);
  m.def("start", &start);
  m.def("stop", &stop);
  m.def("active", [] { return Engine::get().active(); });
  m.def("is_inert", [] { return Engine::get().is_inert(); });
  m.def("stats", &stats);
  m.def("reset_peaks", [] { Engine::get().reset_peaks(); }, py::call_guard<py::gil_scoped_release>());
  m.def("boundary", [] { Engine::get().boundary(); }, py::call_guard<py::gil_scoped_release>());
  m.def("set_budget", [](size_t budget) {
    py::gil_scoped_release no_gil;
    telling_of_tiers([&] { Engine::get().set_budget(budget); });
  });
  m.def("set_peak", [](size_t bytes) { Engine::get().set_peak(bytes); }, py::call_guard<py::gil_scoped_release>());
  m.def("allow_growth", [](bool allowed) { Engine::get().allow_growth(allowed); }, py::call_guard<py::gil_scoped_release>());
  m.def("on_notice", &set_on_notice);
  m.def("set_phase", &set_phase);
  m.def("adopt", &adopt);
  m.def("adopt_visible", &adopt_visible);
  m.def("has_instance", &has_instance);
  m.def("release_cached", [] { Engine::get().release_cached(); }, py::call_guard<py::gil_scoped_release>());
  m.def("alignment", [] { return Engine::get().alignment(); });
  m.def("page_bytes", [] { return Engine::get().page(); });
  m.def("reject_period", [] { Engine::get().reject_period(); });
  py::class_<Hold>(m, "Hold")
      .def(py::init<py::handle, bool>(), py::arg("target"), py::arg("pin") = false)
      .def("release", &Hold::release)
      .def("pin", &Hold::pin)
      .def("__enter__", [](Hold&) {})
      .def("__exit__", [](Hold& hold, const py::object& error, const py::object&, const py::object&) { hold.exit(error); });
  m.def("undisturbed", &undisturbed);
  m.def("read_bytes", [](py::object object, size_t offset, size_t size) {
    return py::bytes(
        without_gil(object, [&](const c10::Storage& s) { return Engine::get().read_bytes(s, offset, size); }));
  });
  m.def("block_id", [](py::object object) {
    c10::Storage storage = storage_of(object);  // a sparse tensor has none
    py::gil_scoped_release no_gil;
    return storage.unsafeGetStorageImpl() ? Engine::get().block_id(storage) : int64_t{-1};
  });
  m.def("use_plan", &use_plan);
  m.def("has_plan", [] { return Engine::get().has_plan(); }, py::call_guard<py::gil_scoped_release>());
  m.def("op_hash", [](const std::string& name) { return fnv1a(name); });
  m.def("start_timeline", [] { Engine::get().start_timeline(); }, py::call_guard<py::gil_scoped_release>());
  m.def("stop_timeline", &stop_timeline);
  m.def("measure_tier", &measure_tier);
  m.def("tick_marks", [] { return Engine::get().tick_marks(); });
  m.def("iteration_marks", [] { return Engine::get().iteration_marks(); });
  m.def("is_resident", [](py::object object) {
    return without_gil(object, [](const c10::Storage& s) { return Engine::get().is_resident(s); });
  });
  m.def("may_leave", [](py::object object) {
    return without_gil(object, [](const c10::Storage& s) { return Engine::get().may_leave(s); });
  });
  m.def("original_of", &original);
  m.def("redirect", [](py::object function, py::object to) {
    if (!redirect(function.ptr(), to.is_none() ? nullptr : to.ptr())) throw py::error_already_set();
  });
  m.def("watch_exchange", [](py::object capsule, bool on) {
    if (!watch_exchange(capsule.ptr(), on)) throw py::error_already_set();
  });
  m.def("script_tensors", &script_tensors);
  m.def("signatures", [] { return Engine::get().signatures(); });
  m.def("signature_counts", [] { return Engine::get().signature_counts(); });
  m.def("in_use", [] { return Engine::get().in_use(); }, py::call_guard<py::gil_scoped_release>());
  m.def("last_failure", &last_failure);
  m.def("met_in", &met_in);
  m.def("fail_next", [](const std::string& message, size_t bytes) { Engine::get().fail_next(message, bytes); });
  m.def("start_recording", [] { Engine::get().start_recording(); }, py::call_guard<py::gil_scoped_release>());
  m.def("watch_meta", [] { Engine::get().watch_meta(); }, py::call_guard<py::gil_scoped_release>());
  m.def("stop_recording", &stop_recording);
  m.def("on_period", &set_on_period);
  // For tests: "evict" or "move" whatever may move before every op; "" stops that.
  m.def("set_stress", [](const std::string& kind) {
    Engine::get().set_stress(kind == "evict" ? Stress::kEvict : kind == "move" ? Stress::kMove : Stress::kNone);
  });
  // For tests: have every operator's arguments compared before and after it; what was seen, by its name.
  m.def("set_witness", &set_witness);
  m.def("testimonies", [] {
    py::dict found;
    for (const auto& [name, testimony] : testimonies()) found[py::str(name)] = py::make_tuple(testimony.calls, testimony.changed);
    return found;
  });
}
