// Which line of the user's Python is running.
#include <Python.h>

#include <mutex>
#include <string>
#include <unordered_map>

#include "at_fork.h"
#include "observer.h"

namespace memfit {

namespace {

struct Sources {
  FreeAtFork<std::mutex> mutex;
  std::vector<std::string> texts;
  std::unordered_map<std::string, int64_t> ids;
  std::vector<std::string> libraries;

  bool is_users(const char* file) {
    if (file[0] == '<') return false;
    for (const std::string& folder : libraries)
      if (std::string_view(file).substr(0, folder.size()) == folder) return false;
    return true;
  }
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

// What is no text in a file's name (it may be any bytes) is written as an escape.
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
    const std::string file = text_of(code->co_filename);
    std::lock_guard<std::mutex> lock(known.mutex);
    bool found = !file.empty() && known.is_users(file.c_str());
    int64_t id = found ? known.id(file + ":" + std::to_string(PyFrame_GetLineNumber(frame))) : -1;
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
