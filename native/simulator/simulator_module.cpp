#include "simulator/simulator_module.h"

#include "simulator/arrays.h"
#include "simulator/search.h"
#include "simulator/simulate.h"
#include "simulator/slack.h"

namespace nb = nanobind;

namespace memfit::swapping {
namespace {

using Int64 = In<std::int64_t>;
using Double = In<double>;
using Flag = In<std::uint8_t>;

Ops ops_of(const Double& duration_us, const Int64& load_bytes) {
  require(duration_us.shape(0) > 0 && duration_us.shape(0) == load_bytes.shape(0), "the columns of ops differ");
  return {duration_us.data(), load_bytes.data(), static_cast<std::int64_t>(duration_us.shape(0))};
}

// Native code indexes without bounds checks: refuse what would lead it astray.
void check(const SwapColumns& swaps, std::int64_t ops) {
  for (std::int64_t s = 0; s < swaps.count; ++s)
    require(swaps.out_after[s] >= 0 && swaps.out_after[s] < ops && swaps.out_after[s] < swaps.free_by[s] &&
                swaps.free_by[s] <= swaps.in_start[s] && swaps.in_start[s] <= swaps.in_before[s] &&
                swaps.in_before[s] < 2 * ops,
            "the ops of a swap are out of order");
}

Simulated simulate_columns(const Double& duration_us, const Int64& load_bytes, const Int64& size_bytes,
                           const Int64& out_after, const Int64& free_by, const Int64& in_start,
                           const Int64& in_before, const Double& out_us, const Double& in_us, const Flag& is_early,
                           double both_factor, int most_iterations) {
  const Ops ops = ops_of(duration_us, load_bytes);
  const std::size_t count = size_bytes.shape(0);
  for (const Int64& column : {out_after, free_by, in_start, in_before})
    require(column.shape(0) == count, "the columns of swaps differ in length");
  require(out_us.shape(0) == count && in_us.shape(0) == count && is_early.shape(0) == count,
          "the columns of swaps differ in length");
  require(both_factor > 0 && both_factor <= 1 && most_iterations > 0, "both_factor lies in (0, 1]");
  const SwapColumns swaps{size_bytes.data(), out_after.data(), free_by.data(), in_start.data(), in_before.data(),
                          out_us.data(), in_us.data(), is_early.data(), static_cast<std::int64_t>(count)};
  check(swaps, ops.count);
  nb::gil_scoped_release release;
  return simulate(ops, swaps, both_factor, most_iterations);
}

Found search_columns(const Double& duration_us, const Int64& load_bytes, const Int64& size_bytes, const Int64& after,
                     const Int64& before, const Double& out_us, const Double& in_us, const Int64& start,
                     std::int64_t budget_bytes, double both_factor, double effort, double enough_us,
                     std::uint64_t seed) {
  const Ops ops = ops_of(duration_us, load_bytes);
  const std::size_t count = size_bytes.shape(0);
  require(after.shape(0) == count && before.shape(0) == count && out_us.shape(0) == count && in_us.shape(0) == count,
          "the columns of candidates differ in length");
  require(both_factor > 0 && both_factor <= 1, "both_factor lies in (0, 1]");
  const Candidates candidates{size_bytes.data(), after.data(), before.data(), out_us.data(), in_us.data(),
                              static_cast<std::int64_t>(count)};
  for (std::size_t c = 0; c < count; ++c)
    require(after(c) >= 0 && after(c) < ops.count && after(c) + 1 < before(c) && before(c) <= after(c) + ops.count,
            "the ops of a candidate are out of order");
  std::vector<std::int64_t> chosen(start.data(), start.data() + start.shape(0));
  for (std::int64_t c : chosen) require(c >= 0 && c < candidates.count, "the start names no candidate");
  nb::gil_scoped_release release;
  return search(ops, candidates, chosen, {budget_bytes, both_factor, effort, enough_us, seed});
}

// For Python: spans of ops within the row, empty ones too.
class Headroom {
 public:
  explicit Headroom(const Int64& bytes) : count_(bytes.shape(0)), slack_({bytes.data(), bytes.data() + count_}) {
    require(count_ > 0, "a row has one op or more");
  }

