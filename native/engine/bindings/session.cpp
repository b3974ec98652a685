// A session's beginning, its budget, its figures and its end.
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../stats.h"
#include "../surroundings.h"
#include "../undisturbed.h"
#include "bindings.h"

namespace memfit {

namespace {

Faults faults_of(const py::dict& d) {
  return {d["fail_write"].cast<int64_t>(), d["fail_read"].cast<int64_t>(), d["corrupt_read"].cast<int64_t>(),
          d["repeat"].cast<bool>()};
}

Link link_of(const py::dict& d) {
  return {d["link_bytes_per_second"].cast<double>(), d["link_latency_seconds"].cast<double>(),
          d["link_changes_at"].cast<int64_t>(), d["link_change"].cast<double>()};
}

// `disturbance`: what shall go wrong with it, for tests; empty if nothing shall.
TierRecipe tier_recipe(const py::dict& tier, const py::dict& disturbance) {
  TierRecipe recipe;
  recipe.kind = tier["kind"].cast<std::string>();
  recipe.folder = tier["folder"].cast<std::string>();
  recipe.capacity = tier["capacity_bytes"].cast<size_t>();
  recipe.checked = tier["checked"].cast<bool>();
  recipe.compresses = tier["compress"].cast<bool>();
  if (disturbance.empty()) return recipe;
  recipe.faults = faults_of(disturbance);
  recipe.link = link_of(disturbance);
  recipe.longest_delay_us = disturbance["longest_delay_us"].cast<int64_t>();
  recipe.no_threads = disturbance["no_threads"].cast<bool>();
  return recipe;
}

void start(const std::string& device, size_t budget, size_t most, bool grows, const py::dict& tier,
           const py::dict& disturbance, bool others) {
  TierRecipe recipe = tier_recipe(tier, disturbance);
  py::gil_scoped_release no_gil;
  telling_of_tiers([&] {
    Device& where = find_device(c10::Device(device));
    Engine::get().start({where, budget, most, grows, others, make_tier(where, recipe)});
  });
}

py::dict stop() {
  StopReport report;
  {
    py::gil_scoped_release no_gil;
    report = Engine::get().stop();
  }
  py::dict result;
  result["restored"] = report.restored;
  result["left_in_arena"] = report.left_in_arena;
  result["lost"] = report.lost;
  return result;
}

py::dict stats() {
  Stats s;
  {
    py::gil_scoped_release no_gil;
    s = Engine::get().stats();
  }
  py::dict d;
#define MEMFIT_ENTRY(type, name, meaning) d[#name] = s.name;
  MEMFIT_STATS(MEMFIT_ENTRY)
#undef MEMFIT_ENTRY
  return d;
}

void set_budget(size_t budget) {
  py::gil_scoped_release no_gil;
  telling_of_tiers([&] { Engine::get().set_budget(budget); });
}

void set_peak(size_t bytes) {
  Engine::get().in_session([&](Session& session) { session.refusals.set_peak(bytes); });
}

void allow_growth(bool allowed) {
  Engine::get().in_session([&](Session& session) { session.growth.allow(allowed); });
}

void set_mapping(const std::string& when, const std::string& mechanism, uint64_t dies_after) {
  static const std::map<std::string, Paging::When> whens = {
      {"never", Paging::When::kNever}, {"auto", Paging::When::kInsteadOfFailing}, {"always", Paging::When::kAlways}};
  static const std::map<std::string, PageFrames::Mechanism> mechanisms = {{"", PageFrames::Mechanism::kBest},
                                                                      {"userfaultfd", PageFrames::Mechanism::kUserfaults},
                                                                      {"signals", PageFrames::Mechanism::kSignals}};
  static const std::map<std::string, WithinReach::By> reaches = {{"zero-copy", WithinReach::By::kTier}, {"managed", WithinReach::By::kManaged}};
  Paging::Settings settings{whens.at(when), {}, {}, {dies_after}};
  if (const auto reach = reaches.find(mechanism); reach != reaches.end())
    settings.reach = reach->second;
  else
    settings.mechanism = mechanisms.at(mechanism);
  Engine::get().in_session([&](Session& session) { session.paging.set(settings); });
}

std::string mapping(size_t budget) {
  return Engine::get().in_session([budget](Session& session) -> std::string {
    if (!session.paging.is_on_within(budget)) return "never";
    return session.paging.is_direct() ? "direct" : "frames";
  });
}

size_t page_bytes(size_t offset) {
  size_t bytes = Engine::get().in_session([&](Session& session) { return session.memory.device->page_at(offset); });
  return std::max<size_t>(bytes, 1);
}

py::list split_answers() {
  std::unordered_map<uint64_t, Answer> all;
  {
    py::gil_scoped_release no_gil;
    all = Engine::get().split_answers();
  }
  py::list rows;
  for (const auto& [key, answer] : all) {
    py::list outputs, equal;
    for (const OutputLayout& output : answer.outputs)
      outputs.append(py::make_tuple(static_cast<int>(output.dtype), output.sizes, output.strides));
    for (const Answer::Equal& each : answer.equal) equal.append(py::make_tuple(each.way, each.steps));
    rows.append(py::make_tuple(answer.op, key, answer.workspace_bytes, answer.allocated_bytes, outputs, equal));
  }
  return rows;
}

void know_splits(const py::list& rows) {
  std::unordered_map<uint64_t, Answer> known;
  for (const py::handle& row : rows) {
    const auto fields = row.cast<py::tuple>();
    Answer answer;
    answer.op = fields[0].cast<std::string>();
    answer.workspace_bytes = fields[2].cast<size_t>();
    answer.allocated_bytes = fields[3].cast<size_t>();
    for (const py::handle& output : fields[4].cast<py::list>()) {
      const auto layout = output.cast<py::tuple>();
      answer.outputs.push_back({layout[1].cast<std::vector<int64_t>>(), layout[2].cast<std::vector<int64_t>>(),
                                static_cast<c10::ScalarType>(layout[0].cast<int>())});
    }
    for (const py::handle& each : fields[5].cast<py::list>()) {
      const auto [way, steps] = each.cast<std::pair<int32_t, int64_t>>();
      answer.equal.push_back({way, steps});
    }
    known[fields[1].cast<uint64_t>()] = std::move(answer);
  }
  py::gil_scoped_release no_gil;
  Engine::get().know_splits(std::move(known));
}

using TriedCall = std::tuple<bool, uint64_t, bool, uint64_t>;

std::vector<TriedCall> tried_calls() {
  return Engine::get().in_session([](Session& session) {
    std::vector<TriedCall> rows;
    for (const auto& [key, is_same] : session.tried.over) rows.emplace_back(true, key, is_same, 0);
    for (const auto& [key, again] : session.tried.again) rows.emplace_back(false, key, again.is_same, again.ns);
    return rows;
  });
}

void know_tried_calls(const std::vector<TriedCall>& rows) {
  Engine::get().in_session([&](Session& session) {
    for (const auto& [is_over, key, is_same, ns] : rows) {
      if (is_over)
        session.tried.over.emplace(key, is_same);
      else
        session.tried.again.emplace(key, TriedCalls::Again{is_same, ns});
    }
  });
}

void allow_drops(double out, double in) {
  Engine::get().in_session([&](Session& session) { session.allow_drops(out, in); });
}

void set_stress(const std::string& kind) {
  static const std::map<std::string, Stress> kinds = {
      {"evict", Stress::kEvict}, {"move", Stress::kMove}, {"recompute", Stress::kRecompute}, {"split", Stress::kSplit}};
  const auto found = kinds.find(kind);
  Engine::get().set_stress(found != kinds.end() ? found->second : Stress::kNone);
}

std::map<std::string, int32_t> surroundings() {
  Surroundings::read_of_gpus();
  return Surroundings::now().by_name();
}

py::object within(const std::map<std::string, int32_t>& surroundings, const py::object& action) {
  const Within as_given(Surroundings::of(surroundings));
  return action();
}

}  // namespace

size_t alignment() {
  size_t bytes = Engine::get().in_session([](Session& session) { return session.memory.arena->ranges.alignment(); });
  return std::max<size_t>(bytes, 1);
}

void bind_session(py::module_& m) {
  m.def("start", &start, py::arg("device"), py::arg("budget_bytes"), py::arg("most_bytes"), py::arg("grows"),
        py::arg("tier"), py::arg("disturbance"), py::arg("others"));
  m.def("stop", &stop);
  m.def("active", [] { return Engine::get().active(); });
  m.def("is_inert", [] { return Engine::get().is_inert(); });
  m.def("stats", &stats);
  m.def("reset_peaks", [] { Engine::get().in_session([](Session& session) { session.reset_peaks(); }); }, NoGil());
  m.def("set_budget", &set_budget, py::arg("budget_bytes"));
  m.def("check", [] { Engine::get().in_session([](Session& session) { session.check(); }); }, NoGil());
  m.def("set_peak", &set_peak, py::arg("peak_bytes"), NoGil());
  m.def("allow_growth", &allow_growth, py::arg("allowed"), NoGil());
  m.def("mapping", &mapping, py::arg("budget_bytes"), NoGil());
  m.def("set_mapping", &set_mapping, py::arg("when"), py::arg("mechanism") = "", py::arg("dies_after") = 0, NoGil());
  m.def("allow_splits", [](bool allowed, bool tries_ahead, bool forced, bool planned_for) { Engine::get().allow_splits(allowed, tries_ahead, forced, planned_for); },
        py::arg("allowed"), py::arg("tries_ahead"), py::arg("forced"), py::arg("planned_for") = false, NoGil());
  m.def("split_answers", &split_answers);
  m.def("know_splits", &know_splits, py::arg("rows"));
  m.def("tried_calls", &tried_calls, NoGil());
  m.def("allow_drops", &allow_drops, py::arg("out_gb_per_s"), py::arg("in_gb_per_s"), NoGil());
  m.def("know_tried_calls", &know_tried_calls, py::arg("rows"), NoGil());
  m.def("alignment", &alignment, NoGil());
  m.def("page_bytes", &page_bytes, py::arg("offset"), NoGil());
  m.def("undisturbed", &undisturbed, py::arg("action"), py::arg("undo"));
  m.def("set_stress", &set_stress, py::arg("kind"));
  m.def("surroundings", &surroundings);
  m.def("within", &within, py::arg("surroundings"), py::arg("action"));
}

}  // namespace memfit
