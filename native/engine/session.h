// Session: every storage of one device, and where its bytes are, from start to stop. `Engine::start` makes it, and what
// it knows goes with it: `Lasting` outlives it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "admission.h"
#include "adoption.h"
#include "allocation.h"
#include "at_once.h"
#include "blocks.h"
#include "clearing.h"
#include "compaction.h"
#include "capturing.h"
#include "copies.h"
#include "discarding.h"
#include "forecast.h"
#include "growth.h"
#include "in_place.h"
#include "lasting.h"
#include "memory.h"
#include "moves.h"
#include "needs.h"
#include "notices.h"
#include "ops.h"
#include "ordinary.h"
#include "paging/paging.h"
#include "placing.h"
#include "planned.h"
#include "preparing.h"
#include "progress.h"
#include "refusals.h"
#include "residency.h"
#include "restoring.h"
#include "room.h"
#include "shelf.h"
#include "splitting.h"
#include "stats.h"
#include "stress.h"
#include "timeline.h"
#include "trimming.h"
#include "uses.h"

namespace memfit {

struct SessionSettings {
  Device& device;
  size_t budget = 0;  // 0: no limit yet
  size_t most = 0;    // no arena without a budget is larger than this; 0: as large as the device has it
  bool grows = false;   // rather than fail, an op may have more than the budget
  bool others = false;  // other threads may be in the midst of an op that nobody has seen begin
  std::shared_ptr<Tier> tier;
};

// Its members are its parts.
struct Session {
  // `limit`: of the arena, in bytes; `most`: what it may ever grow to. Raises std::bad_alloc when the system does not give
  // so many addresses.
  Session(Lasting& lasting, const SessionSettings& settings, size_t limit, size_t most);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // From now on what has to leave without a plan is dropped where it is known to come out the same, and where that takes less
  // time than its copies over a link of so many bytes a nanosecond.
  void allow_drops(double out_per_ns, double in_per_ns);
  // Lower the arena's limit; moves or swaps out what lies beyond it. Raises TierFailure.
  void set_budget(size_t budget);
  // From an iteration's end on. False when the plan does not fit: the reactive mode goes on. `resident`: ids of the
  // blocks that stay in the arena throughout; what the plan swaps comes and goes; all else makes way for the zone.
  // With what collectives that go on have held so far.
  Recording stop_recording();
  // As it would be returned now; it goes on.
  Recording recording_so_far();
  bool use_plan(PlanTables plan, const std::vector<uint64_t>& resident);
  Stats figures() const;
  // Raises std::logic_error if the books of its arena are not in order.
  void check() const;
  void reset_peaks();
  // Neither over, nor inherited by a forked child.
  bool is_open() const { return !memory.is_closed; }
  // Nothing is under way any more, and nobody waits. Storages are still where they are.
  void close();
  // A child is to come,
  void before_fork();
  // and this process is it: all but what its ops read is forgotten.
  void become_inert(ThreadState& forking);

  int calls = 0;  // of threads that hold the mutex, or wait for it in the midst of a call
  bool is_over = false;  // the last of these destroys it

  // Each is given those above it that it uses.
  Lasting& lasting;
  Memory memory;
  Stats stats;
  Notices notices{lasting.flags.has_notices};
  Forecast forecast;
  Timeline timeline;
  Recorder recorder{lasting.flags.records};
  Needs needs;
  OrdinaryMemory ordinary;
  Restoring restoring{lasting.books};
  Moves moves{lasting.books, memory, stats, notices, recorder};
  TriedCalls tried;
  Discarding discarding{lasting.books, memory, stats, lasting.flags, lasting.turns, tried, moves};
  Costs costs{lasting.books, forecast, discarding};
  Residency residency{memory, stats, lasting.turns, moves, discarding, costs};
  Compaction compaction{lasting.books, memory, moves, residency};
  Capturing capturing{lasting, memory};
  Shelf shelf{lasting.books, memory, stats, lasting.turns, moves, residency, compaction};
  Growth growth{lasting.books, memory, stats, notices, lasting.turns, residency, compaction, shelf};
  Refusals refusals{lasting.books, memory, stats, residency, lasting.last_failure};
  Copies copies{memory, moves, stats, timeline};
  Placing placing{memory, stats, moves, residency, compaction, shelf, planned};
  Clearing clearing{memory, moves, residency, compaction, shelf, placing};
  Planned planned{{lasting.books, memory, stats, forecast, moves, residency, discarding, shelf, clearing, copies, tried}};
  Progress progress{{lasting.books, memory, stats, forecast, planned, copies, recorder, timeline, lasting.ghosts}};
  Blocks blocks{lasting.books, memory, shelf, planned};
  Admission admission{lasting.books, memory, lasting.turns, lasting.collectives, lasting.scratch, residency, planned};
  Room room{{memory, residency, compaction, shelf, placing, admission, growth, refusals, restoring, paging}};
  InPlace in_place{lasting.books, memory, discarding, tried};
  Paging paging{{lasting.books, memory, stats, notices, moves, residency, shelf, placing, needs, refusals, planned}};
  Allocation allocation{{lasting.books, memory, stats, lasting.turns, forecast, moves, discarding, shelf, placing, copies, planned,
                         recorder, needs, refusals, room, blocks, in_place, paging, lasting.scratch}};
  Adoption adoption{{lasting.books, memory, stats, moves, compaction, placing, recorder, blocks, ordinary}};
  Trimming trimming{lasting.books, memory, stats, allocation};
  Uses uses{lasting.books, memory, forecast, recorder, lasting.ghosts, adoption};
  Preparing preparing{{lasting.books, memory, stats, residency, compaction, shelf, planned, recorder, needs, admission, room, adoption, uses}};
  Pressing pressing{lasting.books, memory, moves, residency, discarding};
  Splitting splitting{{lasting.books, memory, stats, notices, lasting.gate, residency, moves, planned,
                       lasting.stress}};
  Ops ops{*this};
  AtOnce at_once{*this};

 private:
  void complete_recording();
  size_t bytes_immovable_beyond(size_t most) const;
  size_t held_for_records() const;
  void begin_to_track();
  void forget_values();
  void forget_recipes();
  void keep_what_is_not_reachable();
};

}  // namespace memfit
