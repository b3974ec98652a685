// Paged: one storage that is seen through page frames. It knows which of its chunks are there, and where the tier has them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../tier.h"
#include "access.h"
#include "mapped.h"
#include "page_faults.h"

namespace memfit {

class PageFrames;

class Paged final : public Mapped {
 public:
  enum State : uint8_t { kAbsent, kClean, kDirty };
  enum Place : uint8_t { kNowhere, kInSource, kStored };

  struct Request {
    std::shared_ptr<Tier> tier;
    Extent extent;
    size_t bytes;
    size_t chunk;  // bytes that come and go at once: a multiple of a page
    // Where its bytes are so far, which may be the extent itself; null: it has none yet. Another one is given up as soon as
    // nothing is read from it any more.
    Extent source;
    Access access;
  };

  // Raises TierFailure.
  Paged(std::shared_ptr<PageFrames> frames, const Request& request);
  ~Paged() override;

  char* address() const override { return base; }
  void settle() override;
  void bring(const std::vector<size_t>& offsets, size_t bytes, How how) override;
  std::string failure() override;
  bool is_for_rows() const override { return is_table(); }

  void fails(const char* because) {
    if (why.empty()) why = because;
  }
  bool is_table() const { return request.access == Access::kRows; }

  // Its addresses, in whole pages.
  size_t space() const { return round_up(request.bytes, kFaultPage); }
  char* at(size_t chunk) const { return base + chunk * request.chunk; }
  size_t offset(size_t chunk) const { return chunk * request.chunk; }
  // What `count` chunks take in memory, and what they have of the storage.
  size_t length(size_t chunk, size_t count = 1) const { return std::min(count * request.chunk, space() - offset(chunk)); }
  size_t filled(size_t chunk, size_t count = 1) const { return std::min(count * request.chunk, request.bytes - offset(chunk)); }
  // They lie side by side in the tier, or nowhere in it.
  bool lie_together(size_t chunk, size_t next) const { return places[chunk] == places[next]; }

  // Between the tier and memory, of chunks that lie together. Raise TierFailure.
  void get(size_t chunk, size_t count, char* to) const;
  void put(size_t chunk, size_t count, const char* from);
  // `get` follows soon.
  void expect(size_t chunk, size_t count) const;

  const Request request;
  Extent old = nullptr;  // its bytes were there, and nothing else has them
  char* base = nullptr;
  std::vector<State> states;
  std::vector<Place> places;  // where the tier has its bytes, older ones perhaps
  std::vector<uint32_t> named;  // when an op last named it, counted in such ops
  std::vector<uint64_t> left;   // of what is swept: when it left, counted in those that came in (FrameOrder)
  bool is_new = request.source == nullptr;  // what it holds is all of the op that runs, and worth nothing if that fails
  bool is_trained = false;  // rows that were read have been written to by the next op that named them
  std::string why;

 private:
  Extent place(size_t chunk) const { return places[chunk] == kInSource ? request.source : request.extent; }
  void give_up_old();

  std::shared_ptr<PageFrames> page_frames_;
};

}  // namespace memfit
