// Recorder: the raw events of one iteration, in program order, for the tracing package to turn into a Trace.
// It has a method for each kind of event.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "block.h"
#include "device.h"
#include "held.h"
#include "thread_state.h"

namespace memfit {

enum class Phase : int64_t { kForward = 0, kBackward = 1, kOptimizer = 2 };
inline constexpr const char* kPhases[] = {"forward", "backward", "optimizer"};  // by number

// A row of an op. Sources are indices into `sources()`, -1 for none; `waited_ns`, for room and for the op's inputs, is
// not its own work; `with_grad`: whether gradients were computed.
#define MEMFIT_OP_COLUMNS(X) \
  X(name) X(phase) X(source) X(start_ns) X(end_ns) X(first_tick) X(workspace_bytes) X(split_bytes) X(forward_source) X(waited_ns) X(with_grad)
struct OpColumn {
#define MEMFIT_COLUMN(name) name,
  enum : size_t { MEMFIT_OP_COLUMNS(MEMFIT_COLUMN) count };
#undef MEMFIT_COLUMN
};

struct Recording {
  // The columns of each table, in order: Python reads them by these names.
#define MEMFIT_NAME(name) #name,
  static constexpr const char* kOps[] = {MEMFIT_OP_COLUMNS(MEMFIT_NAME)};
#undef MEMFIT_NAME
  static constexpr const char* kAccesses[] = {"op", "block", "is_write"};
  // One row an allocation or a free (its bytes are negative). `ops_begun`: so far, the one it may be in included.
  static constexpr const char* kTicks[] = {"block", "bytes", "ops_begun", "inside_op", "source"};
  // One row for each input whose place the op's output may take.
  static constexpr const char* kHandovers[] = {"op", "giver", "taker"};
  // One row a block that was alive at the start. `stays`: where it is, though no storage is behind it.
  static constexpr const char* kBefore[] = {"block", "bytes", "stays"};
  // One row a block that was pinned, or found to be no storage's: by the ops begun and the ticks until then.
  static constexpr const char* kPins[] = {"block", "ops_begun", "inside_op", "tick", "source"};
  // One row a block that went out to a tier that compresses: what was written of it.
  static constexpr const char* kStored[] = {"block", "bytes"};

  std::vector<int64_t> ops, accesses, ticks, handovers, before, pins, stored;
  std::vector<int64_t> ghosts;       // the blocks that are ghosts
  std::vector<std::string> shapes;   // of op i's tensors, where they are noted; may be shorter than ops
  std::vector<uint64_t> tokens;  // one an op: what period detection compares
  int64_t op_count() const { return static_cast<int64_t>(ops.size() / std::size(kOps)); }
  int64_t tick_count() const { return static_cast<int64_t>(ticks.size() / std::size(kTicks)); }
  size_t held() const { return held_bytes(ops, accesses, ticks, handovers, before, pins, stored, ghosts, shapes, tokens); }
};

class Recorder {
 public:
  // `on`: whether a recording is under way, for threads that are about to look up a source, which takes the interpreter.
  explicit Recorder(std::atomic<bool>& on) : on_(on) {}

  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Whether the thread's op is recorded: it began in this recording.
  bool records(const ThreadState& thread) const { return on() && thread.row >= 0 && thread.recording == number_; }
  void note_shapes() { notes_shapes_ = true; }  // of every op's tensors, for the rest of the session
  bool records_shapes(const ThreadState& thread) const { return notes_shapes_ && records(thread); }
  uint64_t number() const { return number_; }  // of the recording
  int64_t op_count() const { return events_.op_count(); }
  int64_t tick_count() const { return events_.tick_count(); }
  const std::vector<uint64_t>& tokens() const { return events_.tokens; }
  // Whether [from, to) has ops of a forward and of a backward pass, as a training iteration must.
  bool has_both_passes(int64_t from, int64_t to) const;
  // Whether it has had an op of a backward pass at all.
  bool has_backward() const { return has_backward_; }
  // A storage older than the recording that was not known at its start.
  void adopted(const Block& block);
  // Pins a block; `recorder`: of the session, null where there is none.
  static void pin(Block& block, Recorder* recorder);
  // It is still there when the recording ends, and no storage has been seen to be behind it: it stays where it is.
  void is_raw(const Block& block);
  void start(Device& device, const std::vector<Block*>& alive);
  Recording stop();
  // What `stop` would return if the recording ended now, `complete`d as it is then; it goes on.
  template <typename Complete>
  Recording so_far(const Complete& complete);
  void abandon() { on_ = false, take(); }
  size_t held() const { return events_.held() + held_bytes(source_by_sequence_, stops_); }  // bytes of the heap

  // Returns the op's row, to be passed to the calls below.
  int64_t op_begins(int64_t name, Phase phase, int64_t source, int64_t sequence_number, int64_t node_number, bool with_grad);
  // The op has its inputs.
  void op_starts(int64_t row);
  // What an asynchronous device is asked for from here to `clock_goes_on` is none of the program's ops. (On a host that is what
  // an op has waited.)
  struct Stop {
    uint64_t recording = 0;
    int64_t ticket = 0;
  };
  Stop clock_stops() const;
  void clock_goes_on(const Stop& stop);
  void op_accesses(int64_t row, const Block& block, bool write);
  // Nothing moved it since there were `from` ops.
  void held(const Block& block, int64_t from);
  std::string& shapes(int64_t row);
  void op_ends(int64_t row, int64_t workspace_bytes, int64_t split_bytes, uint64_t waited_ns);
  void handed_over(int64_t row, uint64_t giver, uint64_t taker);
  void allocated(const Block& block, bool inside_op, int64_t source);
  void ghost_allocated(const Block& ghost, bool inside_op, int64_t source);
  void ghost_before(const Block& ghost);
  void released(const Block& block, bool inside_op);
  void went_out(const Block& block);

 private:
  Recording take();
  void read_clock(Recording& events) const;
  int64_t forward_source(int64_t node_number) const;
  void was_before(const Block& block, bool stays);
  void pinned(const Block& block, int64_t ops_begun, bool inside_op, int64_t tick);

  std::atomic<bool>& on_;
  std::atomic<bool> notes_shapes_{false};
  Device* device_ = nullptr;  // whose time it is
  uint64_t number_ = 0;
  bool has_backward_ = false;
  Recording events_;
  std::vector<std::pair<int64_t, int64_t>> source_by_sequence_;  // ascending sequence numbers
  std::vector<std::pair<int64_t, int64_t>> stops_;  // tickets of when the clock stopped, and of when it went on
};

template <typename Complete>
Recording Recorder::so_far(const Complete& complete) {
  const size_t accesses = events_.accesses.size(), pins = events_.pins.size();
  complete();
  Recording events = events_;
  events_.accesses.resize(accesses);
  events_.pins.resize(pins);
  read_clock(events);
  return events;
}

}  // namespace memfit
