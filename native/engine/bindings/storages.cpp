// Single storages: shown to the engine, held in memory, read where they are.
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include "../observer.h"
#include "bindings.h"

namespace memfit {

namespace {

// Runs `action` with the storage and without the interpreter lock.
template <typename Action>
auto without_gil(py::handle object, Action&& action) {
  c10::Storage storage = storage_of(object);
  py::gil_scoped_release no_gil;
  if (!storage.unsafeGetStorageImpl()) throw std::invalid_argument("a tensor without a storage cannot be held");
  return action(storage);
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
      // Ordinary memory becomes the engine's before its address escapes: it would be moved later otherwise.
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
  {  // everything the device was asked for is done: storages may be adopted that other streams have written to
    py::gil_scoped_release no_gil;
    Engine::get().governing([](Session& session) { session.memory.device->finish(); });
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

// The device's own allocator need not keep the memory of adopted storages.
void release_cached() {
  Engine::get().governing([](Session& session) { session.memory.device->release_cached(); });
}

void warm_up() {
  Device* device = Engine::get().governing([](Session& session) { return session.memory.device; });
  if (device != nullptr) device->warm_up();
  Engine::get().governing([](Session& session) { session.shelf.begin(); });
}

bool has_instance(const py::type& type) {
  bool found = false;
  auto* wanted = reinterpret_cast<PyTypeObject*>(type.ptr());
  each_visible([&](py::handle object) { found = found || PyObject_TypeCheck(object.ptr(), wanted); });
  return found;
}

bool drop_bytes(py::object target) {
  return without_gil(target, [](const c10::Storage& s) { return Engine::get().drop_bytes(s); });
}

// By its address alone: torch may have been built without the class.
void collective_is_over(py::handle work) {
  const void* address = reinterpret_cast<py::detail::instance*>(work.ptr())->get_value_and_holder().value_ptr();
  py::gil_scoped_release no_gil;
  Engine::get().collective_is_over(address);
}

py::bytes read_bytes(py::object target, size_t offset, size_t size) {
  return py::bytes(
      without_gil(target, [&](const c10::Storage& s) { return Engine::get().read_bytes(s, offset, size); }));
}

int64_t block_id(py::object target) {
  c10::Storage storage = storage_of(target);  // a sparse tensor has none
  py::gil_scoped_release no_gil;
  return storage.unsafeGetStorageImpl() ? Engine::get().block_id(storage) : int64_t{-1};
}

bool is_resident(py::object target) {
  return without_gil(target, [](const c10::Storage& s) { return Engine::get().is_resident(s); });
}

bool may_leave(py::object target) {
  return without_gil(target, [](const c10::Storage& s) { return Engine::get().may_leave(s); });
}

bool is_operand(py::object target) {
  return without_gil(target, [](const c10::Storage& s) { return Engine::get().is_operand(s); });
}

std::optional<std::pair<uintptr_t, size_t>> place_of(py::object target) {
  return without_gil(target, [](const c10::Storage& s) { return Engine::get().place_of(s); });
}

bool map_storage(py::object target) {
  c10::Storage storage = storage_of(target);
  py::gil_scoped_release no_gil;
  bool is_mapped = false;
  if (storage) telling_of_tiers([&] { is_mapped = Engine::get().map(storage); });
  return is_mapped;
}

}  // namespace

c10::Storage storage_of(py::handle object) {
  if (THPVariable_Check(object.ptr())) {
    const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
    return tensor.has_storage() ? tensor.storage() : c10::Storage();
  }
  if (THPStorage_Check(object.ptr())) return THPStorage_Unpack(object.ptr());
  throw py::type_error("expected a tensor or a storage");
}

void bind_storages(py::module_& m) {
  py::class_<Hold>(m, "Hold")
      .def(py::init<py::handle, bool>(), py::arg("target"), py::arg("pin") = false)
      .def("release", &Hold::release)
      .def("pin", &Hold::pin)
      .def("__enter__", [](Hold&) {})
      .def("__exit__", [](Hold& hold, const py::object& error, const py::object&, const py::object&) { hold.exit(error); });
  m.def("map_storage", &map_storage, py::arg("target"));
  m.def("adopt", &adopt, py::arg("tensors"));
  m.def("adopt_visible", &adopt_visible);
  m.def("release_cached", &release_cached, NoGil());
  m.def("warm_up", &warm_up, NoGil());
  m.def("has_instance", &has_instance, py::arg("type"));
  m.def("drop_bytes", &drop_bytes, py::arg("target"));
  m.def("begin_to_keep", [] { Engine::get().begin_to_keep(); });
  m.def("end_keeping", [](bool for_good) { Engine::get().end_keeping(for_good); }, py::arg("for_good"), NoGil());
  m.def("coalesce_collectives", [](bool on) { Engine::get().coalesce_collectives(on); }, py::arg("on"), NoGil());
  m.def("collective_is_over", &collective_is_over, py::arg("work"));
  m.def("read_bytes", &read_bytes, py::arg("target"), py::arg("offset"), py::arg("size_bytes"));
  m.def("block_id", &block_id, py::arg("target"));
  m.def("is_resident", &is_resident, py::arg("target"));
  m.def("may_leave", &may_leave, py::arg("target"));
  m.def("is_operand", &is_operand, py::arg("target"));
  m.def("place_of", &place_of, py::arg("target"));
  m.def("in_use", [] { return Engine::get().in_use(); }, NoGil());
}

}  // namespace memfit
