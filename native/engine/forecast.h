// Forecast: when a storage will be used next, assuming that this iteration repeats the last one.
//
// Storages that outlive an iteration are known by themselves, the others by their ordinal among the
// iteration's allocations. Where the assumption fails only speed is lost, never correctness.
#pragma once

#include <cstdint>
#include <vector>

#include "block.h"

namespace memfit {

class Forecast {
 public:
  static constexpr uint64_t kNever = uint64_t{1} << 40;  // as far away as it gets, in ops

  void on_op() { ++now_.ops; }
  size_t ops() const { return now_.ops; }  // of this iteration
  void on_allocation(Block& block);
  void on_access(Block& block);
  void on_release(const Block& block);
  void on_boundary(const std::vector<Block*>& alive);

  // Which of the last iteration's allocations it is, counted from 0; -1 when it is none of them.
  int64_t last_ordinal(const Block& block) const;
  // Ops until the next use; 0 when nothing is known.
  uint64_t distance(const Block& block) const;
  // Whether the bytes will be read again at all (true when nothing is known).
  bool read_again(const Block& block) const;
  size_t held() const { return now_.held() + last_.held(); }  // bytes of the heap

 private:
  struct Log {
    uint32_t ops = 0;
    std::vector<size_t> allocation_bytes;      // by ordinal
    std::vector<int32_t> allocation_position;  // by ordinal
    std::vector<std::pair<int32_t, uint32_t>> accesses;  // (position, op); until index()
    std::vector<char> released;                // by position
    std::vector<uint32_t> first_access;        // by position, into access_ops; filled by index()
    std::vector<uint32_t> access_ops;
    void index();
    void shrink();
    void reserve(const Log& like);
    size_t held() const;
    int32_t new_position();
  };

  Log now_;
  Log last_;
};

}  // namespace memfit
