// Iterations' ends, and recordings.
#include <algorithm>
#include <iterator>

#include "../held.h"
#include "../observer.h"
#include "bindings.h"

namespace memfit {

namespace {

void set_phase(const std::string& name) {
  auto known = std::find(std::begin(kPhases), std::end(kPhases), name);
  if (known == std::end(kPhases)) throw py::value_error("there is no phase '" + name + "'");
  const auto phase = static_cast<Phase>(known - std::begin(kPhases));
  Engine::get().governing([&](Session& session) { session.progress.set_phase(phase); });
}

py::list phases() {
  py::list names;
  for (const char* name : kPhases) names.append(name);
  return names;
}

void boundary(bool is_step) {
  Engine::get().governing([&](Session& session) { is_step ? session.progress.on_step() : session.progress.on_pass(); });
}

bool recorded_backward() {
  return Engine::get().in_session([](Session& session) { return session.recorder.has_backward(); });
}

void start_recording(bool at_boundary) {
  Engine::get().governing([&](Session& session) { session.progress.start_recording(at_boundary); });
}

template <typename Action>
auto of_iterations(const Action& action) {
  return Engine::get().in_session([&](Session& session) { return action(session.progress.iterations()); });
}

// As bytes, one copy at a time: a recording is large.
py::bytes moved_out(std::vector<int64_t>& values) {
  py::bytes bytes = as_bytes(values);
  give_back(values);
  return bytes;
}

py::dict recording_so_far(bool goes_on) {
  Recording recording = Engine::get().in_session(
      [&](Session& session) { return goes_on ? session.recording_so_far() : session.stop_recording(); });
  give_back(recording.tokens);
  py::dict d;
  d["ops"] = moved_out(recording.ops);
  d["accesses"] = moved_out(recording.accesses);
  d["ticks"] = moved_out(recording.ticks);
  d["handovers"] = moved_out(recording.handovers);
  d["before"] = moved_out(recording.before);
  d["pins"] = moved_out(recording.pins);
  d["stored"] = moved_out(recording.stored);
  d["ghosts"] = moved_out(recording.ghosts);
  d["shapes"] = recording.shapes;
  d["columns"] = py::dict(py::arg("ops") = names_of(Recording::kOps), py::arg("accesses") = names_of(Recording::kAccesses),
                          py::arg("ticks") = names_of(Recording::kTicks), py::arg("handovers") = names_of(Recording::kHandovers),
                          py::arg("before") = names_of(Recording::kBefore), py::arg("pins") = names_of(Recording::kPins),
                          py::arg("stored") = names_of(Recording::kStored));
  d["phases"] = phases();
  d["op_names"] = op_names();
  d["sources"] = sources();
  return d;
}

}  // namespace

void bind_recordings(py::module_& m) {
  m.def("set_phase", &set_phase, py::arg("phase"));
  m.def("boundary", &boundary, py::arg("is_step") = true, NoGil());
  m.def("recorded_backward", &recorded_backward, NoGil());
  m.def("reject_period", [] { of_iterations([](Iterations& all) { all.reject_period(); }); });
  m.def("signatures", [] { return of_iterations([](Iterations& all) { return all.signatures(); }); });
  m.def("signature_counts", [] { return of_iterations([](Iterations& all) { return all.signature_counts(); }); });
  m.def("start_recording", &start_recording, py::arg("at_boundary") = false, NoGil());
  m.def("stop_recording", [] { return recording_so_far(/*goes_on=*/false); });
  m.def("recording_so_far", [] { return recording_so_far(/*goes_on=*/true); });
  m.def("recorded_ticks", [] { return Engine::get().in_session([](Session& session) { return session.recorder.tick_count(); }); }, NoGil());
  m.def("watch_meta", [] { Engine::get().watch_meta(); }, NoGil());
  m.def("note_shapes", [] { Engine::get().in_session([](Session& session) { session.recorder.note_shapes(); }); }, NoGil());
  m.def("iteration_marks", [] { return of_iterations([](Iterations& all) { return all.marks(); }); });
  m.def("tick_marks", [] { return of_iterations([](Iterations& all) { return all.tick_marks(); }); });
}

}  // namespace memfit
