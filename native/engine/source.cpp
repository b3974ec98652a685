// Which line of the user's Python is running.
#include <Python.h>

#include <mutex>
#include <string>
#include <unordered_map>

#include "at_fork.h"
#include "observer.h"

namespace memfit {

namespace {

// The mutex is held around these tables alone: a call into the interpreter may run the garbage collector, and with it
// anybody's code, which may let other threads go on that want the mutex.
struct Sources {
  FreeAtFork<std::mutex> mutex;
  std::vector<std::string> texts;
  std::unordered_map<std::string, int64_t> ids;
  std::vector<std::string> libraries;

  bool is_users(const std::string& file) const {
    // A cell in a terminal's IPython is the user's, though it has no file.
    if (file.empty() || (file[0] == '<' && !file.starts_with("<ipython-input-"))) return false;
    for (const std::string& folder : libraries)
      if (file.compare(0, folder.size(), folder) == 0) return false;
    return true;
  }
  // The line's id if it is the user's, otherwise -1.
  int64_t users(const std::string& file, PyFrameObject* frame) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!is_users(file)) return -1;
    }
    std::string text = file + ":" + std::to_string(PyFrame_GetLineNumber(frame));
    std::lock_guard<std::mutex> lock(mutex);
    return id(text);
  }

 private:
  int64_t id(const std::string& text) {
    auto [it, is_new] = ids.emplace(text, static_cast<int64_t>(texts.size()));
    if (is_new) texts.push_back(text);
    return it->second;
  }
};

Sources& all() {
  static auto* instance = new Sources;
  return *instance;
}

// A file's name may be any bytes: those that are not text are written as escapes.
std::string text_of(PyObject* name) {
  if (const char* text = PyUnicode_AsUTF8(name)) return text;
  PyErr_Clear();
  PyObject* bytes = PyUnicode_AsEncodedString(name, "utf-8", "backslashreplace");
  if (bytes == nullptr) return PyErr_Clear(), "";
  std::string text = PyBytes_AS_STRING(bytes);
  Py_DECREF(bytes);
  return text;
}

// Walks outwards from the running frame to the first one of the user's. The interpreter lock is held.
int64_t find_source() {
  Sources& known = all();
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    int64_t id = known.users(text_of(code->co_filename), frame);
    bool found = id >= 0;
    Py_DECREF(code);
    PyFrameObject* outer = found ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    if (found) return id;
    frame = outer;
  }
  return -1;
}

}  // namespace

bool is_python_thread() { return Py_IsInitialized() && PyGILState_GetThisThreadState() != nullptr; }

// A thread without Python's own state runs no line of the user's, and may be one that the holder of the interpreter
// lock waits for.
int64_t current_source() {
  if (!is_python_thread()) return -1;
  PyGILState_STATE state = PyGILState_Ensure();
  int64_t source = find_source();
  PyGILState_Release(state);
  return source;
}

std::vector<std::string> sources() {
  std::lock_guard<std::mutex> lock(all().mutex);
  return all().texts;
}

std::string source_text(int64_t source) {
  std::lock_guard<std::mutex> lock(all().mutex);
  return source < 0 ? "" : all().texts[static_cast<size_t>(source)];
}

void set_library_folders(std::vector<std::string> folders) {
  std::lock_guard<std::mutex> lock(all().mutex);
  all().libraries = std::move(folders);
}

}  // namespace memfit
