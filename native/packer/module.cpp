// memfit._native: the algorithms that need no torch.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <stdexcept>
#include <string_view>

#include "common/factories.h"
#include "common/period.h"
#include "common/sizes.h"
#include "joint/joint_module.h"
#include "packer/clairvoyant.h"
#include "packer/packing_module.h"
#include "simulator/simulator_module.h"

namespace nb = nanobind;

namespace {

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
memfit::Column<T> column(const Array<T>& array) {
  return {array.data(), array.shape(0)};
}

std::optional<std::pair<std::size_t, std::size_t>> find_period(const Array<std::uint64_t>& tokens) {
  nb::gil_scoped_release release;
  const auto period = memfit::find_period(tokens.data(), tokens.shape(0));
  if (!period) return std::nullopt;
  return std::pair{period->start, period->length};
}

nb::frozenset uninitialised_factories() {
  nb::list names;
  for (std::string_view name : memfit::kUninitialisedFactories) names.append(nb::str(name.data(), name.size()));
  return nb::frozenset(names);
}

// Native code indexes without bounds checks: refuse columns that would lead it astray.
void check(const memfit::TraceColumns& trace) {
  const auto begin = trace.access_begin;
  bool ok = trace.alignment > 0 && trace.alloc_tick.size == trace.storages() &&
            trace.free_tick.size == trace.storages() && trace.workspace_bytes.size == trace.ops() &&
            trace.access_is_write.size == trace.access_storage.size && begin.size == trace.ops() + 1;
  ok = ok && begin[0] == 0 && begin[trace.ops()] == static_cast<std::int64_t>(trace.access_storage.size);
  for (std::size_t op = 0; ok && op < trace.ops(); ++op) ok = begin[op] <= begin[op + 1];
  for (std::size_t a = 0; ok && a < trace.access_storage.size; ++a)
    ok = trace.access_storage[a] >= 0 &&
         static_cast<std::size_t>(trace.access_storage[a]) < trace.storages();
  if (!ok) throw std::invalid_argument("clairvoyant_bytes: the columns do not describe a trace");
}

memfit::ClairvoyantResult clairvoyant_bytes(
    const Array<std::int64_t>& size_bytes, const Array<std::int64_t>& alloc_tick,
    const Array<std::int64_t>& free_tick, const Array<std::int64_t>& first_tick,
    const Array<std::int64_t>& workspace_bytes, const Array<std::int64_t>& access_begin,
    const Array<std::int64_t>& access_storage, const Array<std::uint8_t>& access_is_write, std::int64_t ticks,
    std::int64_t alignment, std::int64_t budget_bytes) {
  const memfit::TraceColumns trace{column(size_bytes),     column(alloc_tick),      column(free_tick),
                                   column(first_tick),     column(workspace_bytes), column(access_begin),
                                   column(access_storage), column(access_is_write), ticks,
                                   alignment};
  check(trace);
  nb::gil_scoped_release release;
  return memfit::Clairvoyant(trace, budget_bytes).run();
}

}  // namespace

NB_MODULE(_native, m) {
  m.attr("LARGEST_SMALL_BYTES") = memfit::kLargestSmallBytes;
  m.attr("SMALL_SHARE") = memfit::kSmallShare;
  m.attr("HOST_ALIGNMENT") = memfit::kHostAlignment;
  m.attr("CUDA_ALIGNMENT") = memfit::kCudaAlignment;
  m.attr("UNINITIALISED_FACTORIES") = uninitialised_factories();

  m.def("find_period", &find_period, nb::arg("tokens"));

  nb::class_<memfit::ClairvoyantResult>(m, "ClairvoyantResult")
      .def_ro("bytes_out", &memfit::ClairvoyantResult::bytes_out)
      .def_ro("bytes_in", &memfit::ClairvoyantResult::bytes_in)
      .def_ro("required_bytes", &memfit::ClairvoyantResult::required_bytes)
      .def_ro("required_op", &memfit::ClairvoyantResult::required_op);
  m.def("clairvoyant_bytes", &clairvoyant_bytes, nb::kw_only(), nb::arg("size_bytes"), nb::arg("alloc_tick"),
        nb::arg("free_tick"), nb::arg("first_tick"), nb::arg("workspace_bytes"), nb::arg("access_begin"),
        nb::arg("access_storage"), nb::arg("access_is_write"), nb::arg("ticks"), nb::arg("alignment"),
        nb::arg("budget_bytes"));

  memfit::packing::register_packing(m);
  memfit::swapping::register_swapping(m);
  memfit::swapping::register_faults(m);
  memfit::joint::register_joint(m);
}
