// Iterations: where one ends and the next begins, and what each of them was.
//
// An optimizer's step ends one. Without any, an iteration is what the op stream turns out to repeat.
// Its members are the two lists that Python reads, and the state of the search for a period.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hash.h"
#include "recorder.h"

namespace memfit {

class Iterations {
 public:
  // An op of these inputs has allocated so much.
  void on_op(uint64_t need_key, size_t allocated) { hash_ = mix(mix(hash_, need_key), allocated); }
  // The `ops`th op begins. True: by the period, an iteration has ended before it.
  bool period_ends(uint64_t ops);
  bool is_over(uint64_t ops) const { return period_ != 0 && ops - period_start_ > static_cast<uint64_t>(period_); }
  // An optimizer has stepped, or the period is no iteration after all: from now on only steps count.
  void on_step();
  void reject_period();
  // The period that the recorded ops turn out to have; looked for at doubling lengths.
  std::optional<int64_t> find_period(const Recorder& recorder, uint64_t ops);
  // One has ended, of so many ops.
  void end(size_t ops);

  uint64_t count() const { return count_; }

  // Whether as many recorded ops without an iteration's end are too many to go on recording.
  bool takes_too_long(int64_t recorded) const;
  bool takes_too_long_to_forecast(size_t ops) const;

  // The ends of iterations in the recording, as numbers of ops, and of allocations and frees.
  void mark(const Recorder& recorder);
  void mark_period(int64_t ops, int64_t length) { marks_ = {ops - length, ops}; }
  void forget_marks();
  const std::vector<int64_t>& marks() const { return marks_; }
  const std::vector<int64_t>& tick_marks() const { return tick_marks_; }

  // One hash an iteration, the latest last, and how often each has been.
  std::vector<uint64_t> signatures() const { return {signatures_.begin(), signatures_.end()}; }
  const std::unordered_map<uint64_t, uint64_t>& signature_counts() const { return signature_counts_; }

  // `action` is to be called, with no lock held, when an iteration has ended by the period. Returns the one before.
  std::function<void()> tell(std::function<void()> action) { return std::exchange(told_, std::move(action)); }
  // That, if it is due (or `found`: the period has just been found).
  std::function<void()> due(bool found);
  // A child of a fork has no iterations.
  void abandon();

 private:
  std::vector<int64_t> marks_, tick_marks_;
  std::deque<uint64_t> signatures_;
  std::unordered_map<uint64_t, uint64_t> signature_counts_;
  std::function<void()> told_;
  uint64_t hash_ = 0;
  bool steps_seen_ = false;
  int64_t period_ = 0;           // ops; 0: none is known
  int64_t next_search_ = 512;    // recorded ops
  uint64_t period_start_ = 0;    // the op count at which the current repetition began
  bool ended_by_period_ = false;  // and nobody has been told yet
  size_t longest_ = 0;            // ops
  uint64_t count_ = 0;
};

}  // namespace memfit
