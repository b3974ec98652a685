// The engine as a Python module.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "engine.h"
#include "hash.h"
#include "measure.h"
#include "observer.h"

#include <algorithm>
#include <string>
#include <unordered_map>

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

// A storage's bytes kept in memory until this goes: however an exception comes in between, it does go.
class Hold {
 public:
  explicit Hold(py::handle object)
      : block_(without_gil(object, [](const c10::Storage& s) { return Engine::get().hold(s); })) {}
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { release(); }
  void release() {
    Block* block = std::exchange(block_, nullptr);
    py::gil_scoped_release no_gil;
    if (block != nullptr) Engine::get().unhold(block);
  }
  void pin() {
    py::gil_scoped_release no_gil;
    if (block_ != nullptr) Engine::get().pin(block_);
  }

 private:
  Block* block_;
};

std::shared_ptr<Tier> make_tier(const std::string& kind, const std::string& folder, size_t capacity, bool checked,
                                const Faults& faults, const Link& link) {
  std::unique_ptr<Medium> medium = kind == "ram" ? make_ram(capacity) : make_disk(folder);
  if (link.bytes_per_second > 0 || link.latency_seconds > 0) medium = with_link(std::move(medium), link);
  if (faults.fail_write || faults.fail_read || faults.corrupt_read) medium = with_faults(std::move(medium), faults);
  if (checked) medium = with_checksums(std::move(medium));
  return std::make_shared<Tier>(std::move(medium));
}

void start(size_t budget, const std::string& kind, const std::string& folder, size_t capacity, bool checked,
           int64_t fail_write, int64_t fail_read, int64_t corrupt_read, bool repeat, double link_bytes_per_second,
           double link_latency_seconds, int64_t link_changes_at, double link_change, bool others) {
  py::gil_scoped_release no_gil;
  try {
    Faults faults{fail_write, fail_read, corrupt_read, repeat};
    Link link{link_bytes_per_second, link_latency_seconds, link_changes_at, link_change};
    Engine::get().start(budget, make_tier(kind, folder, capacity, checked, faults, link), others);
  } catch (const TierFailure& error) {
    throw PythonError(std::string("memfit: ") + error.what(), tier_error_type);
  }
}

py::bytes as_bytes(const std::vector<int64_t>& values) {
  return py::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
}

using Column = std::vector<size_t>;
using Columns = std::unordered_map<std::string, Column>;

// The columns of a table by name, all of one length where `same_length`. Raises ValueError if one is missing.
const Column& column(const Columns& columns, const char* name) {
  auto found = columns.find(name);
  if (found == columns.end()) throw std::invalid_argument(std::string("a plan needs the column ") + name);
  return found->second;
}

void check(bool ok) {
  if (!ok) throw std::invalid_argument("the columns do not describe a plan");
}

// Raises ValueError for columns that contradict each other: the engine reads them without looking back.
PlanTable plan_table(const Columns& columns, size_t zone_bytes, size_t iterations, size_t swaps) {
  const Column &bytes = column(columns, "size"), &slots = column(columns, "slots"), &swap = column(columns, "swap");
  const Column &due_begin = column(columns, "due_begin"), &due_take = column(columns, "due_take");
  const Column &ago = column(columns, "due_periods_ago"), &slot_offset = column(columns, "slot_offset");
  check(iterations > 0 && bytes.size() % iterations == 0 && slots.size() == bytes.size() && swap.size() == bytes.size());
  check(due_begin.size() == bytes.size() + 2 && due_begin[0] == 0 && due_begin.back() == due_take.size());
  check(ago.size() == due_take.size() && std::is_sorted(due_begin.begin(), due_begin.end()));
  PlanTable table;
  uint32_t slot = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    check(swap[i] <= swaps);  // counted from 1; 0: an allocation
    table.takes.push_back({bytes[i], slot, static_cast<uint32_t>(slots[i]), static_cast<int64_t>(swap[i]) - 1});
    for (size_t s = 0; s < slots[i]; ++s, ++slot)
      check(slot < slot_offset.size() && slot_offset[slot] + bytes[i] <= zone_bytes && slot_offset[slot] % Arena::kAlignment == 0);
  }
  check(slot == slot_offset.size());
  for (size_t i = 0; i < due_take.size(); ++i) {
    check(due_take[i] < bytes.size() && slots[due_take[i]] > 0 && ago[i] <= Plan::kFirstPeriod);
    table.due.push_back({static_cast<uint32_t>(due_take[i]), static_cast<uint32_t>(ago[i])});
  }
  table.due_begin.assign(due_begin.begin(), due_begin.end());
  table.slot_offset = slot_offset;
  table.bytes = zone_bytes;
  table.iterations = iterations;
  return table;
}

// As above. `takes`: how many an iteration has.
SwapTable swap_table(const Columns& columns, size_t takes) {
  const Column &block = column(columns, "block"), &ordinal = column(columns, "ordinal"), &bytes = column(columns, "bytes");
  const Column &storage = column(columns, "storage"), &out_after = column(columns, "out_after");
  const Column &free_by = column(columns, "free_by"), &in_start = column(columns, "in_start"), &take = column(columns, "take");
  check(ordinal.size() == block.size() && bytes.size() == block.size());
  for (const Column* other : {&out_after, &free_by, &in_start, &take}) check(other->size() == storage.size());
  SwapTable table;
  table.op_hashes.assign(column(columns, "op_hashes").begin(), column(columns, "op_hashes").end());
  for (size_t i = 0; i < block.size(); ++i)
    table.storages.push_back({block[i], static_cast<uint32_t>(ordinal[i]), bytes[i]});
  size_t ops = table.op_hashes.size();
  for (size_t i = 0; i < storage.size(); ++i) {
    check(storage[i] < block.size() && out_after[i] < ops && free_by[i] < ops && in_start[i] < ops && take[i] < takes);
    table.swaps.push_back({static_cast<uint32_t>(storage[i]), static_cast<uint32_t>(out_after[i]), static_cast<uint32_t>(free_by[i]),
                           static_cast<uint32_t>(in_start[i]), static_cast<uint32_t>(take[i])});
  }
  return table;
}

