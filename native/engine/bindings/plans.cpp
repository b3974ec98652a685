// Plans put in force, what came of them, and how fast a tier is.
#include "../hash.h"
#include "../measure.h"
#include "../plan_columns.h"
#include "bindings.h"

namespace memfit {

namespace {

bool use_plan(const Columns& takes, size_t zone_bytes, size_t iterations, const Columns& swaps, const Columns& remakes,
              const std::vector<uint64_t>& resident, bool at_boundary, bool is_another, std::optional<size_t> zone_offset, uint64_t kind) {
  py::gil_scoped_release no_gil;
  PlanTables plan = plan_tables(takes, zone_bytes, iterations, swaps, remakes, alignment());
  plan.at_once = at_boundary;
  plan.is_another = is_another;
  plan.zone_offset = zone_offset;
  plan.kind = kind;
  return Engine::get().governing([&](Session& session) { return session.use_plan(std::move(plan), resident); });
}

// (out, in, out while the other way is busy, in likewise), in seconds.
std::tuple<double, double, double, double> measure_tier(const std::string& kind, const std::string& folder, size_t size,
                                                        size_t repeats) {
  py::gil_scoped_release no_gil;
  return telling_of_tiers([&]() -> std::tuple<double, double, double, double> {
    std::shared_ptr<Tier> tier = make_tier(host(), {kind, folder, 4 * size});
    LinkTimes times = measure_link(*tier, size, repeats);
    return {times.out, times.in, times.out_beside, times.in_beside};
  });
}

// What cannot move and does not lie on the shelf: its offset in the arena, its bytes and its number.
std::vector<std::tuple<size_t, size_t, uint64_t>> immovable() {
  return Engine::get().in_session([](Session& session) {
    std::vector<std::tuple<size_t, size_t, uint64_t>> found;
    for (const Block* block : session.lasting.books.all()) {
      const bool is_here = session.memory.holds(*block) && !session.memory.arena->on_shelf(block->region);
      if (is_here && !block->copy && !session.residency.may_move(*block))
        found.emplace_back(block->region->offset, block->region->size, block->id);
    }
    return found;
  });
}

bool has_plan() {
  return Engine::get().in_session([](Session& session) { return session.planned.is_in_force(); });
}

// (How many drops have not been tried, and those that do not go as planned, with the reason.)
std::pair<size_t, std::vector<std::pair<uint32_t, std::string>>> tried_drops() {
  return Engine::get().in_session([](Session& session) {
    std::pair<size_t, std::vector<std::pair<uint32_t, std::string>>> tried;
    Remakings::Tried found = session.planned.tried();
    tried.first = found.untried;
    for (Remakings::Failed& failed : found.failed) tried.second.emplace_back(failed.drop, std::move(failed.why));
    return tried;
  });
}

std::vector<uint32_t> refused_handovers() {
  return Engine::get().in_session([](Session& session) { return session.planned.tried().refused; });
}

void start_timeline() {
  Engine::get().governing([](Session& session) { session.progress.start_timeline(); });
}

py::dict stop_timeline() {
  Timeline timeline;
  {
    py::gil_scoped_release no_gil;
    timeline = Engine::get().in_session([](Session& session) { return session.progress.stop_timeline(); });
  }
  py::dict d;
  d["copies"] = as_bytes(timeline.copies());
  d["op_begins"] = as_bytes(timeline.op_begins());
  d["iteration_ends"] = as_bytes(timeline.iteration_ends_rows());
  d["columns"] = py::dict(py::arg("copies") = names_of(Timeline::kCopies), py::arg("op_begins") = names_of(Timeline::kOpBegins),
                          py::arg("iteration_ends") = names_of(Timeline::kIterationEnds));
  return d;
}

}  // namespace

void bind_plans(py::module_& m) {
  m.def("use_plan", &use_plan, py::arg("takes"), py::arg("zone_bytes"), py::arg("iterations"), py::arg("swaps"),
        py::arg("remakes"), py::arg("resident"), py::arg("at_boundary"), py::arg("is_another") = false, py::arg("zone_offset") = py::none(), py::arg("kind") = 0);
  m.def("immovable", &immovable, NoGil());
  m.def("has_plan", &has_plan, NoGil());
  m.def("drop_plan", [] { Engine::get().governing([](Session& session) { session.planned.drop(); }); }, NoGil());
  m.def("tried_drops", &tried_drops, NoGil());
  m.def("refused_handovers", &refused_handovers, NoGil());
  m.def("op_hash", [](const std::string& name, bool with_grad) { return identity_of(fnv1a(name), with_grad); }, py::arg("name"),
        py::arg("with_grad"));
  m.def("start_timeline", &start_timeline, NoGil());
  m.def("stop_timeline", &stop_timeline);
  m.def("measure_tier", &measure_tier, py::arg("kind"), py::arg("folder"), py::arg("size_bytes"), py::arg("repeats"));
}

}  // namespace memfit
