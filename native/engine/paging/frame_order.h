// FrameOrder: in which order chunks leave their page frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace memfit {

class Paged;

struct Frame {
  Paged* of;
  size_t chunk;
  size_t bytes;
  uint32_t named;  // `Paged::named` when it took its place among the rows
};

// How many of the chunks that came in last stay, of what is gone through pass after pass: half of them, which the op may be
// going over again and again on its way. Where nearly all that come in have just left, it goes over more than that, and all
// stay but the one that has been there longest. Where that is of no use it is half of them again, for longer each time.
class Spared {
 public:
  size_t of(size_t frames) const;
  // One came in that so many others had come in without, of so many that are there.
  void came_in(uint64_t away, size_t frames);

 private:
  void judge(bool is_of_use);

  size_t came_ = 0, back_ = 0;  // in the present round, in which as many come in as there are
  size_t round_ = 0;            // since the last change
  size_t patience_ = 0;         // rounds before all are spared
  bool all_ = false;
};

class FrameOrder {
 public:
  // Of what ops go through from one end to the other: for one pass over much the one that has been there longest; for pass
  // after pass one of the newer, so that the others are still there when the next pass comes. Of rows it is nearly the one
  // that no op has named for longest: one that was named since it took its place takes another one.
  enum class Leaves { kOldest, kNewest };

  void set(Leaves which);
  // Ops that have named rows so far.
  uint32_t namings() const { return namings_; }
  void op_names_rows() { ++namings_; }
  void add(const Frame& frame);
  enum class For { kRowsToCome, kTouchedRow, kOthers };
  // Takes out the next to leave, for what is to take its place; there is one. Others take half of `limit` bytes from rows at
  // the most. For rows to come, none leaves that the last op has named unless there is no other.
  Frame take(For what, size_t limit);
  // It has to stay: those that can leave come first.
  void put_back(const Frame& frame);
  void forget(const Paged& paged);
  size_t size() const { return rows_.size() + others_.size(); }

 private:
  Frame take_row(bool spares_named);
  Frame take_other();

  std::deque<Frame> rows_, others_;  // the oldest first
  size_t other_bytes_ = 0;
  Spared spared_;
  uint64_t came_in_ = 0;  // of the others
  uint32_t namings_ = 0;
  Leaves leaves_ = Leaves::kOldest;  // of the others
};

}  // namespace memfit
