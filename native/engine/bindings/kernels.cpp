// Generated kernels, whose signature says what they read and what they write: each is called as an op.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstddef>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "../extension.h"
#include "../observer.h"
#include "../thread_state.h"
#include "bindings.h"

namespace memfit {

namespace {

// What stands in a kernel's place. Calls take Python's shortest way (vectorcall): a kernel may take microseconds.
struct KernelOp {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* kernel;
  const OpInfo* op;
};

// The tensors among a call's arguments, which the caller holds until it is over. Their values have no references of their own,
// and are never destroyed. (Whoever takes a reference to a tensor that only Python has waits for the interpreter, to take one
// to its Python object too.)
class Arguments {
 public:
  Arguments(const OpInfo& op, PyObject* const* args, size_t count) : places_(count) {
    for (Place& place : places_) new (&place) c10::IValue();
    each_operand_number(op, count, [&](size_t i) {
      if (THPVariable_Check(args[i]))
        new (&places_[i]) c10::IValue(at::Tensor(Reference::reclaim(THPVariable_Unpack(args[i]).unsafeGetTensorImpl())));
    });
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  c10::ArrayRef<const c10::IValue> operands() const {
    return c10::ArrayRef<const c10::IValue>(std::launder(reinterpret_cast<const c10::IValue*>(places_.data())), places_.size());  // (braces would make a list of two)
  }

 private:
  using Reference = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct alignas(c10::IValue) Place {
    std::byte bytes[sizeof(c10::IValue)];
  };
  c10::SmallVector<Place, kFewOperands> places_;
};

// The tensors among a call's arguments, if they are all torch's own class, and all there.
bool are_tensors(const OpInfo& op, PyObject* const* args, size_t count, c10::SmallVectorImpl<c10::TensorImpl*>& tensors) {
  if (op.writes.size() != count) return false;
  for (size_t i : op.operands) {
    if (!THPVariable_CheckExact(args[i])) return false;
    tensors.push_back(THPVariable_Unpack(args[i]).unsafeGetTensorImpl());
  }
  return true;
}

// From its beginning to its end.
class Call {
 public:
  Call(ThreadState& thread, const OpInfo& op) : thread_(thread), op_(op) {}
  ~Call() { Engine::get().op_ends(thread_, op_, {}); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  ThreadState& thread_;
  const OpInfo& op_;
};

// The interpreter is everybody's while the engine waits: for others' ops, say, which need it. The call's end waits for nobody, and keeps it.
PyObject* call_in_session(const KernelOp& self, PyObject* const* args, size_t flags, PyObject* keywords) {
  HANDLE_TH_ERRORS
  const Arguments arguments(*self.op, args, static_cast<size_t>(PyVectorcall_NARGS(flags)));
  const int64_t source = this_thread().depth == 0 && Engine::get().recording() ? current_source() : -1;
  std::optional<ExtensionCall> call;
  {
    const py::gil_scoped_release released;
    call.emplace(*self.op, arguments.operands(), source);
  }
  PyObject* result = PyObject_Vectorcall(self.kernel, args, flags, keywords);
  return result;
  END_HANDLE_TH_ERRORS
}

PyObject* call_kernel(PyObject* object, PyObject* const* args, size_t flags, PyObject* keywords) try {
  const auto& self = *reinterpret_cast<KernelOp*>(object);
  Engine& engine = Engine::get();
  if (!engine.active()) return PyObject_Vectorcall(self.kernel, args, flags, keywords);
  ThreadState& thread = this_thread();
  c10::SmallVector<c10::TensorImpl*, kFewOperands> tensors;
  const bool are_there = are_tensors(*self.op, args, static_cast<size_t>(PyVectorcall_NARGS(flags)), tensors);
  if (!are_there || !engine.op_begins_at_once(thread, *self.op, tensors)) return call_in_session(self, args, flags, keywords);
  const Call call(thread, *self.op);
  return PyObject_Vectorcall(self.kernel, args, flags, keywords);
} catch (const std::bad_alloc&) {
  return PyErr_NoMemory();
}

int visit_kernel(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<KernelOp*>(object)->kernel);
  return 0;
}

void free_kernel(PyObject* object) {
  PyObject_GC_UnTrack(object);
  Py_XDECREF(reinterpret_cast<KernelOp*>(object)->kernel);
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject kernel_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

void make_type() {
  kernel_type.tp_name = "memfit_engine.KernelOp";
  kernel_type.tp_basicsize = sizeof(KernelOp);
  kernel_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC;
  kernel_type.tp_vectorcall_offset = offsetof(KernelOp, vectorcall);
  kernel_type.tp_call = &PyVectorcall_Call;
  kernel_type.tp_traverse = &visit_kernel;
  kernel_type.tp_dealloc = &free_kernel;
  if (PyType_Ready(&kernel_type) < 0) throw py::error_already_set();
}

py::object kernel_as_op(const py::object& kernel, const std::string& name, const std::vector<bool>& tensors, const std::vector<bool>& writes) {
  auto* made = PyObject_GC_New(KernelOp, &kernel_type);
  if (made == nullptr) throw py::error_already_set();
  made->vectorcall = &call_kernel;
  made->kernel = py::object(kernel).release().ptr();
  made->op = &kernel_op(name, tensors, writes);
  PyObject_GC_Track(made);
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(made));
}

}  // namespace

void bind_kernels(py::module_& m) {
  make_type();
  m.def("kernel_as_op", &kernel_as_op, py::arg("kernel"), py::arg("name"), py::arg("tensors"), py::arg("writes"));
}

}  // namespace memfit
