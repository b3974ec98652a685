// PageFrames: the memory through which the bytes of mapped storages are seen, within a number of bytes.
//
// A mapped storage has addresses of its own. A chunk of it comes in from the tier when it is touched, and leaves when
// another one needs its frame; what was not written to is not written back, and what holds nothing yet is not read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "mapped.h"
#include "page_faults.h"

namespace memfit {

class PageFrames : public std::enable_shared_from_this<PageFrames> {
 public:
  enum class Mechanism { kBest, kUserfaults, kSignals };
  // Which chunk leaves: for one pass over much, the one that has been there longest; for pass after pass, one of the
  // newest, so that the others are still there when the next pass comes.
  enum class Leaves { kOldest, kNewest };

  struct Figures {
    uint64_t faults = 0, fault_ns = 0, bytes_in = 0, bytes_out = 0;
    size_t frame_bytes = 0, peak_frame_bytes = 0;
  };

  // Raises TierFailure when the system has no such mechanism.
  explicit PageFrames(Mechanism mechanism, Mortality mortality = {});
  ~PageFrames();
  PageFrames(const PageFrames&) = delete;
  PageFrames& operator=(const PageFrames&) = delete;

  struct Request {
    std::shared_ptr<Tier> tier;
    Extent extent;
    size_t bytes;
    size_t chunk;    // bytes that come and go at once: a multiple of a page
    // Where its bytes are so far, which may be the extent itself; null: it has none yet. Another one is given up as soon as
    // nothing is read from it any more.
    Extent source;
  };
  // Raises TierFailure.
  std::shared_ptr<Mapped> map(const Request& request);
  // As many bytes of frames as there may be at once; those that are there beyond leave.
  void set_limit(size_t bytes);
  void set_leaving(Leaves which);
  Figures figures();
  bool is_empty();
  const char* mechanism() const { return faults_->name(); }

 private:
  class Paged;
  enum State : uint8_t { kAbsent, kClean, kDirty };
  struct Frame {
    Paged* of;
    size_t chunk;
  };

  void serve(char* touched, bool is_write);
  void touch(Paged& paged, size_t chunk, bool is_write);
  void bring_in(Paged& paged, size_t chunk, bool is_write);
  void read(Paged& paged, size_t chunk);
  void get(const Paged& paged, size_t chunk);
  void put(Paged& paged, size_t chunk, const char* bytes);
  void make_room(size_t bytes);
  bool leave(size_t frame);
  size_t next_to_leave() const;
  void write_back(Paged& paged, size_t chunk);
  void settle(Paged& paged);
  void bring(Paged& paged, const std::vector<size_t>& offsets, size_t bytes, bool for_writing);
  void forget(Paged& paged);

  std::mutex mutex_;
  std::map<char*, Paged*> paged_;  // by their base
  std::deque<Frame> frames_;       // the oldest first
  std::vector<char> bounce_;
  size_t limit_ = 0;
  Leaves leaves_ = Leaves::kOldest;
  Figures figures_;
  std::unique_ptr<PageFaults> faults_;  // its thread ends before the rest goes
};

}  // namespace memfit
