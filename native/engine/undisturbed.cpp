#include "undisturbed.h"

#include <signal.h>
#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

namespace memfit {

namespace py = pybind11;

namespace {

// The last error that was raised, with the one before as its context.
class Raised {
 public:
  template <typename Call>
  void by(const Call& call) {
    try {
      call();
    } catch (py::error_already_set& error) {
      if (error.trace()) PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
      py::object before = std::exchange(value_, error.value());
      if (before && before.ptr() != value_.ptr() && !has_context()) PyException_SetContext(value_.ptr(), before.release().ptr());
    }
  }
  bool any() const { return static_cast<bool>(value_); }
  void raise() {
    PyObject* value = value_.release().ptr();
    PyErr_Restore(py::handle(reinterpret_cast<PyObject*>(Py_TYPE(value))).inc_ref().ptr(), value, PyException_GetTraceback(value));
    throw py::error_already_set();
  }

 private:
  bool has_context() const { return static_cast<bool>(py::reinterpret_steal<py::object>(PyException_GetContext(value_.ptr()))); }

  py::object value_;
};

// While it exists, signals are noted in place of being handled.
class Deferral {
 public:
  explicit Deferral(Raised& raised) : raised_(raised), signals_(py::module_::import("_signal")) {
    if (getpid() != gettid()) return;  // Python runs handlers in its main thread only
    note_ = py::cpp_function([noted = noted_](int number, const py::object&) { noted->push_back(number); });
    for (int number = 1; number < NSIG; ++number) {
      py::object handler = handler_of(number);
      if (handler && PyCallable_Check(handler.ptr()) != 0 && set(number, note_)) handlers_.emplace_back(number, handler);
    }
  }
  ~Deferral() {
    for (const auto& [number, handler] : handlers_)
      if (handler_of(number).ptr() == note_.ptr()) set(number, handler);
    for (int number : *noted_)
      for (const auto& [other, handler] : handlers_)
        if (other == number) raised_.by([&, &to = handler] { to(number, frame()); });
  }
  Deferral(const Deferral&) = delete;
  Deferral& operator=(const Deferral&) = delete;

 private:
  static constexpr int kAttempts = 100;

  py::object handler_of(int number) {
    try {
      return signals_.attr("getsignal")(number);
    } catch (py::error_already_set&) {
      return py::object();  // the C library's own
    }
  }
  // Handlers that are due run first, and may raise; then nothing was set. How the system is to deliver the signal
  // (whether calls are taken up again) stays as it was.
  bool set(int number, const py::object& handler) {
    struct sigaction as_it_was;
    sigaction(number, nullptr, &as_it_was);
    bool done = false;
    for (int attempt = 0; attempt < kAttempts && !done; ++attempt)
      raised_.by([&] {
        signals_.attr("signal")(number, handler);
        done = true;
      });
    sigaction(number, &as_it_was, nullptr);
    return done;
  }
  static py::object frame() {
    auto* running = reinterpret_cast<PyObject*>(PyEval_GetFrame());
    return running != nullptr ? py::reinterpret_borrow<py::object>(running) : py::none();
  }

  Raised& raised_;
  py::object signals_;
  py::object note_;
  std::shared_ptr<std::vector<int>> noted_ = std::make_shared<std::vector<int>>();
  std::vector<std::pair<int, py::object>> handlers_;
};

}  // namespace

py::object undisturbed(const py::object& action, const py::object& undo, const py::args& arguments) {
  Raised raised;
  py::object result;
  {
    Deferral deferral(raised);
    raised.by([&] { result = action(*arguments); });
  }
  if (raised.any() && !undo.is_none()) {
    Deferral deferral(raised);
    raised.by([&] { undo(); });
  }
  if (raised.any()) raised.raise();
  return result;
}

}  // namespace memfit
