// PageFrames: the memory through which the bytes of mapped storages are seen, within a number of bytes.
//
// A mapped storage has addresses of its own. A chunk of it comes in from the tier when it is touched, or before if it is
// known to be wanted, and leaves when another one needs its frame; what was not written to is not written back, and what
// holds nothing yet is not read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "frame_order.h"
#include "mapped.h"
#include "page_faults.h"
#include "paged.h"

namespace memfit {

class PageFrames : public std::enable_shared_from_this<PageFrames> {
 public:
  enum class Mechanism { kBest, kUserfaults, kSignals };

  struct Figures {
    uint64_t faults = 0, fault_ns = 0, bytes_in = 0, bytes_out = 0;
    size_t frame_bytes = 0, peak_frame_bytes = 0;
  };

  // Raises TierFailure when the system has no such mechanism.
  explicit PageFrames(Mechanism mechanism, Mortality mortality = {});
  ~PageFrames();
  PageFrames(const PageFrames&) = delete;
  PageFrames& operator=(const PageFrames&) = delete;

  // Raises TierFailure.
  std::shared_ptr<Mapped> map(const Paged::Request& request);
  // As many bytes of frames as there may be at once; those that are there beyond leave.
  void set_limit(size_t bytes);
  Figures figures();
  bool is_empty();

 private:
  friend class Paged;  // it forwards what is asked of it

  // Neighbours that lie together.
  struct Run {
    size_t first, count;
  };
  struct Wanted {
    std::vector<Run> absent, read_only;
    size_t bytes = 0;  // of the absent
  };

  void serve(char* touched, bool is_write);
  void touch(Paged& paged, size_t chunk, bool is_write);
  void bring_in(Paged& paged, size_t chunk, bool is_write);
  void add(Paged& paged, const Run& run, bool is_writable);
  void make_room(size_t bytes, FrameOrder::For what);
  bool leave(const Frame& frame);
  bool can_leave(Paged& paged, const Run& run, bool is_undisturbed);
  void write_back(Paged& paged, const Run& run);

  // Many at once, for which the system is asked less often (row_frames.cpp).
  Wanted wanted(Paged& paged, const std::vector<size_t>& offsets, size_t bytes, bool for_writing) const;
  void make_room_together(size_t bytes, bool is_undisturbed);
  void bring_in_together(Paged& paged, const Wanted& wanted, bool is_writable);

  void settle(Paged& paged);
  void bring(Paged& paged, const std::vector<size_t>& offsets, size_t bytes, Mapped::How how);
  std::string failure(const Paged& paged);
  void forget(Paged& paged);

  std::mutex mutex_;
  std::map<char*, Paged*> paged_;  // by their base
  FrameOrder order_;
  std::vector<char> bounce_;
  size_t limit_ = 0;
  int slow_reads_ = 0;  // so many more times the tier is told of rows before they are read
  Figures figures_;
  std::unique_ptr<PageFaults> faults_;  // its thread ends before the rest goes
};

}  // namespace memfit
