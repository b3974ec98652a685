// The engine as a Python module.
#include "bindings.h"

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
