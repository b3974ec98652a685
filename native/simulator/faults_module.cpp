#include <algorithm>
#include <limits>

#include "simulator/arrays.h"
#include "simulator/faults.h"
#include "simulator/simulator_module.h"

namespace nb = nanobind;

namespace memfit::swapping {
namespace {

using Int64 = In<std::int64_t>;
using Double = In<double>;
using Flag = In<std::uint8_t>;

// As numpy columns; native code indexes without bounds checks, so that what would lead it astray is refused here.
struct Ranges {
  Int64 begin, first, last;

  std::size_t count() const { return first.shape(0); }

  RangeColumns columns(std::int64_t ops, std::int64_t chunks) const {
    require(static_cast<std::int64_t>(begin.shape(0)) == ops + 1 && last.shape(0) == count(),
            "the columns of ranges differ in length");
    require(begin(0) == 0 && begin(ops) == static_cast<std::int64_t>(count()), "the ranges are not those of the ops");
    for (std::int64_t op = 0; op < ops; ++op) require(begin(op) <= begin(op + 1), "the ops of ranges do not ascend");
    for (std::size_t r = 0; r < count(); ++r)
      require(0 <= first(r) && first(r) <= last(r) && last(r) <= chunks, "a range lies beyond the chunks");
    return {begin.data(), first.data(), last.data()};
  }
};

ChunkColumns chunks_of(const Int64& size_bytes, const Flag& has_copy, const Int64& block_begin,
                       const Int64& window_bytes) {
  const std::size_t count = size_bytes.shape(0);
  require(has_copy.shape(0) == count && block_begin.shape(0) > 0, "the columns of chunks differ in length");
  const std::size_t blocks = block_begin.shape(0) - 1;
  require(block_begin(0) == 0 && block_begin(blocks) == static_cast<std::int64_t>(count),
          "the blocks are not made of the chunks");
  for (std::size_t b = 0; b < blocks; ++b) require(block_begin(b) < block_begin(b + 1), "a block has no chunk");
  std::int64_t narrowest = std::numeric_limits<std::int64_t>::max();
  for (std::size_t op = 0; op < window_bytes.shape(0); ++op) narrowest = std::min(narrowest, window_bytes(op));
  for (std::size_t c = 0; c < count; ++c)
    require(0 < size_bytes(c) && size_bytes(c) <= narrowest, "a chunk is larger than the window");
  return {size_bytes.data(), has_copy.data(), static_cast<std::int64_t>(count), block_begin.data(),
          static_cast<std::int64_t>(blocks)};
}

TouchColumns touches_of(const Ranges& ranges, const RangeColumns& columns, const Int64& sweeps, const Int64& draws,
                        const Int64& run, const Int64& next_op, const Flag& writes) {
  for (const Int64& column : {sweeps, draws, run, next_op})
    require(column.shape(0) == ranges.count(), "the columns of touches differ in length");
  require(writes.shape(0) == ranges.count(), "the columns of touches differ in length");
  for (std::size_t t = 0; t < ranges.count(); ++t) {
    require(sweeps(t) >= 0 && draws(t) >= 0, "a touch has negative sweeps or draws");
    require(draws(t) == 0 || (1 <= run(t) && run(t) <= ranges.last(t) - ranges.first(t)), "a run exceeds its range");
  }
  return {columns, sweeps.data(), draws.data(), run.data(), next_op.data(), writes.data()};
}

Faulted page_columns(const Double& duration_us, const Int64& window_bytes, const Int64& size_bytes,
                     const Flag& has_copy, const Int64& block_begin,
                     const Ranges& touches, const Int64& sweeps, const Int64& draws, const Int64& run,
                     const Int64& next_op, const Flag& writes, const Ranges& fetches, const Int64& for_op,
                     const Ranges& dismissed, const Ranges& dropped, const PagingRates& rates, std::uint64_t seed) {
  const auto ops = static_cast<std::int64_t>(duration_us.shape(0));
  const ChunkColumns chunks = chunks_of(size_bytes, has_copy, block_begin, window_bytes);
  require(static_cast<std::int64_t>(window_bytes.shape(0)) == ops, "there is not one window an op");
  require(for_op.shape(0) == fetches.count(), "the columns of fetches differ in length");
  const Paged paged{duration_us.data(),
                    window_bytes.data(),
                    ops,
                    chunks,
                    touches_of(touches, touches.columns(ops, chunks.count), sweeps, draws, run, next_op, writes),
                    {fetches.columns(ops, chunks.count), for_op.data()},
                    dismissed.columns(ops, chunks.count),
                    dropped.columns(ops, chunks.count)};
  nb::gil_scoped_release release;
  return page(paged, rates, seed);
}

PagingRates rates_of(double in_us_per_byte, double out_us_per_byte, double both_factor,
                     double fault_us, double request_us, std::int64_t chunks_per_fault, bool keeps_copies, bool fresh_faults, int leaves) {
  require(both_factor > 0 && both_factor <= 1, "both_factor lies in (0, 1]");
  require(in_us_per_byte >= 0 && out_us_per_byte >= 0 && fault_us >= 0 && request_us >= 0, "a time is negative");
  require(chunks_per_fault > 0 && leaves >= 0 && leaves <= static_cast<int>(Leaves::kUsedLast), "there is no such rule");
  return {in_us_per_byte, out_us_per_byte, both_factor, fault_us,
          request_us,   chunks_per_fault, keeps_copies, fresh_faults, static_cast<Leaves>(leaves)};
}

template <typename T>
void column(nb::class_<Faulted>& type, const char* name, std::vector<T> Faulted::* field) {
  type.def_prop_ro(name, [field](const Faulted& self) { return to_numpy(self.*field); }, nb::rv_policy::move);
}

}  // namespace

void register_faults(nb::module_& m) {
  nb::class_<Ranges>(m, "ChunkRanges")
      .def("__init__", [](Ranges* self, Int64 begin, Int64 first, Int64 last) {
        new (self) Ranges{std::move(begin), std::move(first), std::move(last)};
      }, nb::arg("begin"), nb::arg("first"), nb::arg("last"));
  nb::class_<PagingRates>(m, "PagingRates")
      .def("__init__", [](PagingRates* self, double in_us_per_byte, double out_us_per_byte,
                          double both_factor, double fault_us, double request_us, std::int64_t chunks_per_fault,
                          bool keeps_copies, bool fresh_faults, int leaves) {
        new (self) PagingRates(rates_of(in_us_per_byte, out_us_per_byte, both_factor, fault_us,
                                        request_us, chunks_per_fault, keeps_copies, fresh_faults, leaves));
      }, nb::kw_only(), nb::arg("in_us_per_byte"), nb::arg("out_us_per_byte"),
         nb::arg("both_factor"), nb::arg("fault_us"), nb::arg("request_us"), nb::arg("chunks_per_fault"),
         nb::arg("keeps_copies"), nb::arg("fresh_faults"), nb::arg("leaves"));
  nb::class_<Faulted> faulted(m, "Faulted");
  column(faulted, "end_us", &Faulted::end_us);
  column(faulted, "faults", &Faulted::faults);
  column(faulted, "bytes_in", &Faulted::bytes_in);
  column(faulted, "bytes_out", &Faulted::bytes_out);
  column(faulted, "used_bytes", &Faulted::used_bytes);
  column(faulted, "missed_op", &Faulted::missed_op);
  column(faulted, "missed_block", &Faulted::missed_block);
  m.def("simulate_faults", &page_columns, nb::kw_only(), nb::arg("duration_us"), nb::arg("window_bytes"),
        nb::arg("size_bytes"), nb::arg("has_copy"), nb::arg("block_begin"), nb::arg("touches"), nb::arg("sweeps"), nb::arg("draws"),
        nb::arg("run"), nb::arg("next_op"), nb::arg("writes"), nb::arg("fetches"), nb::arg("for_op"),
        nb::arg("dismissed"), nb::arg("dropped"), nb::arg("rates"), nb::arg("seed"));
}

}  // namespace memfit::swapping