  void add(std::int64_t begin, std::int64_t end, std::int64_t bytes) {
    check(begin, end);
    slack_.add(begin, end, bytes);
  }
  std::int64_t first_below(std::int64_t begin, std::int64_t end, std::int64_t bytes) const {
    check(begin, end);
    return slack_.first_below(begin, end, bytes);
  }
  std::int64_t last_below(std::int64_t begin, std::int64_t end, std::int64_t bytes) const {
    check(begin, end);
    return slack_.last_below(begin, end, bytes);
  }

 private:
  void check(std::int64_t begin, std::int64_t end) const {
    require(begin >= 0 && end <= count_, "a span lies beyond the row");
  }

  std::int64_t count_;
  Slack slack_;
};

template <typename C, typename Get>
void derived(nb::class_<C>& type, const char* name, Get get) {
  type.def_prop_ro(name, get, nb::rv_policy::move);
}

template <typename C, typename T>
void column(nb::class_<C>& type, const char* name, std::vector<T> C::* field) {
  derived(type, name, [field](const C& self) { return to_numpy(self.*field); });
}

}  // namespace

void register_swapping(nb::module_& m) {
  nb::class_<Headroom>(m, "Headroom")
      .def(nb::init<Int64>(), nb::arg("bytes"))
      .def("add", &Headroom::add, nb::arg("begin"), nb::arg("end"), nb::arg("bytes"))
      .def("first_below", &Headroom::first_below, nb::arg("begin"), nb::arg("end"), nb::arg("bytes"))
      .def("last_below", &Headroom::last_below, nb::arg("begin"), nb::arg("end"), nb::arg("bytes"));
  nb::class_<Simulated> simulated(m, "Simulated");
  simulated.def_ro("iteration_us", &Simulated::iteration_us).def_ro("is_steady", &Simulated::is_steady);
  column(simulated, "start_us", &Simulated::start_us);
  column(simulated, "end_us", &Simulated::end_us);
  column(simulated, "resident_bytes", &Simulated::resident_bytes);
  column(simulated, "out_start_us", &Simulated::out_start_us);
  column(simulated, "out_end_us", &Simulated::out_end_us);
  column(simulated, "in_start_us", &Simulated::in_start_us);
  column(simulated, "in_end_us", &Simulated::in_end_us);
  derived(simulated, "stall_op", [](const Simulated& s) { return to_numpy(s.stalls, &StallRow::op); });
  derived(simulated, "stall_swap", [](const Simulated& s) { return to_numpy(s.stalls, &StallRow::swap); });
  derived(simulated, "stall_is_in", [](const Simulated& s) { return to_numpy(s.stalls, &StallRow::is_in); });
  derived(simulated, "stall_us", [](const Simulated& s) {
    std::vector<double> values;
    for (const StallRow& row : s.stalls) values.push_back(row.us);
    return to_numpy(values);
  });
  m.def("simulate_swaps", &simulate_columns, nb::kw_only(), nb::arg("duration_us"), nb::arg("load_bytes"),
        nb::arg("size_bytes"), nb::arg("out_after"), nb::arg("free_by"), nb::arg("in_start"), nb::arg("in_before"),
        nb::arg("out_us"), nb::arg("in_us"), nb::arg("is_early"), nb::arg("both_factor"),
        nb::arg("most_iterations"));

  nb::class_<Found> found(m, "FoundSwaps");
  found.def_ro("is_feasible", &Found::is_feasible)
      .def_ro("worst_op", &Found::worst_op)
      .def_ro("least_bytes", &Found::least_bytes)
      .def_ro("iteration_us", &Found::iteration_us)
      .def_ro("compute_us", &Found::compute_us)
      .def_ro("evaluations", &Found::evaluations)
      .def_ro("steps", &Found::steps);
  column(found, "chosen", &Found::chosen);
  derived(found, "free_by", [](const Found& f) { return to_numpy(f.schedules, &Schedule::free_by); });
  derived(found, "in_start", [](const Found& f) { return to_numpy(f.schedules, &Schedule::in_start); });
  m.def("search_swaps", &search_columns, nb::kw_only(), nb::arg("duration_us"), nb::arg("load_bytes"),
        nb::arg("size_bytes"), nb::arg("after"), nb::arg("before"), nb::arg("out_us"), nb::arg("in_us"),
        nb::arg("start"), nb::arg("budget_bytes"), nb::arg("both_factor"), nb::arg("effort"), nb::arg("enough_us"),
        nb::arg("seed"));
}

}  // namespace memfit::swapping
