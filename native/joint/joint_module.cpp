#include "joint/joint_module.h"

#include <stdexcept>
#include <vector>

#include "joint/anneal.h"
#include "simulator/arrays.h"

namespace nb = nanobind;

namespace memfit::joint {
namespace {

using Int64 = swapping::In<std::int64_t>;
using Double = swapping::In<double>;
using Flag = swapping::In<std::uint8_t>;
using swapping::to_numpy;

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

// Native code indexes without bounds checks: refuse what would lead it astray.
void within(const Int64& column, std::int64_t low, std::int64_t end) {
  for (std::size_t k = 0; k < column.shape(0); ++k)
    require(column(k) >= low && column(k) < end, "a column names what is not there");
}

Rows rows(const Int64& start, const Int64& values, std::int64_t count, std::int64_t end) {
  require(static_cast<std::int64_t>(start.shape(0)) == count + 1 && start(0) == 0 &&
              start(count) == static_cast<std::int64_t>(values.shape(0)),
          "rows do not end where their values do");
  for (std::int64_t k = 0; k < count; ++k) require(start(k) <= start(k + 1), "rows are out of order");
  within(values, 0, end);
  return {start.data(), values.data()};
}

template <typename T>
void same_length(std::int64_t count, const T& column) {
  require(static_cast<std::int64_t>(column.shape(0)) == count, "columns differ in length");
}

// The columns are kept alive by Python.
class Columns {
 public:
  Columns(Double us, Double again_us, Int64 load_bytes, Int64 begin_bytes, Int64 born_start, Int64 born,
          Int64 reads_start, Int64 reads, Int64 writes_start, Int64 writes, Int64 held_bytes)
      : us_(us), again_us_(again_us), load_(load_bytes), begin_(begin_bytes), born_start_(born_start), born_(born),
        reads_start_(reads_start), reads_(reads), writes_start_(writes_start), writes_(writes), held_(held_bytes) {
    const auto count = static_cast<std::int64_t>(us.shape(0));
    const auto storages = static_cast<std::int64_t>(held_bytes.shape(0));
    require(count > 0, "a trace has one op or more");
    same_length(count, again_us), same_length(count, load_bytes), same_length(count, begin_bytes);
    all_.ops = {count, us_.data(), again_us_.data(), load_.data(), begin_.data(),
                rows(born_start_, born_, count, storages), rows(reads_start_, reads_, count, storages),
                rows(writes_start_, writes_, count, storages)};
    all_.storages = storages;
    all_.held_bytes = held_.data();
  }

  void values(Int64 storage, Int64 writer, Int64 last, Flag remakable, Int64 reads_start, Int64 reads,
              Int64 of_storage_start, Int64 of_storage) {
    const auto count = static_cast<std::int64_t>(storage.shape(0));
    same_length(count, writer), same_length(count, last), same_length(count, remakable);
    within(storage, 0, all_.storages), within(writer, -1, all_.ops.count);
    all_.values = {count, storage.data(), writer.data(), last.data(), remakable.data(),
                   rows(reads_start, reads, count, count), rows(of_storage_start, of_storage, all_.storages, count)};
    for (std::int64_t s = 0; s < all_.storages; ++s)
      require(all_.values.of_storage.begin(s) < all_.values.of_storage.end(s), "a storage has no value");
    value_columns_ = {storage, writer, last, reads_start, reads, of_storage_start, of_storage};
    value_flags_ = {remakable};
  }

  void gaps(Int64 storage, Int64 after, Int64 before, Flag remakable, Flag returns, Int64 of_storage_start,
            Int64 of_storage) {
    const auto count = static_cast<std::int64_t>(storage.shape(0));
    same_length(count, after), same_length(count, before), same_length(count, remakable);
    same_length(count, returns);
    within(storage, 0, all_.storages), within(after, 0, all_.ops.count);
    for (std::int64_t g = 0; g < count; ++g)
      require(after(g) + 1 < before(g) && before(g) <= after(g) + all_.ops.count &&
                  (!remakable(g) || before(g) < all_.ops.count),
              "the ops of a gap are out of order");
    all_.gaps = {count, storage.data(), after.data(), before.data(), nullptr, nullptr, remakable.data(),
                 returns.data(), rows(of_storage_start, of_storage, all_.storages, count)};
    gap_columns_ = {storage, after, before, of_storage_start, of_storage};
    gap_flags_ = {remakable, returns};
  }

