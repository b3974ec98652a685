// A library as a user of torch writes one: functions that are no ops, which work through raw pointers.
#include <torch/extension.h>

#include <vector>

namespace {

// The address is taken first; then an op makes room for its result, and may move what the address is of.
at::Tensor doubled(const at::Tensor& source) {
  const float* from = source.data_ptr<float>();
  at::Tensor result = torch::empty({source.numel()}, source.options());
  float* to = result.data_ptr<float>();
  for (int64_t i = 0; i < source.numel(); ++i) to[i] = 2 * from[i];
  return result;
}

void add_one(at::Tensor target) {
  float* data = target.data_ptr<float>();
  for (int64_t i = 0; i < target.numel(); ++i) data[i] += 1;
}

// As fused optimizers do: a write to each of two lists, read from the second.
void descend(std::vector<at::Tensor> parameters, std::vector<at::Tensor> gradients, double rate) {
  for (size_t n = 0; n < parameters.size(); ++n) {
    float* parameter = parameters[n].data_ptr<float>();
    const float* gradient = gradients[n].data_ptr<float>();
    for (int64_t i = 0; i < parameters[n].numel(); ++i) parameter[i] -= static_cast<float>(rate) * gradient[i];
  }
}

struct Scaler {
  explicit Scaler(float by) : by(by) {}
  void scale(at::Tensor target) {
    float* data = target.data_ptr<float>();
    for (int64_t i = 0; i < target.numel(); ++i) data[i] *= by;
  }
  float by;
};

int64_t failing(const at::Tensor& tensor) { throw std::invalid_argument("not this one"); }

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("doubled", &doubled);
  m.def("add_one", &add_one, py::arg("target"));
  m.def("descend", &descend);
  m.def("increased", [](at::Tensor function, double name) { function.data_ptr<float>()[0] += static_cast<float>(name); },
        py::arg("function"), py::arg("name"));
  m.def("failing", &failing);
  m.def("answer", [] { return 42; });
  m.def("total", [](const py::dict& named) {
    float total = 0;
    for (auto item : named) total += item.second.cast<std::vector<at::Tensor>>().at(0).data_ptr<float>()[0];
    return total;
  });
  py::module_ inner = m.def_submodule("inner");
  inner.def("add_one", &add_one);
  py::class_<Scaler>(m, "Scaler", py::module_local())  // of each copy its own
      .def(py::init<float>()).def("scale", &Scaler::scale).def_static("add_one", &add_one)
      .def_property("target", [](const Scaler& scaler) { return scaler.by; }, &Scaler::scale);
}
