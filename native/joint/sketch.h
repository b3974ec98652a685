// A choice for every gap, and what it costs: the ops that run again, and the bytes at every op. It changes gap by gap,
// and only what a change reaches is worked out anew.
//
// Remakings are exact: their time and bytes are those of the trace that `with_recomputes` makes of the same choice.
// Swaps are a sketch, of one of two kinds. The quick one copies one after the other each way, out as soon as possible
// and in as late as possible; ops wait only for swaps whose mode says so, and one that has no time to leave and return
// stays. In the timed one the scheduler of swap plans says how long ops wait for what is swapped; what need not be away
// stays.
// Its members are what it knows by op, gap and storage, so that a change need not be worked out from the beginning; it
// has a method for each figure of them.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "joint/problem.h"

namespace memfit::joint {

// The ops that run again before one op, and the bytes that they have made by the time each has.
struct Event {
  bool is_lost = false;
  std::vector<std::int64_t> ops, made_bytes, returned, asked, swapped;
};

class Sketch {
 public:
  explicit Sketch(const Problem& problem);

  std::uint8_t mode(std::int64_t gap) const { return modes_[gap]; }
  void set(std::int64_t gap, std::uint8_t mode);

  // Works out what the changes since the last call mean: first what runs again, then the swaps and the bytes.
  void settle() {
    settle_remakings();
    settle_bytes();
  }
  void settle_remakings();
  void settle_bytes();

  // Takes the bytes back that were there before the last `settle_bytes`, when the modes are as they were then.
  void restore_bytes();

  bool is_lost() const { return lost_ > 0; }  // something cannot be made again
  double again_us() const { return again_us_; }
  double wait_us() const { return now_.wait_us; }  // of all for copies, about
  double over_bytes() const { return now_.over; }  // summed over ops, and over the remakings before them
  std::int64_t worst_bytes() const { return now_.worst; }
  std::int64_t steps() const { return steps_; }

  // The bytes while an op runs, and before it while others run again; with swaps.
  std::int64_t during(std::int64_t op) const { return held_[op] - now_.swapped[op]; }
  std::int64_t ahead(std::int64_t op) const { return begin_[op] - now_.ahead[op] + peaks_[op]; }
  const Event& event(std::int64_t op) const { return events_[op]; }
  std::int64_t returns(std::int64_t gap) const { return returns_[gap]; }

  // The gap of `storage` that spans the beginning of `op`; -1 if none does.
  std::int64_t gap_at(std::int64_t storage, std::int64_t op) const;

 private:
  // What swaps take away, and what is over the budget with them.
  struct Bytes {
    std::vector<std::int64_t> swapped, ahead;
    double over = 0, wait_us = 0;
    std::int64_t worst = 0;
    bool is_empty = true;
  };
  // An absence of a swapped storage, strictly between two moments: 2 x op is what runs again before the op, 2 x op + 1
  // the op itself, counted on over the iteration's end.
  struct Piece {
    std::int64_t gap, from, to;
    double ready = 0, due = 0, out_end = 0, in_start = 0;
  };

  bool is_away(std::int64_t gap, std::int64_t op) const;
  std::int64_t value_at(std::int64_t storage, std::int64_t op) const;
  bool is_held(std::int64_t value, std::int64_t op) const;
  void change_return(std::int64_t gap, std::int64_t op);
  void ask_again(std::int64_t gap, std::int64_t from);
  void look_at(std::int64_t op);
  void forget(std::int64_t op);
  std::int64_t ask(std::int64_t storage, std::int64_t op);
  void make(std::int64_t gap, std::int64_t op);
  bool follow(std::int64_t value, std::int64_t op);
  void join(std::int64_t op);
  void run_again(std::int64_t op);
  bool is_made_here(std::int64_t storage, std::int64_t maker, std::int64_t op) const;
  void copy();
  void gather();
  void run_lanes();
  void leave();
  void come();
  void take_away(const Piece& piece);
  void add_away(std::vector<std::int64_t>& row, std::int64_t begin, std::int64_t end, std::int64_t bytes) const;
  std::int64_t first_from(double us) const;
  double begin_of(std::int64_t moment) const;
  double end_of(std::int64_t moment) const;
  void schedule();
  void number_moments();
  void count_over();

  const Problem& all_;
  const std::int64_t count_;
  std::vector<std::uint8_t> modes_;
  std::vector<std::int64_t> returns_;
  std::vector<Event> events_;
  std::vector<std::vector<std::int64_t>> ending_, asking_, needed_;
  std::vector<std::int64_t> held_, begin_, peaks_;
  Bytes now_, last_;
  std::vector<double> event_us_;
  std::set<std::int64_t> dirty_;
  std::vector<std::int64_t> chosen_swaps_, place_of_;
  std::vector<Piece> pieces_;
  std::vector<std::int64_t> order_;
  std::vector<double> start_us_;
  std::vector<std::int64_t> first_of_, last_of_, moment_bytes_;  // of moments
  std::vector<double> moment_us_;
  std::vector<std::int64_t> seen_value_, seen_op_, own_seen_op_, last_use_, own_mark_;
  std::int64_t stamp_ = 0, event_stamp_ = 0;
  std::vector<std::int64_t> wanted_, waiting_, own_, needs_;
  double again_us_ = 0;
  std::int64_t lost_ = 0, steps_ = 0;
};

}  // namespace memfit::joint
