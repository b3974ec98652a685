// The Python module, compiled in one piece: torch's headers take longer than all of it. Its parts' anonymous namespaces
// share one scope.
#include "callbacks.cpp"
#include "doors.cpp"
#include "errors.cpp"
#include "extensions.cpp"
#include "kernels.cpp"
#include "plans.cpp"
#include "recordings.cpp"
#include "session.cpp"
#include "storages.cpp"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  memfit::bind_errors(m);
  memfit::bind_session(m);
  memfit::bind_storages(m);
  memfit::bind_recordings(m);
  memfit::bind_plans(m);
  memfit::bind_callbacks(m);
  memfit::bind_doors(m);
  memfit::bind_extensions(m);
  memfit::bind_kernels(m);
}