bool use_plan(const Columns& takes, size_t zone_bytes, size_t iterations, const Columns& swaps,
              const std::vector<uint64_t>& resident, bool at_boundary) {
  py::gil_scoped_release no_gil;
  PlanTable table = plan_table(takes, zone_bytes, iterations, column(swaps, "storage").size());
  SwapTable swap = swap_table(swaps, table.takes.size() / iterations);
  return Engine::get().use_plan(std::move(table), std::move(swap), resident, at_boundary);
}

// (out, in, out while the other way is busy, in likewise), in seconds.
std::tuple<double, double, double, double> measure_tier(const std::string& kind, const std::string& folder, size_t size,
                                                        size_t repeats) {
  py::gil_scoped_release no_gil;
  try {
    std::shared_ptr<Tier> tier = make_tier(kind, folder, 4 * size, false, {}, {});
    LinkTimes times = measure_link(*tier, size, repeats);
    return {times.out, times.in, times.out_beside, times.in_beside};
  } catch (const TierFailure& error) {
    throw PythonError(std::string("memfit: ") + error.what(), tier_error_type);
  }
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
  d["swaps"] = s.swaps;
  d["prefetches"] = s.prefetches;
  d["failed_copies"] = s.failed_copies;
  d["derailments"] = s.derailments;
  d["stall_ns"] = s.stall_ns;
  d["copy_ns"] = s.copy_ns;
  d["out_ns"] = s.out_ns;
  d["in_ns"] = s.in_ns;
  return d;
}

// Show the engine every tensor among `objects` (whatever they are).
void adopt(const py::list& objects) {
  auto* tensor_type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  for (py::handle object : objects) {
    if (!PyObject_TypeCheck(object.ptr(), tensor_type)) continue;
    c10::Storage storage = storage_of(object);
    if (!storage.unsafeGetStorageImpl()) continue;
    py::gil_scoped_release no_gil;
    try {
      Engine::get().adopt(storage);
    } catch (const TierFailure& error) {
      throw PythonError(std::string("memfit: ") + error.what(), tier_error_type);
    }
  }
}

py::dict stop_recording() {
  Recording recording = Engine::get().stop_recording();
  py::dict d;
  d["ops"] = as_bytes(recording.ops);
  d["accesses"] = as_bytes(recording.accesses);
  d["ticks"] = as_bytes(recording.ticks);
  d["before"] = as_bytes(recording.before);
  d["ghosts"] = as_bytes(recording.ghosts);
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
  d["message"] = failure.message;
  d["op"] = failure.op;
  d["tensors"] = failure.tensors;
  d["source"] = failure.source;
  d["required_bytes"] = failure.required_bytes;
  return d;
}

// Python's answer to a repeating op stream. It must not raise into the op that happens to run.
void set_on_period(py::object action) {
  auto* callable = new py::object(std::move(action));  // outlives the interpreter's own teardown
  Engine::get().on_period([callable] {
    py::gil_scoped_acquire gil;
    try {
      (*callable)();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("memfit");
    }
  });
}

}  // namespace

void raise(const Failure& failure) {
  std::string message = failure.message;
  std::string source = source_text(current_source());
  Engine::get().note_failure_source(source);
  if (!source.empty()) message += "; at " + source;
  throw PythonError(message, failure.kind == Failure::Kind::kTier ? tier_error_type : budget_error_type);
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
  m.def("stats", &stats);
  m.def("reset_peaks", [] { Engine::get().reset_peaks(); }, py::call_guard<py::gil_scoped_release>());
  m.def("boundary", [] { Engine::get().boundary(); }, py::call_guard<py::gil_scoped_release>());
  m.def("set_budget", [](size_t budget) {
    py::gil_scoped_release no_gil;
    try {
      Engine::get().set_budget(budget);
    } catch (const TierFailure& error) {
      throw PythonError(std::string("memfit: ") + error.what(), tier_error_type);
    }
  });
  m.def("set_phase", [](int64_t phase) { Engine::get().set_phase(static_cast<Phase>(phase)); });
  m.def("adopt", &adopt);
  m.def("reject_period", [] { Engine::get().reject_period(); });
  py::class_<Hold>(m, "Hold").def(py::init<py::handle>()).def("release", &Hold::release).def("pin", &Hold::pin);
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
  m.def("signatures", [] { return Engine::get().signatures(); });
  m.def("last_failure", &last_failure);
  m.def("fail_next", [](const std::string& message, size_t bytes) { Engine::get().fail_next(message, bytes); });
  m.def("start_recording", [] { Engine::get().start_recording(); }, py::call_guard<py::gil_scoped_release>());
  m.def("watch_meta", [] { Engine::get().watch_meta(); }, py::call_guard<py::gil_scoped_release>());
  m.def("stop_recording", &stop_recording);
  m.def("on_period", &set_on_period);
}