  Annealed search(Flag start, Double price_us, Double keep, Double remake, Double out_us, Double in_us,
                  std::int64_t budget_bytes, std::int64_t most_ops, double both_factor, double effort,
                  std::uint64_t seed, bool mends, std::uint8_t waits) const {
    Problem problem = all_;
    for (const Double& column : {price_us, keep, remake, out_us, in_us}) same_length(problem.gaps.count, column);
    same_length(problem.gaps.count, start);
    require(waits <= kTimed, "there are no such waits");
    require(!value_columns_.empty() && !gap_columns_.empty(), "there are no values or no gaps");
    problem.gaps.out_us = out_us.data();
    problem.gaps.in_us = in_us.data();
    problem.budget_bytes = budget_bytes;
    problem.most_ops = most_ops;
    problem.waits = waits;
    problem.both_factor = both_factor;
    const std::vector<std::uint8_t> modes(start.data(), start.data() + start.shape(0));
    for (std::size_t g = 0; g < modes.size(); ++g)
      require(modes[g] <= kForced && (!is_remade(modes[g]) || problem.gaps.remakable[g]) &&
                  (!is_swapped(modes[g]) || out_us(g) < 1e300),
              "the start asks for what may not be done");
    nb::gil_scoped_release release;
    return anneal(problem, modes, {effort, seed, price_us.data(), keep.data(), remake.data(), mends});
  }

 private:
  Double us_, again_us_;
  Int64 load_, begin_, born_start_, born_, reads_start_, reads_, writes_start_, writes_, held_;
  std::vector<Int64> value_columns_, gap_columns_;
  std::vector<Flag> value_flags_, gap_flags_;
  Problem all_{};
};

}  // namespace

void register_joint(nb::module_& m) {
  nb::class_<Annealed> found(m, "FoundChoice");
  found.def_ro("again_us", &Annealed::again_us)
      .def_ro("wait_us", &Annealed::wait_us)
      .def_ro("over_bytes", &Annealed::over_bytes)
      .def_ro("worst_bytes", &Annealed::worst_bytes)
      .def_ro("evaluations", &Annealed::evaluations)
      .def_ro("steps", &Annealed::steps)
      .def_prop_ro("modes", [](const Annealed& self) { return to_numpy(self.modes); }, nb::rv_policy::move)
      .def_prop_ro("returns", [](const Annealed& self) { return to_numpy(self.returns); }, nb::rv_policy::move);
  nb::class_<Columns>(m, "JointColumns")
      .def(nb::init<Double, Double, Int64, Int64, Int64, Int64, Int64, Int64, Int64, Int64, Int64>(), nb::kw_only(),
           nb::arg("us"), nb::arg("again_us"), nb::arg("load_bytes"), nb::arg("begin_bytes"), nb::arg("born_start"),
           nb::arg("born"), nb::arg("reads_start"), nb::arg("reads"), nb::arg("writes_start"), nb::arg("writes"),
           nb::arg("held_bytes"))
      .def("values", &Columns::values, nb::kw_only(), nb::arg("storage"), nb::arg("writer"), nb::arg("last"),
           nb::arg("remakable"), nb::arg("reads_start"), nb::arg("reads"), nb::arg("of_storage_start"),
           nb::arg("of_storage"))
      .def("gaps", &Columns::gaps, nb::kw_only(), nb::arg("storage"), nb::arg("after"), nb::arg("before"),
           nb::arg("remakable"), nb::arg("returns"), nb::arg("of_storage_start"), nb::arg("of_storage"))
      .def("search", &Columns::search, nb::kw_only(), nb::arg("start"), nb::arg("price_us"), nb::arg("keep"),
           nb::arg("remake"), nb::arg("out_us"),
           nb::arg("in_us"), nb::arg("budget_bytes"), nb::arg("most_ops"), nb::arg("both_factor"),
           nb::arg("effort"), nb::arg("seed"), nb::arg("mends"), nb::arg("waits"));
}

}  // namespace memfit::joint
