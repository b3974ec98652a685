#include "packer/packing_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "packer/exact.h"
#include "packer/greedy.h"
#include "packer/pack.h"
#include "packer/skyline.h"

namespace nb = nanobind;

namespace memfit::packing {
namespace {

using Column = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Array = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>;

Array as_array(const std::vector<std::int64_t>& values) {
  auto* data = new std::int64_t[std::max<std::size_t>(1, values.size())];
  std::copy(values.begin(), values.end(), data);
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::int64_t*>(p); });
  return Array(data, {values.size()}, owner);
}

struct Packing {
  std::vector<std::int64_t> offsets_bytes;  // by slot
  std::vector<std::int64_t> slots;          // by lifetime
  std::int64_t footprint_bytes, lower_bound_bytes, peak_bytes;
  Plan plan;
};

// Slots of no bytes lie at their fixed offset, or at 0.
Packing unpack(const Table& table, const Lifetimes& in, Plan plan) {
  const std::int64_t unit = table.problem.quantum_bytes;
  Packing result{{}, {}, plan.footprint * unit, plan.lower_bound * unit, table.problem.lower_bound * unit, {}};
  std::size_t item = 0;
  for (std::size_t i = 0; i < in.count; ++i) {
    result.slots.push_back(table.slots[i]);
    const bool is_empty = in.size_bytes[i] == 0;
    for (std::int32_t slot = 0; slot < table.slots[i]; ++slot)
      result.offsets_bytes.push_back(is_empty ? std::max<std::int64_t>(0, in.offset_bytes[i])
                                              : plan.offsets[item++] * unit);
  }
  result.plan = std::move(plan);
  return result;
}

Packing pack_columns(const Column& lower, const Column& upper, const Column& size_bytes, const Column& offset_bytes,
                    std::int64_t alignment, std::int64_t period, std::optional<std::int64_t> capacity_bytes,
                    double effort, std::uint64_t seed, int threads,
                    const std::optional<std::function<void(double, std::int64_t)>>& progress) {
  const std::size_t count = lower.shape(0);
  if (upper.shape(0) != count || size_bytes.shape(0) != count || offset_bytes.shape(0) != count)
    throw std::invalid_argument("the columns differ in length");
  const Lifetimes in{lower.data(), upper.data(), size_bytes.data(), offset_bytes.data(), count};
  nb::gil_scoped_release release;
  const Table table = build(in, alignment, period);
  Progress tell;
  if (progress)
    tell = [&](double seconds, Quanta top) {
      nb::gil_scoped_acquire acquire;
      (*progress)(seconds, top * table.problem.quantum_bytes);
    };
  const Quanta goal = capacity_bytes ? *capacity_bytes / table.problem.quantum_bytes : 0;
  return unpack(table, in, pack(table.problem, {goal, effort, seed, std::max(1, threads)}, tell));
}

constexpr std::int64_t kMostWork = 60'000'000'000;

// Climbs from the bound until the search finds a plan: for tests of the search and its rules.
std::int64_t smallest_footprint(const Column& lower, const Column& upper, const Column& size, const Column& offset,
                                std::int64_t period, const Rules& rules) {
  const Lifetimes in{lower.data(), upper.data(), size.data(), offset.data(), lower.shape(0)};
  const Problem problem = build(in, 1, period).problem;
  Exact exact(problem, order_by(problem, {Key::kSize}), rules);
  const std::atomic<int> none{1};
  std::int64_t work = kMostWork;
  Quanta capacity = problem.lower_bound;
  Verdict verdict;
  while ((verdict = exact.search(capacity, work, Stop(none, 0))) == Verdict::kNone) ++capacity;
  if (verdict == Verdict::kOutOfWork) throw std::runtime_error("the search took more than a minute's work");
  return capacity * problem.quantum_bytes;
}

// One plan on a skyline, items placed by `order`: for a test of it. No lifetime may be of no bytes.
Array skyline(const Column& lower, const Column& upper, const Column& size, const Column& order) {
  const std::vector<std::int64_t> anywhere(lower.shape(0), kFree);
  const Lifetimes in{lower.data(), upper.data(), size.data(), anywhere.data(), lower.shape(0)};
  const Problem problem = build(in, 1, 0).problem;
  std::int64_t work = 0;
  Offsets offsets = place_on_skyline(problem, {order.data(), order.data() + order.shape(0)}, work);
  for (Quanta& offset : offsets) offset *= problem.quantum_bytes;
  return as_array(offsets);
}

const char* method_name(Method method) {
  switch (method) {
    case Method::kGreedy: return "greedy";
    case Method::kSkyline: return "skyline";
    case Method::kExact: return "exact";
    default: return "ejection";
  }
}

}  // namespace

void register_packing(nb::module_& m) {
  nb::class_<Packing>(m, "Packing")
      .def_prop_ro("offsets_bytes", [](const Packing& p) { return as_array(p.offsets_bytes); }, nb::rv_policy::move)
      .def_prop_ro("slots", [](const Packing& p) { return as_array(p.slots); }, nb::rv_policy::move)
      .def_ro("footprint_bytes", &Packing::footprint_bytes)
      .def_ro("lower_bound_bytes", &Packing::lower_bound_bytes)
      .def_ro("peak_bytes", &Packing::peak_bytes)
      .def_prop_ro("method", [](const Packing& p) { return method_name(p.plan.method); })
      .def_prop_ro("seconds", [](const Packing& p) { return p.plan.seconds; });
  m.def("pack", &pack_columns, nb::kw_only(), nb::arg("lower"), nb::arg("upper"), nb::arg("size_bytes"),
        nb::arg("offset_bytes"), nb::arg("alignment"), nb::arg("period"), nb::arg("capacity_bytes").none(),
        nb::arg("effort"), nb::arg("seed"), nb::arg("threads"), nb::arg("progress").none());
  nb::class_<Rules>(m, "Rules")
      .def(nb::init<>())
      .def_rw("dominance", &Rules::dominance)
      .def_rw("suffixes", &Rules::suffixes)
      .def_rw("twins", &Rules::twins)
      .def_rw("split", &Rules::split);
  m.def("smallest_footprint", &smallest_footprint, nb::kw_only(), nb::arg("lower"), nb::arg("upper"),
        nb::arg("size_bytes"), nb::arg("offset_bytes"), nb::arg("period"), nb::arg("rules"));
  m.def("skyline", &skyline, nb::kw_only(), nb::arg("lower"), nb::arg("upper"), nb::arg("size_bytes"),
        nb::arg("order"));
}

}  // namespace memfit::packing
