// When the copies of chosen gaps begin: out at once, in as late as the link and as early as memory allow.
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/lanes.h"
#include "simulator/marks.h"
#include "simulator/room.h"
#include "simulator/simulate.h"

namespace memfit::swapping {

// One gap each: the storage may be away during the ops strictly between `after` and `before` (counted on over the
// iteration's end). Sizes are those the arena holds; `in_us` is 0 of one that does not return.
struct Candidates {
  const std::int64_t *size_bytes, *after, *before;
  const double *out_us, *in_us;
  std::int64_t count;
};

// The ops at which the bytes of a chosen gap are free, and at which its copy in begins; counted as in `Swap`.
struct Schedule {
  std::int64_t free_by = 0, in_start = 0;
};

// Plays the iteration op by op, in the order of the simulator, and decides as it goes. A decision at an op rests on the
// chosen gaps alone: whatever is due to leave is assumed to be gone when it has to be, at the price of a wait.
// Its members are the candidates by the ops at which something happens to them, and how far the iteration has come.
class Scheduler {
 public:
  Scheduler(const Ops& ops, const Candidates& candidates, double both_factor);

  // Returns the iteration's time. `slack_bytes[k]` is what op k leaves of the budget when all that is chosen is away;
  // nothing is negative to the scheduler. `chosen` has a flag for each candidate.
  double run(const std::vector<std::uint8_t>& chosen, const std::vector<std::int64_t>& slack_bytes);

  const std::vector<Schedule>& schedules() const { return schedules_; }  // by candidate, of the last run
  const std::vector<double>& stall_us() const { return stall_us_; }  // by op, of its last iteration
  const std::vector<double>& stall_of() const { return stall_of_; }  // by candidate
  double compute_us() const { return compute_us_; }
  std::int64_t steps() const { return steps_; }

 private:
  struct Absence {  // of the instance whose copy in is due next
    std::size_t out_copy = 0, in_copy = 0;
    bool is_pending = false, is_free = false, is_coming = false;
  };

  // Otherwise the storage is freed while it is away.
  bool returns(std::int64_t candidate) const { return all_.in_us[candidate] > 0; }
  void find_latest_starts();
  std::int64_t op_at(double us) const;
  void iterate(std::int64_t number);
  void free_ended(std::int64_t op);
  void make_room(std::int64_t op);
  void free_head(std::int64_t op);
  void prefetch(std::int64_t op);
  std::size_t next_open(std::size_t position) const;
  bool may_come(std::int64_t candidate, std::int64_t op, std::int64_t due);
  std::int64_t blocked_at(std::int64_t candidate, std::int64_t op, std::int64_t due);
  void bring_in(std::int64_t candidate, std::int64_t op, std::int64_t due);
  void decide(std::int64_t& when, std::int64_t op);
  void use(std::size_t begin, std::size_t end, std::int64_t op);
  void free(std::int64_t candidate, std::int64_t op);
  void wait(std::int64_t candidate, std::int64_t op, double until_us);

  const Ops ops_;
  const Candidates all_;
  const double both_factor_;
  double compute_us_ = 0;
  std::vector<double> begin_us_;                      // of each op without stalls, and the iteration's end
  std::vector<std::int64_t> outs_begin_, outs_by_op_;  // candidates by `after`, then `before`
  std::vector<std::int64_t> ins_order_;               // candidates by `before` within the iteration, then `outs_by_op_`
  std::vector<std::int64_t> ins_, blocked_until_;
  std::vector<std::int64_t> use_;   // by candidate: `before` within the iteration
  std::vector<std::int64_t> lead_;  // how many ops before its use the link wants to begin at the latest
  std::vector<std::uint8_t> is_chosen_;
  std::vector<Absence> absence_;
  Room room_;                              // by op: the slack less what is back before its use
  std::vector<std::int64_t> leaving_;      // candidates whose copies out have been enqueued
  std::size_t leaving_head_ = 0;
  std::int64_t leaving_bytes_ = 0;
  std::size_t next_use_ = 0;  // position in `ins_`, counted on from iteration to iteration
  std::vector<std::size_t> place_;  // by candidate, in `ins_`
  Marks open_;                      // by place: neither on its way out nor on its way in, nor back already
  Lanes lanes_;
  double now_us_ = 0;
  bool has_changed_ = false;  // whether an iteration decided other than the one before
  bool crosses_ = false;  // whether anything chosen is away over the iteration's end
  std::int64_t steps_ = 0;
  std::vector<Schedule> schedules_;
  std::vector<double> stall_us_, stall_of_;
};

}  // namespace memfit::swapping
