// Course: how far the program has come in the iteration of a plan.
//
// Its ops are compared with the plan's. One that the plan does not have (a log, an evaluation) is passed by, and changes
// nothing. Where ops of the plan do not come, the program is found again further on, as soon as a few of its ops in a row
// are the plan's. What the plan has run again is not the program's, and is skipped where nobody has run it.
// Its members are the plan's ops, how far the program has come in them, and what is counted of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "hash.h"

namespace memfit {

// What an op is compared by. An evaluation has the ops of a forward pass, but computes no gradients.
inline uint64_t identity_of(uint64_t name_hash, bool with_grad) { return with_grad ? name_hash : mix(name_hash, 1); }

class Course {
 public:
  // `identities`: of the plan's ops, in order, those that run again (`runs_again`, or nothing) too. `at_once`: an iteration
  // begins now; otherwise the first whole one is waited for.
  Course(std::vector<uint64_t> identities, std::vector<char> runs_again, bool at_once);

  // The next op begins: the first of the plan's that were to come until it, itself the last of them (`op()`). Nothing if
  // it is none of the plan's.
  std::optional<size_t> on_op(uint64_t identity);
  // The plan's next op runs again.
  void on_step() { last_ = next_++; }
  // Whether the next of the program's own that the plan has is of this identity.
  bool comes_next(uint64_t identity) const;
  void iteration_ends();

  bool begun() const { return begun_; }
  size_t op() const { return last_; }  // which of the plan's ops has begun last
  size_t next() const { return next_; }
  size_t next_own() const { return own_from(next_); }  // of the program's own
  size_t ops() const { return identities_.size(); }
  bool runs_again(size_t op) const { return op < runs_again_.size() && runs_again_[op] != 0; }
  // Whether the iteration has had other ops until now, or lacks some.
  bool is_derailed() const { return is_derailed_; }
  // Whether ops of the plan have not come in it.
  bool lacks_ops() const { return lacks_ops_; }
  // Ops in a row, until now, that are none of the plan's.
  size_t strayed() const { return strayed_; }

  uint64_t derailments() const { return derailments_; }  // iterations with ops of either kind:
  uint64_t unplanned() const { return unplanned_; }  // that the plan does not have,
  uint64_t missing() const { return missing_; }      // and that did not come
  size_t held() const;  // bytes of the heap

 private:
  size_t own_from(size_t op) const;
  bool is_found_ahead(uint64_t identity);
  size_t find_ahead(uint64_t identity) const;
  std::optional<size_t> advance(size_t op);

  std::vector<uint64_t> identities_;
  std::vector<char> runs_again_;
  bool begun_;
  size_t next_ = 0, last_ = 0;
  size_t ahead_ = 0, run_ = 0;  // the plan's op that the program's last one may have been, with so many before it
  size_t strayed_ = 0;
  bool is_derailed_ = false, lacks_ops_ = false;
  uint64_t derailments_ = 0, unplanned_ = 0, missing_ = 0;
};

}  // namespace memfit
